//! Code that must not compile, and the compiler's message for it.
//!
//! The messages are those of one compiler version. With any other the test is ignored, with the
//! reason.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

/// The compiler version whose messages are compared.
const PINNED: &str = "rustc 1.95.";

fn main() -> ExitCode {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = match Command::new(rustc).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(e) => format!("no compiler: {e}"),
    };
    let is_pinned = version.starts_with(PINNED) && !version.contains("nightly");
    let name = if is_pinned {
        "what_must_not_compile_does_not".to_owned()
    } else {
        format!(
            "what_must_not_compile_does_not (ignored: the messages are those of {PINNED}x, this \
             is {version})"
        )
    };
    let trial = Trial::test(name, || {
        trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial.with_ignored_flag(!is_pinned)])
        .exit_code()
}
