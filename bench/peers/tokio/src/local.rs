//! tokio's `LocalRuntime`, whose tasks need not be `Send`.

#[allow(dead_code, reason = "the other runtime is that of the other program")]
mod tasks;

use std::process::ExitCode;

use windlass_bench_driver::tasks::Workload;
use windlass_bench_driver::{Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "tokio");
    let suites =
        vec![Suite::latency::<Workload<tasks::Local>>(), Suite::tasks::<Workload<tasks::Local>>()];
    Program { version, suites }.serve()
}
