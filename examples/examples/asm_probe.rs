//! One descriptor, one handler, one turn: the smallest program that dispatches an event.
//!
//! `cargo xtask asm dispatch` disassembles the inner loop and the handler's trampoline as they are
//! compiled into this program. Running the program shows that the disassembled code works. The
//! handler does almost nothing, so that the trampoline is readable.
#![deny(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use windlass::{Reactor, interest};

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let (mut sender, receiver) = UnixStream::pair()?;
    let calls = Rc::new(Cell::new(0_u64));
    let counter = Rc::clone(&calls);
    interest()
        .read()
        .with_fd(receiver)
        .with_handler(move |_: &mut UnixStream| counter.set(counter.get() + 1))
        .register_into(&mut reactor)?;
    sender.write_all(b"x")?;
    let events = reactor.run_once(None)?;
    println!("{events} event, {} call", calls.get());
    Ok(())
}
