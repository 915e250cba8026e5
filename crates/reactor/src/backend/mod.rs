//! What tells the reactor which descriptors are ready.
//!
//! A backend is chosen when the reactor is built and costs one branch per wait, never one per
//! event.

use core::{
    fmt,
    mem::MaybeUninit,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{io::Errno, time::Timespec};

use crate::{BuildError, Interest, Reactor, UnknownBackend, batch::RawEvent, cell::CellPtr};

#[cfg_attr(miri, path = "under_miri.rs")]
mod epoll;
#[cfg_attr(miri, path = "fork_under_miri.rs")]
pub(crate) mod fork;
mod poll;
#[cfg(not(miri))]
mod pollable;
#[cfg_attr(miri, path = "uring/under_miri.rs")]
mod uring;

use epoll::Epoll;
pub(crate) use epoll::forget;
use fork::ForkGuard;
use poll::Poll;
pub(crate) use uring::Uring;
pub(crate) use uring::{
    BROUGHT, Copied, Done, Failed, Lent, NO_BUFFER, PoolSize, Rest, RingSettings,
};
pub use uring::{RingError, RingFeature, RingFeatures};

/// How the reactor learns of readiness.
///
/// All keep one contract; what one does not have, it refuses:
///
/// | | [`Epoll`](Self::Epoll) | [`Uring`](Self::Uring) | [`Poll`](Self::Poll) |
/// |---|---|---|---|
/// | level-triggered, one-shot, empty interest | yes | yes | yes |
/// | [edge-triggered](crate::Interest::edge_triggered) | yes | yes | `Unsupported` |
/// | [exclusive](crate::Interest::exclusive) | yes | yes | `Unsupported` |
/// | [wakeup](crate::Interest::wakeup) | yes | without effect | without effect |
/// | streams, listeners, timers, remotes, groups | yes | yes | yes |
/// | [`embed`](crate::Reactor::embed) | yes | yes | `EOPNOTSUPP` |
/// | a wait costs | what is ready | what is ready | what is registered |
/// | a number closed behind the reactor's back | silent, or the old file's events while a duplicate lives | the old file's events | one error event |
/// | a number replaced behind the reactor's back | the same | the same | the new file's events |
/// | needs Linux | 5.11 (2.6.27 with timeouts in milliseconds) | 5.13, best 6.1 | 2.6.17 |
///
/// A backend has a name, which [`Display`](fmt::Display) writes and [`FromStr`] reads: `auto`,
/// `epoll`, `uring`, `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Backend {
    /// [`Epoll`](Self::Epoll). A ring is chosen by its name: containers often forbid rings, and a
    /// program should run on the same backend where it is developed and where it serves.
    #[default]
    Auto,
    /// epoll(7).
    Epoll,
    /// io_uring(7), since Linux 5.13; faster since 6.1.
    Uring,
    /// ppoll(2), for sandboxes that have neither of the others, and for comparison. It takes no
    /// more descriptors than `RLIMIT_NOFILE` says: a process that lowers the limit below what is
    /// registered gets `EINVAL` from [`Reactor::run_once`](crate::Reactor::run_once).
    Poll,
}

impl Backend {
    const ALL: [Self; 4] = [Self::Auto, Self::Epoll, Self::Uring, Self::Poll];

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Epoll => "epoll",
            Self::Uring => "uring",
            Self::Poll => "poll",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL.into_iter().find(|backend| backend.name() == name).ok_or(UnknownBackend)
    }
}

type Cell = CellPtr<Reactor>;

/// In an event's conditions: it is a completion of a stream's, and the rest is for the ring alone.
pub(crate) const COMPLETION: u32 = 1 << 27;

/// The backend at work.
// With a tag of its own: one that stands in a field of a variant costs each turn three instructions
// to read.
#[repr(u8)]
pub(crate) enum Driver {
    Epoll(Epoll),
    /// Without epoll_pwait2(2). A variant of its own, so that a turn asks once for the backend and
    /// the call.
    OldEpoll(Epoll),
    Uring(Box<Uring>),
    Poll(Poll),
}

impl Driver {
    /// The backend that was asked for. [`Backend::Auto`] is epoll; ARCHITECTURE.md says when it may
    /// become the ring.
    pub(crate) fn new(backend: Backend, ring: RingSettings) -> Result<Self, BuildError> {
        Ok(match backend {
            Backend::Auto | Backend::Epoll => Self::epoll()?,
            Backend::Uring => Self::Uring(Box::new(Uring::new(ring).map_err(build_error)?)),
            Backend::Poll => Self::Poll(Poll::new()),
        })
    }

    fn epoll() -> Result<Self, BuildError> {
        let epoll = Epoll::new().map_err(BuildError::Os)?;
        Ok(if epoll.has_pwait2() { Self::Epoll(epoll) } else { Self::OldEpoll(epoll) })
    }

