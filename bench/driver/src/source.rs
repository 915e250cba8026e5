//! The descriptors that are watched, and the counters that handlers bump.
#![allow(unsafe_code, reason = "eventfd, its read and write, and lending a descriptor by number")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// A watched eventfd, lent by number.
///
/// The `SourcePool` owns every descriptor and outlives the implementation that watches them, so that an
/// implementation neither closes nor duplicates one: with 10 000 sources and a limit of 20 000 open
/// files there is no room for a writing duplicate per source. Firing writes to the same number that
/// is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source(RawFd);

impl Source {
    /// Adds one to the counter, which makes the descriptor readable (and is a new edge every time).
    #[inline]
    pub(crate) fn fire(self) {
        let one = 1_u64;
        // SAFETY: the buffer is eight readable bytes for the length of the call (eventfd(2)).
        let written = unsafe { libc::write(self.0, (&raw const one).cast(), 8) };
        assert_eq!(written, 8, "eventfd refused a write: {}", io::Error::last_os_error());
    }

    /// Reads the counter back to zero; true if it was above.
    #[inline]
    pub fn drain(self) -> bool {
        let mut count = 0_u64;
        // SAFETY: the buffer is eight writable bytes for the length of the call (eventfd(2)).
        unsafe { libc::read(self.0, (&raw mut count).cast(), 8) == 8 }
    }
}

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the pool that made this source keeps the descriptor open until the implementation
        // under test, which holds the sources, has been dropped (see `SourcePool`).
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Owns the eventfds of one case. Whoever holds one drops it after every holder of its sources.
#[derive(Debug)]
pub(crate) struct SourcePool(Vec<OwnedFd>);

impl SourcePool {
    /// Opens `count` eventfds, non-blocking, at zero.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        (0..count).map(|_| eventfd()).collect::<io::Result<_>>().map(Self)
    }

    pub(crate) fn sources(&self) -> Vec<Source> {
        self.0.iter().map(|fd| Source(fd.as_raw_fd())).collect()
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd(2) takes two integers and touches no memory of ours.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this number, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What one handler reports: how often it ran, and a note of the last run.
#[derive(Clone, Debug, Default)]
pub struct Hits(Rc<(Cell<u64>, Cell<u64>)>);

impl Hits {
    /// One more run.
    #[inline]
    pub fn add(&self) {
        self.0.0.set(self.0.0.get() + 1);
    }

    /// One more run, which leaves a note.
    #[inline]
    fn add_noting(&self, note: u64) {
        self.add();
        self.0.1.set(note);
    }

    /// How often the handler ran.
    pub fn count(&self) -> u64 {
        self.0.0.get()
    }

    pub(crate) fn note(&self) -> u64 {
        self.0.1.get()
    }
}

/// The body of a handler. Implementations wrap it in whatever their library calls.
pub trait Handler: 'static {
    /// Called once per event of `source`.
    fn handle(&mut self, source: Source);
}

/// Edge-triggered: counts, and never reads. The next write is a new edge all the same.
#[derive(Debug)]
pub struct Count(pub(crate) Hits);

impl Handler for Count {
    #[inline]
    fn handle(&mut self, _source: Source) {
        self.0.add();
    }
}

/// Level-triggered: reads the counter to zero, then counts.
#[derive(Debug)]
pub struct DrainCount(pub(crate) Hits);

impl Handler for DrainCount {
    #[inline]
    fn handle(&mut self, source: Source) {
        source.drain();
        self.0.add();
    }
}

/// One of several handler types: the number keeps the compiler from merging their code.
#[derive(Debug)]
pub struct KindCount<const KIND: u64>(pub(crate) Hits);

impl<const KIND: u64> Handler for KindCount<KIND> {
    #[inline]
    fn handle(&mut self, _source: Source) {
        self.0.add_noting(KIND);
    }
}

/// One state behind four descriptors, as a device with its queues has it.
///
/// Handlers need it by `&mut`: an implementation without shared state for several descriptors wraps
/// it in `Rc<RefCell<_>>`, as its users do.
#[derive(Debug)]
pub struct Device {
    total: u64,
    queues: [Hits; 4],
    drain: bool,
}

impl Device {
    pub(crate) fn new(queues: [Hits; 4], drain: bool) -> Self {
        Self { total: 0, queues, drain }
    }

    /// Called once per event of the descriptor number `queue`.
    #[inline]
    pub fn handle(&mut self, queue: usize, source: Source) {
        if self.drain {
            source.drain();
        }
        self.total += 1;
        self.queues[queue].add_noting(self.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fired_source_drains_once() {
        let pool = SourcePool::new(2).unwrap();
        let sources = pool.sources();
        sources[1].fire();
        sources[1].fire();
        assert!(!sources[0].drain());
        assert!(sources[1].drain());
        assert!(!sources[1].drain());
    }

    #[test]
    fn a_note_is_remembered_with_its_count() {
        let hits = Hits::default();
        let source = SourcePool::new(1).unwrap().sources()[0];
        KindCount::<5>(hits.clone()).handle(source);
        assert_eq!((hits.count(), hits.note()), (1, 5));
    }
}
