//! A server of uWebSockets, like its examples (`server.cpp`), for the suites of `windlass-bench`
//! that measure servers.

mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    server::main()
}
