//! The bounded channel and the UTF-8 validation of the standard library.

#![deny(unsafe_code)]

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use windlass_bench_driver::utf8::Utf8Subject;
use windlass_bench_driver::wakeup::{CallSubject, Caller, answer};
use windlass_bench_driver::{Error, Program, Suite, Unsupported, channel_queue};

fn main() -> ExitCode {
    let suites = vec![Suite::call::<Calls>(), Suite::post::<Queue>(), Suite::utf8::<FromUtf8>()];
    // The name of the toolchain that built this, if rustup called cargo.
    Program { version: option_env!("RUSTUP_TOOLCHAIN").unwrap_or("unknown").to_owned(), suites }
        .serve()
}

channel_queue!(SyncSender, Receiver, sync_channel);

type Closure = Box<dyn FnOnce() + Send>;

/// A channel of boxed closures. Each sends its result through a channel of its own. `None` ends the
/// loop.
struct Calls {
    sender: SyncSender<Option<Closure>>,
    receiver: Receiver<Option<Closure>>,
}

impl CallSubject for Calls {
    type Caller = CallerEnd;

    fn new(_backend: &str, bound: usize, spin: Duration) -> Result<Self, Error> {
        if !spin.is_zero() {
            return Err(Unsupported("how long a channel spins is its own choice").into());
        }
        let (sender, receiver) = sync_channel(bound);
        Ok(Self { sender, receiver })
    }

    fn caller(&self) -> CallerEnd {
        CallerEnd(self.sender.clone())
    }

    fn run(&mut self) -> Result<(), Error> {
        while let Some(closure) = self.receiver.recv()? {
            closure();
        }
        Ok(())
    }
}

struct CallerEnd(SyncSender<Option<Closure>>);

impl Caller for CallerEnd {
    fn call(&mut self, argument: u64) -> Result<u64, Error> {
        let (reply, replied) = sync_channel(1);
        let closure = move || {
            // The receiver exists, because the caller waits.
            let _ = reply.send(answer(argument));
        };
        self.0.send(Some(Box::new(closure)))?;
        Ok(replied.recv()?)
    }

    fn stop(self) {
        // This fails only if the loop has already ended.
        let _ = self.0.send(None);
    }
}

struct FromUtf8;

impl Utf8Subject for FromUtf8 {
    fn is_valid(text: &[u8], _: &[usize]) -> bool {
        std::str::from_utf8(text).is_ok()
    }
}
