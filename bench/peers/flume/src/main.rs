//! The bounded channel of flume, for the workloads of `windlass-bench`.

use std::process::ExitCode;

use flume::{Receiver, Sender, bounded};
use windlass_bench_driver::{Program, Suite, channel_queue, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "flume");
    Program { version, suites: vec![Suite::post::<Queue>()] }.serve()
}

channel_queue!(Sender, Receiver, bounded);
