//! The parser of uWebSockets for the workloads of `windlass-bench`, with glue (`glue.cpp`) that
//! replaces its sockets.

use std::process::ExitCode;

use windlass_bench_driver::{Program, Suite, locked_version};

mod allocator;
mod connection;
mod deflate;
mod parts;

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "libuwebsockets-sys");
    let suites = vec![
        Suite::engine::<connection::Connection>(),
        Suite::unmask::<parts::Unmask>(),
        Suite::utf8::<parts::Utf8>(),
        Suite::deflate::<deflate::Deflate>(),
    ];
    Program { version, suites }.serve()
}
