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

/// Logs a worker's refusals: each one at the level of single connections, and one a second at the
/// level of the server.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    pace: RefCell<Pace>,
    /// Number of refusals since the last line.
    more: Cell<u64>,
}

impl Refusals {
    pub(crate) fn note(&self, refused: &Rejected<'_>) {
        let Rejected { peer, status, reason, .. } = *refused;
        if !self.pace.borrow_mut().allows(Instant::now()) {
            self.more.set(self.more.get() + 1);
            debug!(%peer, status, reason, "refused");
            return;
        }
        let unsaid = self.more.take();
        info!(%peer, status, reason, unsaid, "refused");
    }
}

/// The time of the last line.
#[derive(Debug, Default)]
struct Pace(Option<Instant>);

impl Pace {
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
        let (mut pace, start) = (Pace::default(), Instant::now());
        let lines = |pace: &mut Pace, from: u64, to: u64| {
            (from..to)
                .filter(|at| pace.allows(start + Duration::from_millis(*at)))
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(&mut pace, 0, 2500), [0, 1000, 2000]);
        assert!(lines(&mut pace, 2900, 2999).is_empty());
        assert_eq!(lines(&mut pace, 5000, 5001), [5000], "after a pause it comes at once");
    }
}
