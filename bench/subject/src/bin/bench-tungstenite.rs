//! windlass-tungstenite for the workloads of `windlass-bench`: the program of tungstenite, with
//! another crate of its name, and the default settings.

#![deny(unsafe_code)]

extern crate windlass_tungstenite as tungstenite;

#[path = "../../../peers/tungstenite/src/connection.rs"]
mod connection;

use std::process::ExitCode;

use windlass_bench_driver::{Program, Suite};

use self::connection::Connection;

fn main() -> ExitCode {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Program { version, suites: vec![Suite::engine::<Connection<false>>()] }.serve()
}
