//! The settings of the progress watch, and what it reports.

use core::{fmt, time::Duration};
use std::os::fd::RawFd;

use crate::{Key, Turn, util::unwind_safe_drop::UnwindSafeDrop};

/// For how long a registration is to be without progress before it is reported, unless
/// [`at_least`](ProgressWatch::at_least) says otherwise.
const SPAN: Duration = Duration::from_millis(100);

/// What is done with a registration that was found, beside the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    Nothing,
    /// Its events are stopped, for at most so long.
    BackOff(Duration),
    /// Its events come last in each turn.
    Demote,
}

pub(crate) type ProgressCall = Box<dyn FnMut(NoProgress, Turn<'_>)>;

/// Finds handlers that keep the loop from sleeping and do nothing: see
/// [`Builder::progress_watch`](crate::Builder::progress_watch).
///
/// A level-triggered descriptor whose handler does not read is ready again in every turn. The loop
/// then takes all of a processor. The watch reports a registration if, in each of the last turns,
///
/// - its descriptor was ready,
/// - the loop could not sleep, and
/// - its handler made no progress. Progress is that it registers, changes or deletes something,
///   pauses or resumes a group, starts or moves a timer, defers a closure, sends on a stream on
///   which no handler has sent in this turn, or calls [`made_progress`](Turn::made_progress). A
///   [`kick`](Turn::kick) alone is none.
///
/// The reactor cannot see what a handler reads. A handler that reads while more arrives looks the
/// same, and may call `made_progress`. Streams and listeners are not watched, because the reactor
/// reads them itself.
///
/// ```
/// use std::{os::fd::OwnedFd, time::Duration};
/// use windlass::{ProgressWatch, Reactor, Turn, interest};
/// # use rustix::event::{EventfdFlags, eventfd};
///
/// # fn main() -> std::io::Result<()> {
/// let watch = ProgressWatch::new(100, |stuck, mut turn: Turn<'_>| {
///     eprintln!("{} keeps the loop busy", stuck.name.as_deref().unwrap_or("a descriptor"));
///     turn.delete(stuck.key).expect("it is registered");
///     turn.stop();
/// });
/// let mut reactor = Reactor::builder().progress_watch(watch.at_least(Duration::ZERO)).build()?;
/// # let ready: OwnedFd = eventfd(1, EventfdFlags::CLOEXEC)?;
/// let forgets_to_read = interest().read().with_fd(ready).with_handler(|_: &mut OwnedFd| {});
/// forgets_to_read.with_name("net0 tx").register_into(&mut reactor)?;
/// reactor.run()?;
/// assert_eq!(reactor.stats().turns, 100);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct ProgressWatch {
    pub(crate) turns: u32,
    pub(crate) span: Duration,
    pub(crate) remedy: Remedy,
    pub(crate) call: UnwindSafeDrop<ProgressCall>,
}

impl ProgressWatch {
    /// Reports a registration that was ready in each of `turns` turns, at least 1, and for at least
    /// [100 ms](Self::at_least). It is reported again when both have doubled, and so on.
    ///
    /// The callback runs at the end of the turn. It may delete the registration. Its panic unwinds
    /// out of [`run_once`](crate::Reactor::run_once) as that of a handler does.
    pub fn new(turns: u32, call: impl FnMut(NoProgress, Turn<'_>) + 'static) -> Self {
        Self {
            turns: turns.max(1),
            span: SPAN,
            remedy: Remedy::Nothing,
            call: UnwindSafeDrop::new(Box::new(call)),
        }
    }

    /// Silences a registration that was found: for 10 ms, and for twice as long each time if its
    /// handler still makes no progress in the two turns after that, at most for `longest`. It is
    /// reported when the time grows. Default: off, because a handler that reads while more arrives
    /// is silenced too, unless it calls [`made_progress`](Turn::made_progress).
    ///
    /// A silence is a timer of the reactor. Errors and hang-ups are told in it, and a change of the
    /// interest ends it. One-shot registrations are not silenced. Replaces
    /// [`demote`](Self::demote).
    pub const fn back_off(mut self, longest: Duration) -> Self {
        self.remedy = Remedy::BackOff(longest);
        self
    }

    /// Calls the handler of a registration that was found after those of the others in each turn,
    /// until it makes progress or is not ready. Default: off. Turns with such a registration may
    /// allocate. Replaces [`back_off`](Self::back_off).
    pub const fn demote(mut self) -> Self {
        self.remedy = Remedy::Demote;
        self
    }

    /// For how long a registration must be without progress, by the reactor's clock. Zero leaves
    /// the number of turns alone. Default: 100 ms.
    pub const fn at_least(mut self, span: Duration) -> Self {
        self.span = span;
        self
    }
}

impl fmt::Debug for ProgressWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressWatch")
            .field("turns", &self.turns)
            .field("span", &self.span)
            .field("remedy", &self.remedy)
            .finish_non_exhaustive()
    }
}

/// A registration that keeps the loop from sleeping and makes no progress: [`ProgressWatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoProgress {
    /// The registration.
    pub key: Key,
    /// The descriptor's number at its registration.
    pub fd: RawFd,
    /// Its name, if it has one ([`Turn::set_name`]).
    pub name: Option<Box<str>>,
    /// The number of turns in a row.
    pub turns: u64,
    /// The time since the first of them.
    pub span: Duration,
    /// For how long it is silenced, if it is ([`ProgressWatch::back_off`]).
    pub silenced: Option<Duration>,
}
