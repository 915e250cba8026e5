//! The watched descriptors, and the counters of handlers.
#![allow(unsafe_code, reason = "eventfd, its read and write, and lending a descriptor by number")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use crate::measured::{Error, TooFewFiles};
use crate::server::files_max;

/// A watched eventfd, by its number.
///
/// The `SourcePool` owns every descriptor and outlives the implementation that watches it, so an
/// implementation neither closes nor duplicates one. With 10 000 sources and a limit of 20 000 open
/// files there is no space for a duplicate per source. Firing writes to the watched number itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source(RawFd);

impl Source {
    /// Adds one to the counter. The descriptor becomes readable, and every call is a new edge.
    #[inline]
    pub(crate) fn fire(self) {
        let one = 1_u64;
        // SAFETY: the buffer is eight readable bytes for the length of the call (eventfd(2)).
        let written = unsafe { libc::write(self.0, (&raw const one).cast(), 8) };
        assert_eq!(written, 8, "eventfd refused a write: {}", io::Error::last_os_error());
    }

    /// Reads the counter to zero. Returns whether it was above.
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

/// The eventfds of one case. It must be dropped after all holders of its sources.
#[derive(Debug)]
pub(crate) struct SourcePool(Vec<OwnedFd>);

/// Descriptors of the program itself and of the implementation, beside the sources.
const OTHER_FILES: usize = 64;

impl SourcePool {
    /// Opens `count` non-blocking eventfds with the value zero.
    ///
    /// # Errors
    ///
    /// [`TooFewFiles`] if the limit of open files is too low; otherwise the kernel's error.
    pub(crate) fn new(count: usize) -> Result<Self, Error> {
        Self::within(files_max(), count)
    }

    fn within(limit: u64, count: usize) -> Result<Self, Error> {
        if (count + OTHER_FILES) as u64 > limit {
            return Err(TooFewFiles { sources: count, limit }.into());
        }
        Ok(Self((0..count).map(|_| eventfd()).collect::<io::Result<_>>()?))
    }

    /// The descriptor of a source.
    pub(crate) fn descriptor(&self, index: usize) -> &OwnedFd {
        &self.0[index]
    }

    pub(crate) fn sources(&self) -> Vec<Source> {
        self.0.iter().map(|fd| Source(fd.as_raw_fd())).collect()
    }
}

/// Fires a source when it is dropped, on any thread, and also by a panic.
#[derive(Debug)]
pub(crate) struct Fuse(OwnedFd);

impl Fuse {
    /// A fuse of a source of a pool, by [`SourcePool::descriptor`].
    pub(crate) fn new(source: &OwnedFd) -> io::Result<Self> {
        source.try_clone().map(Self)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        Source(self.0.as_raw_fd()).fire();
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd(2) takes two integers and touches no memory of ours.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this number, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The counts of one handler: the number of its runs, and a note of the last run.
#[derive(Clone, Debug, Default)]
pub struct Hits(Rc<(Cell<u64>, Cell<u64>)>);

impl Hits {
    /// Counts a run.
    #[inline]
    pub fn add(&self) {
        self.0.0.set(self.0.0.get() + 1);
    }

    /// Counts a run and keeps a note.
    #[inline]
    fn add_noting(&self, note: u64) {
        self.add();
        self.0.1.set(note);
    }

    /// Returns the number of runs.
    pub fn count(&self) -> u64 {
        self.0.0.get()
    }

    pub(crate) fn note(&self) -> u64 {
        self.0.1.get()
    }
}

/// The body of a handler. Implementations wrap it in the callback of their library.
pub trait Handler: 'static {
    /// Called once for each event of `source`.
    fn handle(&mut self, source: Source);
}

/// The edge-triggered handler: counts without reading. The next write is a new edge anyway.
#[derive(Debug)]
pub struct Count(pub(crate) Hits);

impl Handler for Count {
    #[inline]
    fn handle(&mut self, _source: Source) {
        self.0.add();
    }
}

/// The level-triggered handler: reads the counter to zero and counts.
#[derive(Debug)]
pub struct DrainCount(pub(crate) Hits);

impl Handler for DrainCount {
    #[inline]
    fn handle(&mut self, source: Source) {
        source.drain();
        self.0.add();
    }
}

/// One of several types of handlers. The number keeps the compiler from merging their code.
#[derive(Debug)]
pub struct KindCount<const KIND: u64>(pub(crate) Hits);

impl<const KIND: u64> Handler for KindCount<KIND> {
    #[inline]
    fn handle(&mut self, _source: Source) {
        self.0.add_noting(KIND);
    }
}

/// One state for four descriptors, like a device with four queues.
///
/// Handlers need it by `&mut`. An implementation without shared state for several descriptors wraps
/// it in `Rc<RefCell<_>>`, as its users would.
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

    /// Called once for each event of the descriptor number `queue`.
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
    fn more_sources_than_open_files_are_not_supported() {
        let reason = SourcePool::within(100, 37).unwrap_err();
        assert!(reason.is::<TooFewFiles>());
        assert_eq!(
            reason.to_string(),
            "needs 37 descriptors, and the limit of open files is 100; raise it by `ulimit -n`"
        );
        assert!(SourcePool::within(100, 36).is_ok());
    }

    #[test]
    fn a_note_is_remembered_with_its_count() {
        let hits = Hits::default();
        let source = SourcePool::new(1).unwrap().sources()[0];
        KindCount::<5>(hits.clone()).handle(source);
        assert_eq!((hits.count(), hits.note()), (1, 5));
    }
}
