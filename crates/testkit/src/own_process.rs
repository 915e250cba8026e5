//! Tests that need a process of their own: for its limits, its descriptors, its memory.

use std::{path::Path, process::Command};

const CHILD_VARIABLE: &str = "WINDLASS_TEST_CHILD";

/// A test calls this first, with its module and its name. In the parent it runs the test again in a
/// child, checks that the child has passed, and returns `false`. In the child it returns `true`,
/// and the test continues.
pub fn is_own_process(test: &str) -> bool {
    is_own_process_with(test, &[])
}

/// The same, and the child has these variables in its environment, which name files.
pub fn is_own_process_with(test: &str, variables: &[(&str, &Path)]) -> bool {
    if std::env::var_os(CHILD_VARIABLE).is_some_and(|name| name == *test) {
        return true;
    }
    let output = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, test)
        .envs(variables.iter().copied())
        .output()
        .expect("it can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test} in its own process: {:?}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}
