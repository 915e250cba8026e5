//! Helpers of the tests.

use std::{
    sync::mpsc,
    thread::{Scope, ScopedJoinHandle},
};

use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    thread::gettid,
};
use windlass_flow::{CounterReader, CounterWriter, EventCounter};

/// Where a counter's state is stored, and which handle uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Threads,
    Shared,
    /// Readers and writers each have a handle built from parts, as in another process.
    Parts,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Threads, Kind::Shared, Kind::Parts];

/// A counter, with the handle of its readers and that of its writers.
pub(crate) fn counters(
    kind: Kind,
    maximum: u32,
    initial: u32,
    semaphore: bool,
) -> (EventCounter, EventCounter) {
    let builder = EventCounter::builder().maximum(maximum).initial(initial).semaphore(semaphore);
    let counter = builder.shared(kind != Kind::Threads).build().unwrap();
    let again = match kind {
        Kind::Threads | Kind::Shared => counter.clone(),
        Kind::Parts => EventCounter::from_parts(counter.clone().into_parts().unwrap()).unwrap(),
    };
    (counter, again)
}

/// The two sides, and an epoll set that watches them level-triggered.
pub(crate) struct Sides {
    pub(crate) reader: CounterReader,
    pub(crate) writer: CounterWriter,
    epoll: std::os::fd::OwnedFd,
}

impl Sides {
    pub(crate) fn new(counter: &EventCounter) -> Self {
        let (reader, writer) = (counter.reader().unwrap(), counter.writer().unwrap());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &reader, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        let room = epoll::EventFlags::from_bits_retain(room_of(&writer).bits().into());
        epoll::add(&epoll, &writer, epoll::EventData::new_u64(1), room).unwrap();
        Self { reader, writer, epoll }
    }

    /// The reports of poll(2) and epoll(7) now: (reader's side readable, writer's side writable).
    pub(crate) fn levels(&self) -> (bool, bool) {
        let room = room_of(&self.writer);
        let mut set = [PollFd::new(&self.reader, PollFlags::IN), PollFd::new(&self.writer, room)];
        poll(&mut set, Some(&Timespec::default())).unwrap();
        let levels = (set[0].revents().contains(PollFlags::IN), set[1].revents().contains(room));
        let mut events = Vec::with_capacity(2);
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default())).unwrap();
        let has = |data| events.iter().any(|event: &epoll::Event| event.data.u64() == data);
        assert_eq!((has(0), has(1)), levels, "epoll differs from poll");
        levels
    }

    /// Checks that the levels match the count. No operation may be running.
    pub(crate) fn assert_exact(&self) {
        let counter = self.reader.counter();
        let (count, maximum) = (counter.count().unwrap(), counter.maximum().unwrap());
        assert_eq!(self.levels(), (count > 0, count < maximum - 1), "{count} of {maximum}");
    }
}

/// Waits until the reader's side is readable.
pub(crate) fn wait_readable(reader: &CounterReader) {
    wait(PollFd::new(reader, PollFlags::IN));
}

/// Waits until the writer's side is writable.
pub(crate) fn wait_writable(writer: &CounterWriter) {
    wait(PollFd::new(writer, room_of(writer)));
}

/// The event that the writer's side is polled for.
pub(crate) fn room_of(writer: &CounterWriter) -> PollFlags {
    if writer.counter().is_shared() { PollFlags::IN } else { PollFlags::OUT }
}

fn wait(fd: PollFd<'_>) {
    while poll(&mut [fd.clone()], None) == Err(rustix::io::Errno::INTR) {}
}

/// Starts a thread that is about to wait. Returns when the kernel reports that it sleeps.
pub(crate) fn spawn_asleep<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    f: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (sender, receiver) = mpsc::channel();
    let thread = scope.spawn(move || {
        sender.send(gettid()).unwrap();
        f()
    });
    let stat = format!("/proc/self/task/{}/stat", receiver.recv().unwrap().as_raw_nonzero());
    // The state follows the name, which is in parentheses. A thread that has ended has no file.
    while !thread.is_finished() {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")) {
            break;
        }
        std::thread::yield_now();
    }
    thread
}
