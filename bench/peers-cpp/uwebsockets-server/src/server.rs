//! The Rust side: reads the command line, counts, and prints the address.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

// Links the zlib that uWebSockets calls.
use libz_sys as _;
use windlass_bench_driver::server::{Mode, Settings, announce};
use windlass_bench_driver::{alloc, locked_version};

unsafe extern "C" {
    safe fn windlass_bench_echo(deflate: bool);
    safe fn windlass_bench_broadcast();
}

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_count() {
    alloc::count_one();
}

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_listening(port: i32) {
    match u16::try_from(port) {
        Ok(port @ 1..) => {
            let version = locked_version(include_str!("../../Cargo.lock"), "libuwebsockets-sys");
            announce(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), &version);
        }
        _ => eprintln!("uWebSockets cannot listen"),
    }
}

pub(crate) fn main() -> ExitCode {
    match Settings::take() {
        Ok(Settings { mode: Mode::Echo, deflate, .. }) => windlass_bench_echo(deflate),
        Ok(Settings { mode: Mode::Broadcast, .. }) => windlass_bench_broadcast(),
        Err(error) => eprintln!("{error}"),
    }
    // It serves until it is killed.
    ExitCode::FAILURE
}
