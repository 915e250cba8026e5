//! The progress watch: which registrations keep the loop from sleeping without progress.
//!
//! 1. A *streak* is a run of turns in each of which a registration's handler was called and made no
//!    progress, and no turn could sleep. A gap, progress or an idle wait ends it.
//! 2. Progress is what the handler calls: it registers, changes or deletes something, sends on a
//!    stream, starts or moves a timer, defers a closure, or says so
//!    ([`Turn::made_progress`](crate::Turn::made_progress)).
//! 3. A streak is found when it has reached both limits, and again when it has reached twice as
//!    much, four times as much, and so on. It is reported at the end of the turn.
//! 4. Only descriptors of the user are watched. Streams and listeners read by themselves.

use crate::{
    Key,
    api::key::KeyKind,
    kernel::{Kernel, pending_work},
    util::arena::reserve,
};

/// When a streak is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreakLimits {
    /// At least one.
    pub(crate) turns: u64,
    pub(crate) span_ns: u64,
}

/// A registration that has made no progress for as long as the limits say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundStreak {
    pub(crate) key: Key,
    pub(crate) turns: u64,
    pub(crate) span_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Streak {
    /// [`Key::UNREGISTERED`] if there is none.
    key: Key,
    first_turn: u64,
    last_turn: u64,
    since_ns: u64,
    /// How often it was found.
    found: u32,
}

impl Streak {
    const NONE: Self =
        Self { key: Key::UNREGISTERED, first_turn: 0, last_turn: 0, since_ns: 0, found: 0 };
}

/// The streaks of a reactor that watches the progress.
#[derive(Debug)]
pub(crate) struct ProgressTable {
    limits: StreakLimits,
    /// By the index of the registration.
    streaks: Vec<Streak>,
    /// At most one for each registration.
    found: Vec<FoundStreak>,
    /// The turn's time.
    now_ns: u64,
    /// The last turn that could sleep.
    idle_turn: u64,
    /// Streams were to be served already when the handler was called.
    had_streams: bool,
}

impl ProgressTable {
    pub(crate) const fn new(limits: StreakLimits) -> Self {
        Self {
            limits,
            streaks: Vec::new(),
            found: Vec::new(),
            now_ns: 0,
            idle_turn: 0,
            had_streams: false,
        }
    }

    /// The handler of a registration has returned.
    fn judge(&mut self, key: Key, turn: u64, has_progressed: bool) {
        let Some((index, _)) = key.parts(KeyKind::Descriptor) else { return };
        let len = index as usize + 1;
        if self.streaks.len() < len {
            let missing = len - self.streaks.len();
            reserve(&mut self.streaks, missing);
            self.streaks.resize(len, Streak::NONE);
        }
        let streak = &mut self.streaks[index as usize];
        if has_progressed {
            *streak = Streak::NONE;
            return;
        }
        let goes_on =
            streak.key == key && streak.last_turn + 1 >= turn && streak.last_turn >= self.idle_turn;
        if !goes_on {
            *streak = Streak { key, first_turn: turn, since_ns: self.now_ns, ..Streak::NONE };
        }
        streak.last_turn = turn;
        let turns = turn - streak.first_turn + 1;
        let span_ns = self.now_ns.saturating_sub(streak.since_ns);
        let due = |limit: u64| limit.saturating_mul(1 << streak.found.min(63));
        if turns >= due(self.limits.turns) && span_ns >= due(self.limits.span_ns) {
            streak.found += 1;
            self.found.push(FoundStreak { key, turns, span_ns });
        }
    }
}

impl Kernel {
    /// The running handler has done something that counts as progress.
    #[inline]
    pub(crate) fn note_progress(&mut self) {
        self.has_progressed = true;
    }

    /// Before the events of this turn there was nothing to do, so the loop could sleep.
    pub(crate) fn note_idle(&mut self, turn: u64) {
        if let Some(progress) = &mut self.progress {
            progress.idle_turn = turn;
        }
    }

    /// The turn's events are dispatched at this time.
    pub(crate) fn set_progress_time(&mut self, now_ns: u64) {
        if let Some(progress) = &mut self.progress {
            progress.now_ns = now_ns;
        }
    }

    /// A handler is called.
    pub(super) fn begin_watch(&mut self) {
        self.has_progressed = false;
        let had_streams = self.has(pending_work::STREAMS);
        // Set again if the handler sends on a stream.
        self.clear(pending_work::STREAMS);
        if let Some(progress) = &mut self.progress {
            progress.had_streams = had_streams;
        }
    }

    /// The handler has returned. `key` is that of its cell, which may be deleted.
    pub(super) fn end_watch(&mut self, key: Key) {
        let has_progressed = self.has_progressed || self.has(pending_work::STREAMS);
        let is_watched = self.registry.get(key).is_some();
        let Some(progress) = &mut self.progress else { return };
        if is_watched {
            progress.judge(key, self.counters.turns, has_progressed);
        }
        if progress.had_streams {
            self.note(pending_work::STREAMS);
        }
    }

    /// The next registration that is to be reported. One that was deleted is left out.
    pub(crate) fn take_found(&mut self) -> Option<FoundStreak> {
        let progress = self.progress.as_mut()?;
        while let Some(found) = progress.found.pop() {
            if self.registry.get(found.key).is_some() {
                return Some(found);
            }
        }
        None
    }
}
