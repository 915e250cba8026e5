//! An `EventCounter` between two processes: a fast writer, a slow reader, and a bound for the items
//! between them.
//!
//! It shows:
//! - A shared counter has three descriptors: `into_parts` returns them, `SCM_RIGHTS` of a Unix
//!   socket transfers them, and `from_parts` checks them and makes a counter of them. The state is
//!   in a page that both processes map. `/proc` is not needed.
//! - `write` waits while the count would reach the maximum, in whichever process the reader is. No
//!   acknowledgement is needed.
//! - The reader's side is a descriptor that a reactor watches. Each read takes the current count,
//!   at most the maximum less one.
//!
//! The program starts itself again as the other process, with one end of a socket as its standard
//! input.
//!
//! Run it with `cargo run --example two_processes`, and its tests with
//! `cargo test --example two_processes`.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use windlass::{
    Turn,
    fd_passing::{recv_with_fds, send_all_with_fds},
    interest,
};
use windlass_flow::{CounterParts, CounterReader, EventCounter};

/// The maximum of the counter: one more than the items that it can hold.
const MAXIMUM: u32 = 10;
const ITEMS: u32 = 200;
/// Set in the environment of the other process.
const ROLE: &str = "TWO_PROCESSES_ROLE";

/// Sends the counter's three descriptors. The counter remains usable.
fn send(socket: &UnixStream, counter: &EventCounter) -> io::Result<()> {
    let parts = counter.clone().into_parts()?;
    let fds = [parts.page.as_fd(), parts.reader.as_fd(), parts.writer.as_fd()];
    // Descriptors are sent with at least one byte.
    send_all_with_fds(socket, &[0], &fds)?;
    Ok(())
}

/// Receives the counter of the other side. Wrong descriptors only lead to an error.
fn receive(socket: impl AsFd) -> io::Result<EventCounter> {
    let (_, fds) = recv_with_fds(socket, &mut [0], 3)?;
    let [page, reader, writer] =
        fds.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(EventCounter::from_parts(CounterParts { page, reader, writer })?)
}

/// The other process: writes all items as fast as possible.
fn write_items() -> io::Result<()> {
    let counter = receive(io::stdin())?;
    for _ in 0..ITEMS {
        counter.write(1)?;
    }
    Ok(())
}

/// Starts the other process and sends it the counter.
fn start_writer(mut program: Command, counter: &EventCounter) -> io::Result<Child> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = program.env(ROLE, "writer").stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    send(&ours, counter)?;
    Ok(child)
}

/// Reads all items. Returns the number of items of each read.
fn read_items(counter: &EventCounter) -> io::Result<Vec<u32>> {
    let mut reactor = windlass_examples::builder()?.build()?;
    let (tell, told) = mpsc::channel();
    let mut left = ITEMS;
    interest()
        .read()
        .with_fd(counter.reader()?)
        .with_handler(move |reader: &mut CounterReader, mut turn: Turn<'_>| {
            // A spurious wake-up is possible, so `WouldBlock` is no error.
            let Ok(items) = reader.try_read() else {
                return;
            };
            // sleep: simulates the processing of the items, which makes this reader slow.
            std::thread::sleep(Duration::from_millis(1));
            let _ = tell.send(items);
            left -= items;
            if left == 0 {
                turn.stop();
            }
        })
        .register_into(&mut reactor)?;
    reactor.run()?;
    drop(reactor);
    Ok(told.into_iter().collect())
}

fn main() -> io::Result<()> {
    if std::env::var_os(ROLE).is_some() {
        return write_items();
    }
    let counter = EventCounter::builder().maximum(MAXIMUM).shared(true).build()?;
    let mut writer = start_writer(Command::new(std::env::current_exe()?), &counter)?;
    let reads = read_items(&counter)?;
    writer.wait()?;
    let (largest, sum) = (reads.iter().max().unwrap_or(&0), reads.iter().sum::<u32>());
    println!("{sum} items in {} reads, never more than {largest} at once", reads.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other process runs this test of the same program. Without the role it tests that an
    /// unrelated socket is an error.
    #[test]
    fn other_process() {
        if std::env::var_os(ROLE).is_some() {
            return write_items().unwrap();
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(receive(&ours).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn all_items_come_and_never_more_than_there_is_room_for() {
        let counter = EventCounter::builder().maximum(MAXIMUM).shared(true).build().unwrap();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "tests::other_process"]).stdout(Stdio::null());
        let mut writer = start_writer(program, &counter).unwrap();
        let reads = read_items(&counter).unwrap();
        assert!(writer.wait().unwrap().success());
        assert_eq!(reads.iter().sum::<u32>(), ITEMS);
        assert!(reads.iter().all(|items| (1..MAXIMUM).contains(items)), "{reads:?}");
        assert_eq!(counter.count(), Ok(0));
    }

    #[test]
    fn the_writer_waits_for_the_reader() {
        let counter = EventCounter::builder().maximum(MAXIMUM).shared(true).build().unwrap();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "tests::other_process"]).stdout(Stdio::null());
        let mut writer = start_writer(program, &counter).unwrap();
        // Wait until the counter is full. The writer cannot end then, because most items are still
        // to come.
        while counter.count().unwrap() < MAXIMUM - 1 {
            std::thread::yield_now();
        }
        assert!(writer.try_wait().unwrap().is_none());
        assert_eq!(
            read_items(&counter).unwrap()[0],
            MAXIMUM - 1,
            "a full counter is the first read"
        );
        assert!(writer.wait().unwrap().success());
    }
}
