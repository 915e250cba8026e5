//! The log's lines about connections that did not come to be.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use tracing::{debug, info};
use windlass_server::Refused;

/// At most one line in this time is for who looks at the server's doings as a whole; a flood is not
/// to fill his disk.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// What a worker tells of refusals: each at the level of single connections, and one a second at
/// that of the server.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    pace: RefCell<Pace>,
    /// How many there have been since the last line.
    more: Cell<u64>,
}

impl Refusals {
    pub(crate) fn note(&self, refused: &Refused<'_>) {
        let Refused { peer, status, reason, .. } = *refused;
        if !self.pace.borrow_mut().allows(Instant::now()) {
            self.more.set(self.more.get() + 1);
            debug!(%peer, status, reason, "refused");
            return;
        }
        let unsaid = self.more.take();
        info!(%peer, status, reason, unsaid, "refused");
    }
}

/// When the last line was.
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
