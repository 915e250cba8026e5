//! Test programs that have their own `main`.

use std::{env, process::ExitCode};

use libtest_mimic::{Arguments, Trial};

/// Runs the tests that the arguments select.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&arguments(), trials).exit_code()
}

/// The arguments of the program. libtest-mimic does not read `RUST_TEST_THREADS`.
fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    arguments.test_threads =
        arguments.test_threads.or_else(|| env::var("RUST_TEST_THREADS").ok()?.parse().ok());
    arguments
}
