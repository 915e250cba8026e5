//! Tests whose failure would end the process.

use std::process::Command;

const VARIABLE: &str = "WINDLASS_HOSTILE_CHILD";

/// Runs the body in a process of its own, so that an abort fails only one test. `name` is the name
/// of the calling test.
///
/// Miri cannot start processes, so there the body runs directly.
pub(crate) fn survives(name: &str, body: impl FnOnce()) {
    if cfg!(miri) || std::env::var(VARIABLE).is_ok_and(|asked| asked == name) {
        body();
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{errors}", output.status);
    assert!(said.contains("1 passed"), "no test is called {name}:\n{said}");
}
