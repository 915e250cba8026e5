//! The same server for instruction counts: compiled for what callgrind can execute, which knows no
//! AVX-512.

mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    server::main()
}
