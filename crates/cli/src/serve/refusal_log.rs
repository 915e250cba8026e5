//! Log lines about refused and closed connections.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use tracing::{debug, info};
use windlass_server::{CloseReason, Closed, Rejected};

/// Minimum time between two lines at the server's log level, so that a flood does not fill the
/// disk.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Logs the connections that a worker refuses or closes: each one at the level of single
/// connections, and one a second at the level of the server.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    rate_limit: RefCell<RateLimit>,
    /// Number of rejections since the last line.
    suppressed: Cell<u64>,
}

impl RefusalLog {
    /// Returns the number of suppressed lines if a line may be written at the server's level.
    /// Otherwise this line is suppressed.
    fn take_suppressed(&self, now: Instant) -> Option<u64> {
        if !self.rate_limit.borrow_mut().allows(now) {
            self.suppressed.set(self.suppressed.get() + 1);
            return None;
        }
        Some(self.suppressed.take())
    }

    pub(crate) fn note_rejected(&self, refused: &Rejected<'_>) {
        let Rejected { peer, status, reason, .. } = *refused;
        let Some(suppressed) = self.take_suppressed(Instant::now()) else {
            debug!(%peer, status, reason, "refused");
            return;
        };
        info!(%peer, status, reason, suppressed, "refused");
    }

    /// Logs what the admin listener refuses.
    pub(crate) fn note_rejected_by_admin(&self, refused: &Rejected<'_>) {
        let Rejected { peer, status, reason, .. } = *refused;
        let Some(suppressed) = self.take_suppressed(Instant::now()) else {
            debug!(%peer, status, reason, "refused by the admin listener");
            return;
        };
        info!(%peer, status, reason, suppressed, "refused by the admin listener");
    }

    /// Logs the end of an open connection. Only ends that the server has caused have a line at its
    /// level.
    pub(crate) fn note_closed(&self, closed: &Closed<'_>) {
        let Closed { id, reason, .. } = *closed;
        let is_refusal = matches!(
            reason,
            CloseReason::Violation(_)
                | CloseReason::Idle
                | CloseReason::Lifetime
                | CloseReason::Evicted
                | CloseReason::WriteStall
                | CloseReason::Drained
        );
        if is_refusal && let Some(suppressed) = self.take_suppressed(Instant::now()) {
            return info!(%id, %reason, suppressed, "closed");
        }
        debug!(%id, %reason, "closed");
    }
}

/// The time of the last line.
#[derive(Debug, Default)]
struct RateLimit(Option<Instant>);

impl RateLimit {
    fn allows(&mut self, now: Instant) -> bool {
        let may = self.0.is_none_or(|last| now.saturating_duration_since(last) >= BETWEEN_LINES);
        if may {
            self.0 = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_a_line_a_second() {
        let (mut rate_limit, start) = (RateLimit::default(), Instant::now());
        let lines = |rate_limit: &mut RateLimit, from: u64, to: u64| {
            (from..to)
                .filter(|at| rate_limit.allows(start + Duration::from_millis(*at)))
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(&mut rate_limit, 0, 2500), [0, 1000, 2000]);
        assert!(lines(&mut rate_limit, 2900, 2999).is_empty());
        assert_eq!(lines(&mut rate_limit, 5000, 5001), [5000], "after a pause it comes at once");
    }

    #[test]
    fn a_line_says_how_many_were_suppressed() {
        let (log, start) = (RefusalLog::default(), Instant::now());
        assert_eq!(log.take_suppressed(start), Some(0));
        for at in 1..100 {
            assert_eq!(log.take_suppressed(start + Duration::from_millis(at)), None);
        }
        assert_eq!(log.take_suppressed(start + BETWEEN_LINES), Some(99));
    }
}
