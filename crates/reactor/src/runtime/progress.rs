//! The reports of the progress watch, at the end of a turn.

use std::time::Duration;

use crate::{
    NoProgress, Reactor, Turn,
    api::progress::ProgressCall,
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
            let report = reactor.no_progress(found);
            call(report, Turn::new(reactor));
        }
    }

    fn no_progress(&self, found: FoundStreak) -> NoProgress {
        let cell = self.kernel.get(found.key).expect("one that was deleted is left out");
        NoProgress {
            key: found.key,
            fd: cell.fd(),
            name: self.kernel.name(cell).map(Box::from),
            turns: found.turns,
            span: Duration::from_nanos(found.span_ns),
        }
    }
}
