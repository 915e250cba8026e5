//! The backend that a test runs on which leaves the choice to others: the environment makes it, for
//! the tests of servers too.

use std::env::VarError;

use windlass::Backend;

/// Set to the name of a backend, by `cargo xtask ci` for each in turn.
const VARIABLE: &str = "WINDLASS_TEST_BACKEND";

/// The one that the environment names, or [`Backend::Auto`].
///
/// # Panics
/// If no backend has that name: the tests would run on another than was meant.
pub(crate) fn chosen() -> Backend {
    match std::env::var(VARIABLE) {
        Ok(name) => name.parse().unwrap_or_else(|_| panic!("{VARIABLE}={name} names no backend")),
        Err(VarError::NotPresent) => Backend::Auto,
        Err(error) => panic!("{VARIABLE}: {error}"),
    }
}
