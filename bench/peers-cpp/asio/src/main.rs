//! Coroutines of Asio (`glue.cpp`) for the suites `latency`, `tasks` and `http`.
#![allow(unsafe_code, reason = "calls into C++ and back")]

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::IntoRawFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use windlass_bench_driver::http::{ClientPlace, HttpCase, OtherClient};
use windlass_bench_driver::protocol::{Case, EchoedBy};
use windlass_bench_driver::tasks::{Laps, TaskSubject};
use windlass_bench_driver::wakeup::{LoopSubject, Waker};
use windlass_bench_driver::{Error, Program, Suite, Unsupported, alloc, pin_off_opposite};

fn main() -> ExitCode {
    let suites = vec![
        Suite::latency::<Asio>(),
        Suite::tasks::<Asio>(),
        Suite::http::<Asio>(),
        Suite::http_multi_thread::<OnThreads>(),
    ];
    Program { version: env!("ASIO_VERSION").to_owned(), suites }.serve()
}

/// `Loop` of `glue.cpp`.
#[repr(C)]
struct Context(c_void);

unsafe extern "C" {
    safe fn windlass_bench_loop_new(timers: usize) -> *mut Context;
    fn windlass_bench_loop_free(context: *mut Context);
    fn windlass_bench_run(
        context: *mut Context,
        kind: u32,
        number: u64,
        flag: u64,
        rounds: u64,
        laps: *const Laps,
    ) -> bool;
    fn windlass_bench_serve_on_threads(threads: usize, connections: usize, listener: c_int)
    -> bool;
    fn windlass_bench_loop_run(context: *mut Context, handler: *mut c_void);
    fn windlass_bench_loop_wake(context: *mut Context);
}

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_count() {
    alloc::count_one();
}

/// # Safety
/// `laps` is that of `windlass_bench_run`, which is running.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_record(laps: *const Laps, ns: u64) {
    // SAFETY: the caller's promise.
    unsafe { &*laps }.record_ns(ns);
}

/// # Safety
/// As for `windlass_bench_record`.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_start(laps: *const Laps) {
    // SAFETY: the caller's promise.
    unsafe { &*laps }.start();
}

/// # Safety
/// As for `windlass_bench_record`.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_stop(laps: *const Laps, units: u64) {
    // SAFETY: the caller's promise.
    unsafe { &*laps }.stop(units);
}

/// # Safety
/// As for `windlass_bench_record`.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_set(laps: *const Laps, ns: u64, units: u64) {
    // SAFETY: the caller's promise.
    unsafe { &*laps }.set(ns, units);
}

#[unsafe(no_mangle)]
extern "C" fn windlass_bench_pin_thread() {
    pin_off_opposite();
}

type Handler<'h> = &'h mut dyn FnMut() -> bool;

/// # Safety
/// `handler` is that of `windlass_bench_loop_run`, which is running.
#[unsafe(no_mangle)]
unsafe extern "C" fn windlass_bench_woken(handler: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    let handler = unsafe { &mut *handler.cast::<Handler<'_>>() };
    handler()
}

/// An `io_context`.
struct Owned(*mut Context);

// SAFETY: other threads only call `windlass_bench_loop_wake`, which may be called on any thread:
// posting to an `io_context` is thread-safe.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was made by `windlass_bench_loop_new` and is given back once.
        unsafe { windlass_bench_loop_free(self.0) };
    }
}

struct Asio {
    context: Owned,
    kind: u32,
    number: u64,
    flag: u64,
    /// A case with the client on another processor.
    served: Option<HttpCase>,
}