    /// What a ring has of what it was asked for.
    pub(crate) fn ring_features(&self) -> Option<RingFeatures> {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => None,
            Self::Uring(uring) => Some(uring.features()),
        }
    }

    /// The ring, if it is one.
    #[inline]
    pub(crate) fn ring(&mut self) -> Option<&mut Uring> {
        match self {
            Self::Uring(uring) => Some(uring),
            _ => None,
        }
    }

    /// How many bytes of buffers the ring has for streams.
    pub(crate) fn pool_bytes(&self) -> usize {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => 0,
            Self::Uring(uring) => uring.pool_bytes(),
        }
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) => Backend::Epoll,
            Self::Uring(_) => Backend::Uring,
            Self::Poll(_) => Backend::Poll,
        }
    }

    /// Whether the backend can keep an interest. What it cannot is refused as `Unsupported`, before
    /// anything is written down.
    pub(crate) fn supports(&self, interest: Interest) -> bool {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Uring(_) => true,
            Self::Poll(_) => Poll::supports(interest),
        }
    }

    /// Refuses to work in a child of fork(2). Each backend also asks for itself, in every wait.
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => epoll.check_owner(),
            Self::Uring(uring) => uring.check_owner(),
            Self::Poll(poll) => poll.check_owner(),
        }
    }

    /// What tells a child of fork(2), where it can be had.
    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => epoll.fork_guard(),
            Self::Uring(uring) => uring.fork_guard(),
            Self::Poll(poll) => poll.fork_guard(),
        }
    }

    /// Whether a number can be watched at all: closed ones cannot, nor files without a poll method.
    /// Asked for what the user registers.
    pub(crate) fn check(&mut self, fd: i32) -> Result<(), Errno> {
        match self {
            // It says so itself when the number is added.
            Self::Epoll(_) | Self::OldEpoll(_) => Ok(()),
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
        }
    }

    /// Watches the descriptor that a cell has noted; its events carry the cell's address.
    pub(crate) fn add(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => epoll.add(cell.fd(), mask, cell.expose()),
            Self::Uring(uring) => uring.add(cell),
            Self::Poll(poll) => poll.add(cell.fd(), mask, cell.expose()),
        }
    }

    /// Changes what a watched cell is watched for. With the mask that it has, edge-triggered or
    /// one-shot, it reports anew. The cell notes the mask when this was successful.
    pub(crate) fn modify(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => {
                epoll.modify(cell.fd(), mask, cell.expose())
            }
            Self::Uring(uring) => uring.modify(cell, mask),
            Self::Poll(poll) => poll.modify(cell.fd(), mask, cell.expose()),
        }
    }

    /// Ends the watch. In a child of fork(2) it is the parent's, and nothing is done. An error
    /// means that its entry may live on under a file that the number no longer names.
    pub(crate) fn delete(&mut self, cell: Cell) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => epoll.delete(cell.fd()),
            Self::Uring(uring) => {
                uring.delete(cell);
                Ok(())
            }
            Self::Poll(poll) => {
                poll.delete(cell.fd());
                Ok(())
            }
        }
    }

    /// Ends what a cell has under way beside its watch, which it does not have now.
    pub(crate) fn let_go(&mut self, cell: Cell) {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => {}
            Self::Uring(uring) => uring.delete(cell),
        }
    }

    /// Ends all watches at once. For the reactor's end.
    pub(crate) fn end(&mut self, cells: impl Iterator<Item = Cell>) {
        match self {
            Self::Uring(uring) => uring.end(cells),
            // What has become of its entry is nobody's affair any more.
            _ => cells.for_each(|cell| _ = self.delete(cell)),
        }
    }

    /// Whether events of cells wait in the driver, to be reported by the next wait (rule 2).
    pub(crate) fn holds_events(&self) -> bool {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => false,
            Self::Uring(uring) => uring.holds_events(),
        }
    }

    /// Waits until something is ready or the time is over (`None`: for ever), and says how many
    /// events it wrote to the front of `room`, which is not empty. `EINTR` comes back as it is; it
    /// also stands for a wait that ended without an event and before its time.
    #[inline(always)]
    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // Two instructions; a `match` of all would be a table of jumps.
        if let Self::Epoll(epoll) = self {
            epoll.wait(room, timeout)
        } else {
            self.wait_apart(room, timeout).into()
        }
    }

    #[inline(never)]
    fn wait_apart(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Outcome {
        // It needs no frame: what does is a call away.
        let has_nothing =
            if let Self::Uring(uring) = self { uring.has_nothing_for(timeout) } else { false };
        if has_nothing { Ok(0).into() } else { self.wait_longer(room, timeout) }
    }

    #[inline(never)]
    fn wait_longer(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Outcome {
        match self {
            Self::Epoll(epoll) => epoll.wait(room, timeout).into(),
            Self::Uring(uring) => uring.wait(room, timeout).into(),
            Self::OldEpoll(epoll) => epoll.wait_in_milliseconds(room, timeout).into(),
            Self::Poll(poll) => poll.wait(room, timeout).into(),
        }
    }

    /// Gets hold of what a later [`replace`](Self::replace) needs, if it can be had.
    pub(crate) fn reserve(&mut self) {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => epoll.reserve(),
            Self::Uring(_) | Self::Poll(_) => {}
        }
    }

    /// A new, empty set of watches in place of the old one, which is forgotten with all its
    /// entries.
    pub(crate) fn replace(&mut self) -> Result<(), Errno> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => epoll.replace(),
            // Without stale entries nobody asks for it.
            Self::Uring(_) | Self::Poll(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Makes ready for another loop's wait. True when there is something to do already that the
    /// watchable descriptor may not tell of.
    pub(crate) fn settle(&mut self) -> Result<bool, Errno> {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => Ok(false),
            Self::Uring(uring) => uring.settle(),
        }
    }

    /// The descriptor by which another loop can wait for this one, and a number that changes with
    /// it.
    ///
    /// For the outer set of [`Embedded`](crate::Embedded) alone: rule 11 forbids to show it to
    /// anybody else. `EOPNOTSUPP` where there is none.
    pub(crate) fn watchable(&mut self) -> Result<(rustix::fd::BorrowedFd<'_>, u64), Errno> {
        match self {
            Self::Epoll(epoll) | Self::OldEpoll(epoll) => Ok(epoll.watchable()),
            Self::Uring(uring) => uring.watchable(),
            Self::Poll(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Makes sure that another loop hears of a number that was added before it asked for
    /// [`watchable`](Self::watchable).
    pub(crate) fn tell_host_of(&mut self, fd: i32) -> Result<(), Errno> {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => Ok(()),
            Self::Uring(uring) => uring.tell_host_of(fd),
        }
    }

    /// No other loop waits any more: what was set up for [`watchable`](Self::watchable) is given
    /// up.
    pub(crate) fn leave_host(&mut self) {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => {}
            Self::Uring(uring) => uring.leave_host(),
        }
    }

    /// Submits what was queued: for a turn that does not end in a wait.
    pub(crate) fn submit_now(&mut self) {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => {}
            Self::Uring(uring) => uring.submit_now(),
        }
    }

    /// Gets rid of what the kernel still owes to deleted cells, for a bounded time. For the
    /// reactor's end.
    pub(crate) fn close(&mut self) {
        match self {
            Self::Epoll(_) | Self::OldEpoll(_) | Self::Poll(_) => {}
            Self::Uring(uring) => uring.close(),
        }
    }
}

