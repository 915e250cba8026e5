//! The other process. It gets a counter over the socket that is its standard input, and its
//! arguments select its work.

#![allow(unsafe_code, reason = "sigaction(2): a signal without a handler would end the process")]

use std::{
    io::Write as _,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_flow::{CounterReader, CounterWriter, EventCounter, ReadError, WriteError};

use crate::{hostile, passing, watch};

/// The first argument of the other process.
pub(crate) const NAME: &str = "other-process";

/// Starts a process with this role and sends it the counter. Its output can be read. The test's
/// list of processes to end includes it.
pub(crate) fn start(counter: &EventCounter, role: &[&str]) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(NAME)
        .args(role)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    watch::add(&mut child, counter, role);
    passing::send(&ours, counter);
    (child, ours)
}

pub(crate) fn main(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments == [hostile::ROLE] {
        return hostile::main(passing::receive_parts(std::io::stdin()));
    }
    let counter = passing::receive(std::io::stdin());
    match arguments[..] {
        ["write", way, units] => write(&counter, way, units.parse().unwrap()),
        ["read", way, units] => read(&counter, way, units.parse().unwrap()),
        ["write-until-told", way] => write_until_told(&counter, way),
        ["write-until-killed", way] => write_until_killed(&counter, way),
        ["read-until-killed", way] => read_until_killed(&counter, way),
        ["wait-through-signals", what] => wait_through_signals(&counter, what),
        ref other => panic!("unknown role {other:?}"),
    }
}

fn write(counter: &EventCounter, way: &str, units: u32) {
    let writer = counter.writer().unwrap();
    (0..units).for_each(|_| write_one(way, &writer));
}

fn read(counter: &EventCounter, way: &str, units: u32) {
    let reader = counter.reader().unwrap();
    let mut sum = 0;
    while sum < units {
        sum += read_some(way, &reader);
    }
    assert_eq!(sum, units);
}

/// Writes until its socket is closed, and prints the total.
fn write_until_told(counter: &EventCounter, way: &str) {
    let writer = counter.writer().unwrap();
    let stdin = std::io::stdin();
    let mut units = 0_u64;
    while poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&Timespec::default())) == Ok(0) {
        write_one(way, &writer);
        units += 1;
    }
    println!("{units}");
}

/// Prints a byte for each unit that it has written.
fn write_until_killed(counter: &EventCounter, way: &str) {
    let writer = counter.writer().unwrap();
    let mut stdout = std::io::stdout();
    loop {
        write_one(way, &writer);
        stdout.write_all(b"w").unwrap();
        stdout.flush().unwrap();
    }
}

/// Prints a byte for each unit that it has read.
fn read_until_killed(counter: &EventCounter, way: &str) {
    let reader = counter.reader().unwrap();
    let mut stdout = std::io::stdout();
    loop {
        let n = read_some(way, &reader);
        stdout.write_all(&vec![b'r'; n as usize]).unwrap();
        stdout.flush().unwrap();
    }
}

/// Waits in a call that signals interrupt all the time.
fn wait_through_signals(counter: &EventCounter, what: &str) {
    extern "C" fn nothing(_: i32) {}
    // Without `SA_RESTART` the kernel ends a wait with `EINTR`.
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, which is safe at any moment.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    println!("ready");
    let wait = Duration::from_millis(300);
    let start = Instant::now();
    match what {
        "read" => assert_eq!(counter.read(), Ok(2)),
        "write" => assert_eq!(counter.write(1), Ok(())),
        "read_timeout" => assert_eq!(counter.read_timeout(wait), Err(ReadError::TimedOut)),
        "write_timeout" => assert_eq!(counter.write_timeout(1, wait), Err(WriteError::TimedOut)),
        other => panic!("unknown call {other}"),
    }
    // Signals make the time neither shorter nor longer.
    if what.ends_with("timeout") {
        let took = start.elapsed();
        assert!(took >= wait && took < 100 * wait, "{took:?}");
    }
}

/// The timeout of a poll, after which an attempt is due. A peer can be killed after it has shown
/// "not ready" and before it looks again. If another process had made the side ready in between,
/// the wake is lost, and no order of calls can prevent that. So a process that must outlive its
/// peers polls with a timeout, and its attempt reconciles both sides.
const TRY_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(crate) fn write_one(way: &str, writer: &CounterWriter) {
    match way {
        "blocking" => writer.write(1).unwrap(),
        "polling" => loop {
            poll(&mut [PollFd::new(writer, PollFlags::IN)], Some(&TRY_AGAIN)).unwrap();
            match writer.try_write(1) {
                Ok(()) => return,
                Err(error) => assert_eq!(error, WriteError::WouldBlock),
            }
        },
        other => panic!("unknown way {other}"),
    }
}

pub(crate) fn read_some(way: &str, reader: &CounterReader) -> u32 {
    match way {
        "blocking" => reader.read().unwrap(),
        "polling" => loop {
            poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&TRY_AGAIN)).unwrap();
            match reader.try_read() {
                Ok(n) => return n,
                Err(error) => assert_eq!(error, ReadError::WouldBlock),
            }
        },
        other => panic!("unknown way {other}"),
    }
}
