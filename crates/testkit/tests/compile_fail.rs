//! Rule 4 of the reactor, and what follows from it for tasks: code that must not compile, and the
//! compiler's message for it.
//!
//! trybuild compiles the dependencies of the tested package once more, those of its tests included.
//! So these tests are in a package with few of them, for both crates at once.

use std::{io::Write as _, process::Command};

/// The compiler version whose messages are compared. With any other the test is skipped.
const PINNED: &str = "rustc 1.95.";

#[test]
fn what_must_not_compile_does_not() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = match Command::new(rustc).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => format!("no compiler: {error}"),
    };
    if !version.starts_with(PINNED) || version.contains("nightly") {
        let why = format!("the messages are those of {PINNED}x, this is {version}");
        let line = format!("skipped here: what_must_not_compile_does_not: {why}\n");
        std::io::stderr().write_all(line.as_bytes()).expect("there is a standard error");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/reactor/*.rs");
    cases.compile_fail("tests/compile_fail/task/*.rs");
}