impl TaskSubject for Asio {
    type Loop<const LIVE_TIMERS: usize> = Posted<LIVE_TIMERS>;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        let (kind, number, flag, timers) = match *case {
            Case::PingPong { echoed_by, pairs, exact_reads, live_timers } => {
                let own_task = u64::from(echoed_by == EchoedBy::OwnTask);
                (0, pairs as u64, own_task | u64::from(exact_reads) << 1, live_timers)
            }
            Case::AcceptChurn { parallel, live_timers } => (1, parallel as u64, 0, live_timers),
            Case::SelfWake { turns: true, live_timers } => (2, 0, 0, live_timers),
            Case::Spawn { batch, live_timers } => (3, batch as u64, 0, live_timers),
            Case::SleepCancel { alive, polled } => (4, 0, u64::from(polled), alive),
            Case::ShortSleep { ns, live_timers } => (5, ns, 0, live_timers),
            Case::ManySleeps { count } => (6, count as u64, 0, 0),
            Case::TaskSleep { us, .. } => (7, us, 0, 0),
            Case::Http(HttpCase::Requests { client, connections, live_timers, .. }) => {
                let kind = if client == ClientPlace::SameThread { 8 } else { 9 };
                (kind, connections as u64, 0, live_timers)
            }
            Case::Http(HttpCase::PacedRequests { connections, live_timers, .. }) => {
                (9, connections as u64, 0, live_timers)
            }
            _ => return Err(Unsupported("no such workload is written for Asio").into()),
        };
        let served = match case {
            Case::Http(http) if kind == 9 => Some(http.clone()),
            _ => None,
        };
        Ok(Self { context: Owned(windlass_bench_loop_new(timers)), kind, number, flag, served })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        let Some(case) = &self.served else { return self.call(self.flag, rounds, laps) };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = OtherClient::start(case, listener.local_addr()?, rounds)?;
        // Asio closes the descriptor.
        let listener = u64::try_from(listener.into_raw_fd())?;
        self.call(listener, rounds, laps)?;
        client.finish(laps)
    }
}

impl Asio {
    fn call(&self, flag: u64, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        let laps: *const Laps = Rc::as_ptr(laps);
        // SAFETY: the context is alive, and the laps outlive the call.
        let done = unsafe {
            windlass_bench_run(self.context.0, self.kind, self.number, flag, rounds, laps)
        };
        if done { Ok(()) } else { Err("a call of Asio failed".into()) }
    }
}

/// One `io_context` for several threads.
struct OnThreads {
    case: HttpCase,
    threads: usize,
    connections: usize,
}

impl TaskSubject for OnThreads {
    /// The suite has no such loop.
    type Loop<const LIVE_TIMERS: usize> = Posted<LIVE_TIMERS>;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        match *case {
            Case::Http(HttpCase::MultiThread { threads, connections }) => {
                let case = HttpCase::MultiThread { threads, connections };
                Ok(Self { case, threads, connections })
            }
            _ => Err(Unsupported("no case with several threads").into()),
        }
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = OtherClient::start(&self.case, listener.local_addr()?, rounds)?;
        let (threads, connections) = (self.threads, self.connections);
        // SAFETY: the descriptor is that of a listener, and no other owns it: Asio closes it.
        let served = unsafe {
            windlass_bench_serve_on_threads(threads, connections, listener.into_raw_fd())
        };
        if served { client.finish(laps) } else { Err("a call of Asio failed".into()) }
    }
}

/// An `io_context` to which another thread posts.
struct Posted<const LIVE_TIMERS: usize>(Arc<Owned>);

impl<const LIVE_TIMERS: usize> LoopSubject for Posted<LIVE_TIMERS> {
    type Waker = Poster;

    fn new(_backend: &str, spin: Duration) -> Result<Self, Error> {
        if !spin.is_zero() {
            return Err(Unsupported("executors do not spin before they sleep").into());
        }
        Ok(Self(Arc::new(Owned(windlass_bench_loop_new(LIVE_TIMERS)))))
    }

    fn waker(&self) -> Poster {
        Poster(Arc::clone(&self.0))
    }

    fn run(&mut self, mut handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let handler: *mut Handler<'_> = &raw mut handler;
        // SAFETY: the context is alive, and the handler outlives the call.
        unsafe { windlass_bench_loop_run(self.0.0, handler.cast()) };
        Ok(())
    }
}

struct Poster(Arc<Owned>);

impl Waker for Poster {
    #[inline]
    fn wake(&self) {
        // SAFETY: the context is alive, because it is shared, and posting is thread-safe.
        unsafe { windlass_bench_loop_wake(self.0.0) };
    }
}
