//! The backends, which report the readiness of descriptors to the reactor.
//!
//! The backend is chosen when the reactor is built. It costs one branch per wait and none per
//! event.

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicU64, Ordering},
};

use std::{os::fd::OwnedFd, time::Instant};

use rustix::{io::Errno, time::Timespec};

use crate::{
    Backend, BuildError, Interest, RingError,
    cell::{CellFlags, CellPtr},
};
use batch::RawEvent;

pub(crate) mod batch;
pub(crate) mod build_error;
pub(crate) mod completions;
#[cfg_attr(miri, path = "under_miri.rs")]
mod epoll;
#[cfg(not(miri))]
mod epoll_wait;
pub(crate) mod fork;
pub(crate) mod napi;
mod poll;
#[cfg(not(miri))]
mod pollable;
pub(crate) mod ring_settings;
pub(crate) mod shared_bytes;
#[cfg(feature = "sim")]
pub(crate) mod sim;
#[cfg_attr(any(miri, not(feature = "uring")), path = "no_uring.rs")]
mod uring;
#[cfg(all(test, miri, feature = "uring"))]
#[allow(dead_code, reason = "tested here and not used")]
#[path = "uring/under_miri.rs"]
mod uring_under_miri;

use epoll::Epoll;
pub(crate) use epoll::forget;
use fork::ForkGuard;
use napi::{NapiError, NapiPoll};
use poll::Poll;
use ring_settings::{RingFeatures, RingSettings};
pub(crate) use uring::{ReceivedPart, Uring};

type Cell = CellPtr;

/// The active backend. It has a tag of its own: a tag stored in a field of a variant would cost
/// each turn instructions.
#[repr(u8)]
pub(crate) enum ActiveBackend {
    Epoll(Epoll),
    Uring(Box<Uring>),
    Poll(Poll),
    #[cfg(feature = "sim")]
    Sim(Box<sim::SimBackend>),
}

impl ActiveBackend {
    /// Creates the requested backend. [`Backend::Auto`] is epoll; `docs/ring.md` says when it may
    /// become the ring. The second value says why a ring that was preferred was not had.
    /// `room` is the size of the batch that waits write to.
    pub(crate) fn new(
        backend: Backend,
        ring: RingSettings,
        room: usize,
    ) -> Result<(Self, Option<RingError>), BuildError> {
        let created = match backend {
            Backend::Auto | Backend::Epoll => Self::epoll(room)?,
            Backend::Uring => Self::uring(ring)?,
            Backend::UringOrEpoll => match Self::uring(ring) {
                Err(BuildError::Ring(why)) => return Ok((Self::epoll(room)?, Some(why))),
                created => created?,
            },
            Backend::Poll => Self::Poll(Poll::new()),
            #[cfg(feature = "sim")]
            Backend::Sim => unreachable!("`Builder` makes it of a host"),
        };
        Ok((created, None))
    }

    /// Makes the kernel poll network cards in waits.
    pub(crate) fn set_napi(&mut self, napi: NapiPoll) -> Result<(), NapiError> {
        let napi = napi.check()?;
        match self {
            Self::Epoll(epoll) => epoll.set_napi(napi),
            Self::Uring(uring) => uring.set_napi(napi),
            _ => Err(NapiError::Backend(self.kind())),
        }
    }

