//! tokio on a current-thread runtime, for the workloads of `windlass-bench`.

mod http;
#[path = "../../../subject/src/bin/bench-windlass-task/service.rs"]
mod service;
mod start;
#[allow(dead_code, reason = "the other runtime is that of the other program")]
mod tasks;
mod timers;
mod wakeup;

use std::process::ExitCode;

use windlass_bench_driver::http::HttpWorkload;
use windlass_bench_driver::tasks::Workload;
use windlass_bench_driver::{Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "tokio");
    let suites = vec![
        Suite::timers::<timers::Tokio>(),
        Suite::sleep::<timers::Tokio>(),
        Suite::wake::<wakeup::Loop>(),
        Suite::call::<wakeup::Calls>(),
        Suite::post::<wakeup::Queue>(),
        Suite::latency::<Workload<tasks::CurrentThread>>(),
        Suite::tasks::<Workload<tasks::CurrentThread>>(),
        Suite::http::<HttpWorkload<tasks::CurrentThread>>(),
        Suite::http_server::<HttpWorkload<tasks::CurrentThread>>(),
        Suite::first_event::<start::Start>(),
    ];
    Program { version, suites }.serve()
}
