//! Processes under the filters of `docs/syscalls`.
//!
//! A violation kills the process (`SECCOMP_RET_KILL_PROCESS`, seccomp(2)), so a test cannot miss
//! one.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use seccompiler::{TargetArch, apply_filter_all_threads, compile_from_json};
use serde_json::{Value, json};

/// The environment variable of the process that is confined.
const CHILD: &str = "WINDLASS_SECCOMP_CHILD";

/// The list for a backend and a processor (`cargo xtask syscalls`).
///
/// # Panics
/// If there is none.
#[must_use]
pub fn list(backend: &str, processor: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/syscalls");
    let path = format!("{folder}/{backend}.{processor}.json");
    serde_json::from_str(&fs::read_to_string(path).expect("a list")).expect("JSON")
}

/// Puts all threads of the process under the filter of these parts, without a call.
///
/// # Panics
/// If there is no such part or call.
pub fn confine(backend: &str, parts: &[&str], forbidden: Option<&str>) {
    let list = list(backend, "x86_64");
    let mut calls = BTreeSet::new();
    for part in parts {
        let rules = list[part]["filter"].as_array().expect("a part");
        calls.extend(rules.iter().map(|rule| rule["syscall"].as_str().expect("a call")));
    }
    if let Some(forbidden) = forbidden {
        assert!(calls.remove(forbidden), "{forbidden} is in the list");
    }
    let rules: Vec<_> = calls.iter().map(|call| json!({ "syscall": call })).collect();
    let filter = json!({
        "mismatch_action": "kill_process",
        "match_action": "allow",
        "filter": rules,
    });
    let filters = json!({ "all": filter }).to_string();
    let filters = compile_from_json(filters.as_bytes(), TargetArch::x86_64);
    apply_filter_all_threads(&filters.expect("a filter")["all"]).expect("it is put in force");
}

/// Whether this process was started to be confined.
#[must_use]
pub fn is_to_be_confined() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test again in a process of its own. Returns it with its output.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn start(test: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        // It would open files.
        .env("RUST_BACKTRACE", "0")
        // AddressSanitizer searches for leaks at the end of a process, with calls that no server
        // makes.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A panic of a handler is printed there. It is shown if the test fails.
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    (child, output)
}

/// The rest of the next line of the output that begins with these words.
pub fn line_after(output: &mut BufReader<ChildStdout>, words: &str) -> Option<String> {
    let mut lines = output.lines().map_while(Result::ok);
    lines.find_map(|line| line.strip_prefix(words).map(str::to_owned))
}