    /// The backend of a reactor in a simulation.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(
        host: crate::world::Host,
        ring: RingSettings,
    ) -> Result<Self, BuildError> {
        let sim = sim::SimBackend::new(host, ring).map_err(BuildError::of_ring)?;
        Ok(Self::Sim(Box::new(sim)))
    }

    /// The simulation, if it is the backend.
    #[cfg(feature = "sim")]
    pub(crate) fn sim(&self) -> Option<&sim::SimBackend> {
        if let Self::Sim(sim) = self { Some(sim) } else { None }
    }

    #[cfg(feature = "sim")]
    pub(crate) fn sim_mut(&mut self) -> Option<&mut sim::SimBackend> {
        if let Self::Sim(sim) = self { Some(sim) } else { None }
    }

    /// The time that waits are measured by.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "sim")]
        if let Self::Sim(sim) = self {
            return sim.now();
        }
        Instant::now()
    }

    fn epoll(room: usize) -> Result<Self, BuildError> {
        let room = u32::try_from(room).expect("`Builder` checks the size");
        Ok(Self::Epoll(Epoll::new(room).map_err(BuildError::Os)?))
    }

    fn uring(settings: RingSettings) -> Result<Self, BuildError> {
        Ok(Self::Uring(Box::new(Uring::new(settings).map_err(BuildError::of_ring)?)))
    }

    /// The features that the ring has, of those requested.
    pub(crate) fn ring_features(&self) -> Option<RingFeatures> {
        match self {
            Self::Uring(uring) => Some(uring.features()),
            _ => None,
        }
    }

    /// The epoll set, if the backend is epoll.
    #[inline(always)]
    pub(crate) fn usual(&mut self) -> Option<&mut Epoll> {
        // A `match` on all variants would compile to a jump table.
        if let Self::Epoll(epoll) = self { Some(epoll) } else { None }
    }

    /// The ring, if it is the backend.
    #[inline]
    pub(crate) fn ring(&mut self) -> Option<&mut Uring> {
        match self {
            Self::Uring(uring) => Some(uring),
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.ring_mut(),
            _ => None,
        }
    }

    /// Whether streams may have requests with a ring.
    #[inline]
    pub(crate) fn has_ring(&self) -> bool {
        match self {
            Self::Uring(_) => true,
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.ring().is_some(),
            _ => false,
        }
    }

    /// The size of the ring's buffers for streams, in bytes.
    pub(crate) fn pool_bytes(&self) -> usize {
        match self {
            Self::Uring(uring) => uring.pool_bytes(),
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.ring().map_or(0, Uring::pool_bytes),
            _ => 0,
        }
    }

    pub(crate) fn kind(&self) -> Backend {
        match self {
            Self::Epoll(_) => Backend::Epoll,
            Self::Uring(_) => Backend::Uring,
            Self::Poll(_) => Backend::Poll,
            #[cfg(feature = "sim")]
            Self::Sim(_) => Backend::Sim,
        }
    }

    /// Whether another loop can wait for it.
    pub(crate) fn is_watchable(&self) -> bool {
        matches!(self, Self::Epoll(_) | Self::Uring(_))
    }

    /// Whether the backend supports an interest. If not, the registration fails with `Unsupported`
    /// before any state changes.
    pub(crate) fn supports(&self, interest: Interest) -> bool {
        match self {
            Self::Poll(_) => Poll::supports(interest),
            _ => true,
        }
    }

    /// Fails in a child of fork(2). Each backend also checks this in every wait.
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) => epoll.check_owner(),
            Self::Uring(uring) => uring.check_owner(),
            Self::Poll(poll) => poll.check_owner(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => Ok(()),
        }
    }

    /// Detects a child of fork(2), if the backend has a guard.
    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        match self {
            Self::Epoll(epoll) => epoll.fork_guard(),
            Self::Uring(uring) => uring.fork_guard(),
            Self::Poll(poll) => poll.fork_guard(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => None,
        }
    }

    /// Checks that a descriptor can be watched. A closed number and a file without a poll method
    /// are errors. Called for the user's registrations.
    pub(crate) fn check(&mut self, fd: i32) -> Result<(), Errno> {
        match self {
            // epoll reports these errors itself when the descriptor is added.
            Self::Epoll(_) => Ok(()),
            Self::Uring(uring) => {
                uring.check_owner()?;
                #[cfg(not(miri))]
                pollable::check(fd)?;
                uring.tell_host_of(fd)
            }
            #[cfg(not(miri))]
            Self::Poll(_) => pollable::check(fd),
            #[cfg(miri)]
            Self::Poll(_) => Ok(()),
            #[cfg(feature = "sim")]
            Self::Sim(_) => Ok(()),
        }
    }

    /// Watches the descriptor recorded in a cell. Its events carry the cell's address.
    pub(crate) fn add(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) => epoll.add(cell.fd(), mask, cell.expose()),
            Self::Uring(uring) => uring.add(cell),
            Self::Poll(poll) => poll.add(cell.fd(), mask, cell.expose()),
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.add(cell, mask),
        }
    }

    /// Changes the interest of a watched cell. With an unchanged mask, an edge-triggered or
    /// one-shot cell reports again. The cell records the mask after success.
    pub(crate) fn modify(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) => epoll.modify(cell.fd(), mask, cell.expose()),
            Self::Uring(uring) => uring.modify(cell, mask),
            Self::Poll(poll) => poll.modify(cell.fd(), mask, cell.expose()),
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.modify(cell, mask),
        }
    }

    /// Stops watching a cell. In a child of fork(2) it does nothing, because the watch is the
    /// parent's. An error means that the entry may persist for a file that the number no longer
    /// names.
    pub(crate) fn delete(&mut self, cell: Cell) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) => epoll.delete(cell.fd()),
            Self::Uring(uring) => {
                uring.delete(cell);
                Ok(())
            }
            Self::Poll(poll) => {
                poll.delete(cell.fd());
                Ok(())
            }
            #[cfg(feature = "sim")]
            Self::Sim(sim) => {
                sim.delete(cell);
                Ok(())
            }
        }
    }

    /// Ends the requests of a cell other than its watch, which is already gone.
    pub(crate) fn let_go(&mut self, cell: Cell) {
        if let Some(uring) = self.ring() {
            uring.delete(cell);
        }
    }

    /// Ends all watches at once, when the reactor is dropped.
    pub(crate) fn end(&mut self, cells: impl Iterator<Item = Cell>) {
        match self.ring() {
            Some(uring) => uring.end(cells),
            // An entry that remains does no harm now, so an error is ignored.
            None => cells
                .filter(|cell| !cell.has_flag(CellFlags::ABSENT))
                .for_each(|cell| _ = self.delete(cell)),
        }
    }

    /// Whether the backend holds events of cells that the next wait reports (rule 2).
    pub(crate) fn holds_events(&self) -> bool {
        match self {
            Self::Uring(uring) => uring.holds_events(),
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.ring().is_some_and(Uring::holds_events),
            _ => false,
        }
    }

    /// Waits until an event comes or the timeout expires (`None`: no limit). Writes events to the
    /// front of `room`, which must not be empty, and returns their number. `EINTR` is passed on. It
    /// also stands for a wait that ended early without an event.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        self.wait_packed(room, timeout).into()
    }

    /// The same, with the result in a register.
    #[inline(always)]
    pub(crate) fn wait_packed(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> WaitResult {
        // Needs no stack frame: the code that does is in functions of its own.
        let Self::Uring(uring) = self else { return self.wait_longer(room, timeout) };
        if uring.has_nothing_for(timeout) { Ok(0).into() } else { uring.wait(room, timeout) }
    }

    #[inline(never)]
    fn wait_longer(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> WaitResult {
        debug_assert!(!room.is_empty(), "no room for an event");
        match self {
            Self::Epoll(epoll) => epoll.wait(room, timeout).into(),
            Self::Uring(uring) => uring.wait(room, timeout),
            Self::Poll(poll) => poll.wait(room, timeout).into(),
            #[cfg(feature = "sim")]
            Self::Sim(sim) => sim.wait(room, timeout).into(),
        }
    }

    /// Acquires the resources for a later [`replace`](Self::replace), if they are available.
    pub(crate) fn reserve(&mut self) {
        if let Self::Epoll(epoll) = self {
            epoll.reserve();
        }
    }

    /// Replaces the set of watches by a new, empty one. The old set is dropped with all its
    /// entries.
    pub(crate) fn replace(&mut self) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) => epoll.replace(),
            // These backends have no stale entries, so this is never called.
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Prepares for a wait of another loop. Returns true if there is already work that the
    /// watchable descriptor may not report.
    pub(crate) fn settle(&mut self) -> Result<bool, Errno> {
        self.ring().map_or(Ok(false), Uring::settle)
    }

    /// The descriptor by which another loop can wait for this one, and a number that changes with
    /// it.
    ///
    /// Only for the outer set of [`Embedded`](crate::Embedded): rule 11 forbids any other use.
    /// `EOPNOTSUPP` if the backend has none.
    pub(crate) fn watchable(&mut self) -> Result<(rustix::fd::BorrowedFd<'_>, u64), Errno> {
        match self {
            Self::Epoll(epoll) => Ok(epoll.watchable()),
            Self::Uring(uring) => uring.watchable(),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Makes sure that the outer loop is woken for a number that was added before
    /// [`watchable`](Self::watchable) was called.
    pub(crate) fn tell_host_of(&mut self, fd: i32) -> Result<(), Errno> {
        match self {
            Self::Uring(uring) => uring.tell_host_of(fd),
            _ => Ok(()),
        }
    }

    /// The outer loop no longer waits: undoes the set-up made for [`watchable`](Self::watchable).
    pub(crate) fn leave_host(&mut self) {
        if let Self::Uring(uring) = self {
            uring.leave_host();
        }
    }

    /// Submits replies that are queued with a ring and have waited for long enough. Called before
    /// each handler.
    #[inline(always)]
    pub(crate) fn submit_if_due(&mut self) {
        if let Some(uring) = self.ring() {
            uring.submit_if_due();
        }
    }

    /// Submits queued entries, for a turn that does not end in a wait.
    pub(crate) fn submit_now(&mut self) {
        if let Some(uring) = self.ring() {
            uring.submit_now();
        }
    }

    /// Waits a bounded time for the kernel's outstanding completions of deleted cells. For the end
    /// of the reactor.
    pub(crate) fn close(&mut self) {
        if let Some(uring) = self.ring() {
            uring.close();
        }
    }
}

/// The result of a wait that is not inlined, in a register. A `Result` would be returned through
/// memory, and so would that of the inlined wait.
#[derive(Clone, Copy)]
pub(crate) struct WaitResult(isize);

impl From<Result<usize, Errno>> for WaitResult {
    #[inline]
    #[expect(clippy::cast_possible_wrap, reason = "the count is at most the length of `room`")]
    fn from(result: Result<usize, Errno>) -> Self {
        Self(match result {
            Ok(count) => count as isize,
            Err(errno) => -(errno.raw_os_error() as isize),
        })
    }
}

impl From<WaitResult> for Result<usize, Errno> {
    #[inline]
    fn from(WaitResult(outcome): WaitResult) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "it was an error's number")]
        usize::try_from(outcome).map_err(|_| Errno::from_raw_os_error(-outcome as i32))
    }
}

/// The lowest number that [`with_high_number`] tries.
const HIGH_NUMBER: i32 = 512;

/// Gives a new descriptor a high number, if possible. While a reactor runs, other code may reuse
/// low numbers: it has freed them, and may take them again by dup2(2).
pub(crate) fn with_high_number(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, HIGH_NUMBER).unwrap_or(fd)
}

/// A number that distinguishes an epoll set or a ring from all others of the process.
fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The error of the last system call made through libc.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_the_result_that_it_was_made_of() {
        for result in
            [Ok(0), Ok(1), Ok(1 << 40), Err(Errno::INTR), Err(Errno::TIME), Err(Errno::STALE)]
        {
            assert_eq!(Result::from(WaitResult::from(result)), result);
        }
    }
}