/// What a demanded ring that cannot be had is to the builder. A descriptor that the kernel refuses
/// is the same error on every backend.
fn build_error(why: RingError) -> BuildError {
    match why {
        RingError::Os(errno @ (Errno::MFILE | Errno::NFILE)) => BuildError::Os(errno),
        why => BuildError::Ring(why),
    }
}

/// What a wait that is not in line says, in a register: a result would go by way of memory, and
/// with it that of the one that is in line.
#[derive(Clone, Copy)]
struct Outcome(isize);

impl From<Result<usize, Errno>> for Outcome {
    #[inline]
    fn from(result: Result<usize, Errno>) -> Self {
        Self(match result {
            // No more than there is room for, which memory has.
            Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
            Err(errno) => -(errno.raw_os_error() as isize),
        })
    }
}

impl From<Outcome> for Result<usize, Errno> {
    #[inline]
    fn from(Outcome(outcome): Outcome) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "it was an error's number")]
        usize::try_from(outcome).map_err(|_| Errno::from_raw_os_error(-outcome as i32))
    }
}

/// Tells an epoll set or a ring from any other that the process has had.
#[cfg_attr(miri, allow(dead_code, reason = "Miri has neither"))]
fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What the last system call that went by way of libc said.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_read_as_it_is_written() {
        for backend in Backend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        for name in ["", "Epoll", "epoll ", "io_uring", "select"] {
            assert_eq!(name.parse::<Backend>(), Err(UnknownBackend), "{name:?}");
        }
        assert_eq!(format!("[{:>6}]", Backend::Poll), "[  poll]");
    }

    #[test]
    fn an_outcome_is_the_result_that_it_was_made_of() {
        for result in
            [Ok(0), Ok(1), Ok(1 << 40), Err(Errno::INTR), Err(Errno::TIME), Err(Errno::STALE)]
        {
            assert_eq!(Result::from(Outcome::from(result)), result);
        }
    }
}
