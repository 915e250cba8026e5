//! `--backend NAME`.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use windlass::Backend;

/// Reads the name of a backend; help and refusals list those that there are.
pub(crate) fn parser() -> impl TypedValueParser<Value = Backend> {
    let names = [Backend::Auto, Backend::Epoll, Backend::Uring, Backend::Poll].map(Backend::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Backend>())
}
