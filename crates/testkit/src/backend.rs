//! The backend for tests that do not choose one themselves. It comes from the environment.

use std::env::VarError;

use windlass::Backend;

/// The name of a backend. `cargo xtask ci` sets it to each backend in turn.
const VARIABLE: &str = "WINDLASS_TEST_BACKEND";

/// The backend that the environment names, or [`Backend::Auto`].
///
/// # Panics
/// If no backend has that name, because the tests would run on the wrong one.
pub fn chosen() -> Backend {
    match std::env::var(VARIABLE) {
        Ok(name) => name.parse().unwrap_or_else(|_| panic!("{VARIABLE}={name} names no backend")),
        Err(VarError::NotPresent) => Backend::Auto,
        Err(error) => panic!("{VARIABLE}: {error}"),
    }
}
