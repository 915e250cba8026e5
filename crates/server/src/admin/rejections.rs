//! What the admin listener rejects: counts, and reports to the application.

use core::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use windlass::stream::Address;

use crate::api::Rejected;

/// Why the admin listener rejected a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectionCause {
    BadRequest,
    Timeout,
    Host,
    Token,
    Path,
    Method,
    Parameter,
    Tls,
    ConnectionsMax,
}

impl RejectionCause {
    /// The values of the label `reason`, in the order of the counts.
    pub(super) const TEXTS: [&'static str; 9] = [
        "bad_request",
        "timeout",
        "bad_host",
        "token",
        "not_found",
        "method",
        "bad_parameter",
        "tls",
        "connections_max",
    ];
}

/// Called for each rejection, on the listener's thread.
pub(super) type OnRejected = Box<dyn Fn(&Rejected<'_>) + Send>;

/// The counts of one listener. One thread updates and reads them.
pub(super) struct Rejections {
    counts: [Cell<u64>; RejectionCause::TEXTS.len()],
    on_rejected: RefCell<Option<OnRejected>>,
}

impl Rejections {
    pub(super) fn new(on_rejected: Option<OnRejected>) -> Self {
        Self { counts: Default::default(), on_rejected: RefCell::new(on_rejected) }
    }

    /// The counts with the values of the label `reason`.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        RejectionCause::TEXTS.into_iter().zip(self.counts.iter().map(Cell::get))
    }

    /// Counts a rejection, and reports it with the status and the reason that the peer reads.
    #[cold]
    pub(super) fn note(
        &self,
        cause: RejectionCause,
        peer: &Address,
        status: Option<u16>,
        reason: &str,
    ) {
        let count = &self.counts[cause as usize];
        count.set(count.get() + 1);
        // No borrow is held while the function runs.
        let Some(on_rejected) = self.on_rejected.take() else { return };
        // The panic hook reports a panic. The listener must not end by it.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            on_rejected(&Rejected { peer, limit: None, status, reason });
        }));
        self.on_rejected.replace(Some(on_rejected));
    }
}
