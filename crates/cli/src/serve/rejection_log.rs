//! Log lines about refused connections.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use tracing::{debug, info};
use windlass_server::Rejected;

/// Minimum time between two lines at the server's log level, so that a flood does not fill the
/// disk.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Logs a worker's rejected connections: each one at the level of single connections, and one a
/// second at the level of the server.
#[derive(Debug, Default)]
pub(crate) struct RejectionLog {
    rate_limit: RefCell<RateLimit>,
    /// Number of rejections since the last line.
    suppressed: Cell<u64>,
}

impl RejectionLog {
    pub(crate) fn note(&self, refused: &Rejected<'_>) {
        let Rejected { peer, status, reason, .. } = *refused;
        if !self.rate_limit.borrow_mut().allows(Instant::now()) {
            self.suppressed.set(self.suppressed.get() + 1);
            debug!(%peer, status, reason, "refused");
            return;
        }
        let suppressed = self.suppressed.take();
        info!(%peer, status, reason, suppressed, "refused");
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
}
