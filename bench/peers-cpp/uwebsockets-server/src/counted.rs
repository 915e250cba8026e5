//! The same server for instruction counts, compiled without AVX-512, which callgrind does not
//! support.

mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    server::main()
}
