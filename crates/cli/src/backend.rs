//! `--backend NAME`.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use windlass::Backend;

/// Parses the name of a backend; help and errors list the available ones.
pub(crate) fn parser() -> impl TypedValueParser<Value = Backend> {
    use Backend::{Auto, Epoll, Poll, Uring, UringOrEpoll};
    let names = [Auto, Epoll, Uring, UringOrEpoll, Poll].map(Backend::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Backend>())
}
