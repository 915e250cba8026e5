//! `--backend NAME`.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use windlass::Backend;

/// Parses the name of a backend; help and errors list the available ones.
pub(crate) fn parser() -> impl TypedValueParser<Value = Backend> {
    let names = [Backend::Auto, Backend::Epoll, Backend::Uring, Backend::Poll].map(Backend::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Backend>())
}
