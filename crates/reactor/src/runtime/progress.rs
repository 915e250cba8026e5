//! The reports of the progress watch, at the end of a turn.

use std::time::Duration;

use crate::{
    Key, NoProgress, Reactor, Turn,
    api::{ops::ReactorOps, progress::ProgressCall},
    cell::OWN_TIMER,
    kernel::{pending_work, progress::FoundStreak},
    util::unwind_safe_drop::UnwindSafeDrop,
};

impl Reactor {
    /// Reads the clock for the streaks of this turn.
    pub(super) fn time_progress(&mut self) {
        if self.kernel.has(pending_work::PROGRESS) {
            let now = self.timing.now_ns(&mut self.kernel);
            self.kernel.set_progress_time(now);
        }
    }

    /// Calls the callback for each registration without progress.
    pub(super) fn report_no_progress(&mut self) {
        /// Puts the callback back, even if it panics. The other reports follow in the next turn.
        struct Restore<'r>(&'r mut Reactor, Option<UnwindSafeDrop<ProgressCall>>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.on_no_progress = self.1.take();
            }
        }

        let call = self.on_no_progress.take();
        let mut restore = Restore(self, call);
        let Restore(reactor, Some(call)) = &mut restore else { return };
        while let Some(found) = reactor.kernel.take_found() {
            let silences = reactor.back_off(found.key);
            // At the longest silence, nothing new is to be told.
            if silences.is_some_and(|(last, next)| next <= last) {
                continue;
            }
            let report = reactor.no_progress(found, silences.map(|(_, next)| next));
            call(report, Turn::new(reactor));
        }
    }

    /// Silences a registration if the watch does. Returns the last silence and this one.
    fn back_off(&mut self, key: Key) -> Option<(u64, u64)> {
        let (last, next) = self.kernel.next_silence(key)?;
        // First, because nothing else would end the silence.
        let end = move |mut turn: Turn<'_>| turn.ops().kernel.end_silence(key);
        let timer = self.after(Duration::from_nanos(next), end).ok()?;
        if !self.kernel.silence(key, next) {
            _ = ReactorOps::cancel(self, timer);
            return None;
        }
        self.timing.set_group(timer, OWN_TIMER);
        Some((last, next))
    }

    fn no_progress(&self, found: FoundStreak, silence_ns: Option<u64>) -> NoProgress {
        let cell = self.kernel.get(found.key).expect("one that was deleted is left out");
        NoProgress {
            key: found.key,
            fd: cell.fd(),
            name: self.kernel.name(cell).map(Box::from),
            turns: found.turns,
            span: Duration::from_nanos(found.span_ns),
            silenced: silence_ns.map(Duration::from_nanos),
        }
    }
}
