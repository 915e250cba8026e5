//! Log lines about refused and closed connections.
//!
//! The lines are limited for the whole process: one a second of each kind, so that a flood does not
//! fill the disk and hides no other kind. Each single refusal is logged at the level of
//! connections.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tracing::{debug, info};
use windlass_server::{CloseReason, Closed, Limit, Rejected};

use super::rates::option_of;

/// Minimum time between two lines of a kind at the server's log level.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// The log of all workers and of the admin listener.
static LOG: Mutex<RefusalLog> = Mutex::new(RefusalLog(BTreeMap::new()));

/// What happened, and why: the limit, or the status of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    event: &'static str,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Named(&'static str),
    Status(u16),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            Cause::Named(name) => write!(f, "{}: {name}", self.event),
            Cause::Status(status) => write!(f, "{}: status {status}", self.event),
        }
    }
}

/// The kinds so far, of which there are a few dozen.
#[derive(Debug)]
struct RefusalLog(BTreeMap<Kind, Lines>);

#[derive(Debug)]
struct Lines {
    last: Instant,
    suppressed: u64,
}

impl RefusalLog {
    fn lock() -> MutexGuard<'static, Self> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of suppressed lines of a kind if one may be written now. Otherwise this
    /// line is suppressed.
    fn take_suppressed(&mut self, kind: Kind, now: Instant) -> Option<u64> {
        let Some(lines) = self.0.get_mut(&kind) else {
            self.0.insert(kind, Lines { last: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(lines.last) < BETWEEN_LINES {
            lines.suppressed += 1;
            return None;
        }
        lines.last = now;
        Some(core::mem::take(&mut lines.suppressed))
    }

    /// Takes the kinds whose last lines were suppressed some time ago, with their numbers.
    fn take_due(&mut self, now: Instant) -> Vec<(Kind, u64)> {
        let mut due = Vec::new();
        for (kind, lines) in &mut self.0 {
            let since = now.saturating_duration_since(lines.last);
            if lines.suppressed > 0 && since >= BETWEEN_LINES {
                lines.last = now;
                due.push((*kind, core::mem::take(&mut lines.suppressed)));
            }
        }
        due
    }
}

/// Says how many lines of which kind were left out since the last one. Called once a second, so
/// that the end of a flood is counted too.
pub(crate) fn flush() {
    let due = RefusalLog::lock().take_due(Instant::now());
    for (kind, suppressed) in due {
        info!(%kind, suppressed, "left out of the log");
    }
}

/// The option of a limit; `None` if the program has none.
fn option(limit: Option<Limit>) -> Option<&'static str> {
    limit.map(option_of).filter(|option| !option.is_empty())
}

/// The option behind a refusal.
fn option_behind(refused: &Rejected<'_>) -> Option<&'static str> {
    option(refused.limit).or(match refused.status {
        // Only tokens make a worker answer with it.
        Some(401) => Some("--token-file"),
        // Without a response, no part of the reason is text of a request.
        None if refused.reason.contains("PROXY header") => Some("--proxy-protocol-from"),
        _ => None,
    })
}

fn kind_of(event: &'static str, refused: &Rejected<'_>) -> Kind {
    let cause = match (refused.limit, refused.status) {
        (Some(limit), _) => Cause::Named(limit.name()),
        (None, Some(status)) => Cause::Status(status),
        (None, None) => Cause::Named("closed without a response"),
    };
    Kind { event, cause }
}

/// Logs a connection or request that a worker refuses.
pub(crate) fn note_rejected(refused: &Rejected<'_>) {
    let Rejected { peer, limit, status, reason, .. } = *refused;
    let limit_name = limit.map(Limit::name);
    let option = option_behind(refused);
    let kind = kind_of("refused", refused);
    let Some(suppressed) = RefusalLog::lock().take_suppressed(kind, Instant::now()) else {
        debug!(%peer, status, reason, limit = limit_name, option, "refused");
        return;
    };
    info!(%peer, status, reason, limit = limit_name, option, suppressed, "refused");
}

/// Logs what the admin listener refuses.
pub(crate) fn note_rejected_by_admin(refused: &Rejected<'_>) {
    let Rejected { peer, status, reason, .. } = *refused;
    let kind = kind_of("refused by the admin listener", refused);
    let Some(suppressed) = RefusalLog::lock().take_suppressed(kind, Instant::now()) else {
        debug!(%peer, status, reason, "refused by the admin listener");
        return;
    };
    info!(%peer, status, reason, suppressed, "refused by the admin listener");
}

/// Logs the end of an open connection. Only ends that the server has caused have a line at its
/// level.
pub(crate) fn note_closed(closed: &Closed<'_>) {
    let Closed { id, reason, .. } = *closed;
    let (name, option) = match reason {
        CloseReason::Rate(limit) => (limit.name(), option(Some(limit))),
        CloseReason::Violation(_) => ("violation", None),
        CloseReason::Idle => ("idle_timeout", Some("--idle-timeout")),
        CloseReason::Lifetime => ("lifetime_max", Some("--lifetime-max")),
        CloseReason::Evicted => ("evicted", Some("--slow, --memory")),
        CloseReason::WriteStall => ("write_stall_timeout", Some("--write-timeout")),
        CloseReason::Drained => ("drained", Some("--drain-timeout")),
        _ => return debug!(%id, %reason, "closed"),
    };
    let kind = Kind { event: "closed", cause: Cause::Named(name) };
    let Some(suppressed) = RefusalLog::lock().take_suppressed(kind, Instant::now()) else {
        return debug!(%id, %reason, option, "closed");
    };
    info!(%id, %reason, option, suppressed, "closed");
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Kind = Kind { event: "refused", cause: Cause::Named("connections_max") };
    const FOUND: Kind = Kind { event: "refused", cause: Cause::Status(404) };

    #[test]
    fn a_flood_has_a_line_a_second_and_hides_no_other_kind() {
        let (mut log, start) = (RefusalLog(BTreeMap::new()), Instant::now());
        let mut line = |kind, at| log.take_suppressed(kind, start + Duration::from_millis(at));
        assert_eq!([0, 1, 999].map(|at| line(FULL, at)), [Some(0), None, None]);
        assert_eq!(line(FOUND, 999), Some(0));
        assert_eq!([1000, 1001, 1999].map(|at| line(FULL, at)), [Some(2), None, None]);
        assert_eq!(line(FOUND, 1000), None);
        assert_eq!(line(FULL, 60_000), Some(2), "after a pause it comes at once");
    }

    #[test]
    fn the_end_of_a_flood_is_counted() {
        let (mut log, start) = (RefusalLog(BTreeMap::new()), Instant::now());
        for at in 0..10 {
            log.take_suppressed(FULL, start + Duration::from_millis(at));
        }
        assert_eq!(log.take_due(start + Duration::from_millis(900)), []);
        let due = log.take_due(start + Duration::from_secs(1));
        assert_eq!(due, [(FULL, 9)]);
        assert_eq!(due[0].0.to_string(), "refused: connections_max");
        assert_eq!(log.take_due(start + Duration::from_secs(9)), [], "once");
        assert_eq!(log.take_suppressed(FULL, start + Duration::from_secs(9)), Some(0));
        assert_eq!(FOUND.to_string(), "refused: status 404");
    }
}
