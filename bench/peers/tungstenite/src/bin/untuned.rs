//! tungstenite with its default settings, for the workloads of `windlass-bench`.

#![deny(unsafe_code)]

#[path = "../connection.rs"]
mod connection;

use std::process::ExitCode;

use windlass_bench_driver::{Program, Suite, locked_version};

use self::connection::Connection;

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../../Cargo.lock"), "tungstenite");
    Program { version, suites: vec![Suite::engine::<Connection<false>>()] }.serve()
}
