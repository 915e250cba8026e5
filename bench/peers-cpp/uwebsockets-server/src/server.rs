//! The Rust side: reads the command line, counts, and prints the address.

use std::ffi::{CString, c_char};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

// Links the zlib that uWebSockets calls.
use libz_sys as _;
use windlass_bench_driver::server::{self, Mode, announce};
use windlass_bench_driver::tls::{CERTIFICATE, PRIVATE_KEY};
use windlass_bench_driver::{alloc, locked_version};

unsafe extern "C" {
    /// The certificate and its key are the names of files, or null.
    fn windlass_bench_echo(deflate: bool, certificate: *const c_char, key: *const c_char);
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

fn echo(deflate: bool, tls: bool) {
    let names = [CERTIFICATE, PRIVATE_KEY].map(|name| CString::new(name).expect("a name"));
    let [certificate, key] = match tls {
        true => [names[0].as_ptr(), names[1].as_ptr()],
        false => [std::ptr::null(); 2],
    };
    // SAFETY: both are null, or strings that live until the call returns.
    unsafe { windlass_bench_echo(deflate, certificate, key) };
}

pub(crate) fn main() -> ExitCode {
    server::run(|settings| {
        match settings.mode {
            Mode::Echo => echo(settings.deflate, settings.tls),
            Mode::Broadcast => windlass_bench_broadcast(),
        }
        Err("uWebSockets has ended".into())
    })
}
