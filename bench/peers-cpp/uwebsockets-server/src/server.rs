//! The Rust side: reads the command line, counts, and prints the address.

use std::ffi::{CString, c_char};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

// Links the zlib that uWebSockets calls.
use libz_sys as _;
use windlass_bench_driver::server::{self, ANY_PORT, Mode, announce};
use windlass_bench_driver::tls::{CERTIFICATE, PRIVATE_KEY};
use windlass_bench_driver::{Error, alloc, locked_version, work};

unsafe extern "C" {
    /// The certificate and its key are the names of files, or null.
    fn windlass_bench_echo(
        deflate: bool,
        work: bool,
        certificate: *const c_char,
        key: *const c_char,
    );
    safe fn windlass_bench_echo_on(port: i32);
    safe fn windlass_bench_broadcast();
}

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_count() {
    alloc::count_one();
}

/// The ports of the threads that listen, which is one and the same.
static LISTENING: OnceLock<Sender<i32>> = OnceLock::new();

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_worker_listening(port: i32) {
    LISTENING.get().inspect(|sender| sender.send(port).expect("its receiver waits"));
}

/// Echoes with a loop for each thread.
fn echo_on(workers: usize) -> Result<(), Error> {
    let (sender, listening) = channel();
    LISTENING.get_or_init(|| sender);
    // uWebSockets shares a port unless the kernel chooses it, so it must be known.
    let port = i32::from(TcpListener::bind(ANY_PORT)?.local_addr()?.port());
    for _ in 0..workers {
        std::thread::spawn(move || windlass_bench_echo_on(port));
        if listening.recv()? != port {
            return Err("a worker cannot listen".into());
        }
    }
    windlass_bench_listening(port);
    loop {
        std::thread::park();
    }
}

static WORK: OnceLock<Duration> = OnceLock::new();

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_work() {
    WORK.get().inspect(|time| work(**time));
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

fn echo(deflate: bool, work: Duration, tls: bool) {
    let time = WORK.get_or_init(|| work);
    let names = [CERTIFICATE, PRIVATE_KEY].map(|name| CString::new(name).expect("a name"));
    let [certificate, key] = match tls {
        true => [names[0].as_ptr(), names[1].as_ptr()],
        false => [std::ptr::null(); 2],
    };
    // SAFETY: both are null, or strings that live until the call returns.
    unsafe { windlass_bench_echo(deflate, !time.is_zero(), certificate, key) };
}

pub(crate) fn main() -> ExitCode {
    server::run(|settings| {
        match (settings.mode, settings.workers) {
            (Mode::Echo, Some(workers)) => echo_on(workers)?,
            (Mode::Echo, None) => echo(settings.deflate, settings.work, settings.tls),
            (Mode::Broadcast, _) => windlass_bench_broadcast(),
        }
        Err("uWebSockets has ended".into())
    })
}
