//! The counts, for [`StatsHandle`](crate::StatsHandle) and the admin listener.
//!
//! 1. One thread updates them, so they are plain cells. Other threads read a copy.
//! 2. The values of each label are fixed here. None comes from a peer, so no peer can add a time
//!    series.

use core::cell::Cell;
use std::time::Duration;

use windlass::{Backend, stream::TlsFailure};
use windlass_ws::{CloseCode, Violation};

use super::tls::{TlsFailureLabel, TlsVersion};
use crate::api::{CloseReason, Counter, Limit, ServerStats};

/// Declares a label: an enum with the text of each value.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($value:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($value,)* }

        impl $name {
            /// The text of each value, in the order of the counts.
            pub(crate) const TEXTS: &'static [&'static str] = &[$($text,)*];
        }
    };
}
pub(super) use label;

label! {
    /// How a request to open a WebSocket ended.
    HandshakeResult {
        Accepted = "accepted",
        BadRequest = "bad_request",
        HeadLimit = "head_limit",
        BadHost = "bad_host",
        BadOrigin = "bad_origin",
        NotFound = "not_found",
        Application = "application",
        AddressLimit = "address_limit",
        AddressRate = "address_rate",
        AddressRequestRate = "address_request_rate",
        RequestRate = "request_rate",
        Full = "full",
        BadProxyHeader = "bad_proxy_header",
        LateProxyHeader = "late_proxy_header",
        Memory = "memory",
        Draining = "draining",
        Timeout = "timeout",
        Lost = "lost",
    }
}

label! {
    /// Why an open connection ended.
    ClosedLabel {
        Peer = "peer",
        Local = "local",
        Violation = "violation",
        Idle = "idle",
        Lifetime = "lifetime",
        Rate = "rate",
        Evicted = "evicted",
        WriteStall = "write_stall",
        Lost = "lost",
        Failed = "failed",
        Drained = "drained",
        Tls = "tls",
        Aborted = "aborted",
    }
}

label! {
    /// A limit of the protocol that a peer has exceeded.
    ExceededLimit {
        Frame = "frame_max",
        Message = "message_max",
        Fragments = "fragments_max",
        Controls = "controls_per_second_max",
        InflateRatio = "inflate_ratio_max",
    }
}

label! {
    /// The state of a connection.
    StateLabel {
        Handshake = "handshake",
        Open = "open",
        Closing = "closing",
    }
}

label! {
    /// The kind of socket. TLS is over either kind.
    Transport {
        Tcp = "tcp",
        Unix = "unix",
        Adopted = "adopted",
        Tls = "tls",
    }
}

/// The values of the label `code`. Codes that an application or a peer may choose are grouped.
pub(crate) const CLOSE_CODES: [&str; 17] = [
    "1000",
    "1001",
    "1002",
    "1003",
    "1005",
    "1006",
    "1007",
    "1008",
    "1009",
    "1010",
    "1011",
    "1012",
    "1013",
    "1014",
    "3000-3999",
    "4000-4999",
    "other",
];

/// Returns the index of a code in [`CLOSE_CODES`].
fn close_code_index(code: CloseCode) -> usize {
    let other = CLOSE_CODES.len() - 1;
    match code.get() {
        code @ 1000..=1003 => usize::from(code - 1000),
        code @ 1005..=1014 => usize::from(code - 1001),
        3000..=3999 => other - 2,
        4000..=4999 => other - 1,
        _ => other,
    }
}

/// How a connection has closed.
pub(crate) struct Closing {
    pub(crate) reason: CloseReason,
    /// The code of the peer's Close frame.
    pub(crate) code: Option<CloseCode>,
    /// The code with which this side closed the connection.
    pub(crate) own_code: Option<CloseCode>,
}

/// Returns the code with which a connection closed (RFC 6455 section 7.1.5): that of the first
/// Close frame of either side, 1005 if it had no code, 1006 without such a frame.
fn close_code(closing: &Closing) -> CloseCode {
    match closing.reason {
        CloseReason::Peer => closing.code.unwrap_or(CloseCode::NO_STATUS),
        CloseReason::Violation(violation) => violation.close_code(),
        CloseReason::Idle | CloseReason::Lifetime => CloseCode::GOING_AWAY,
        CloseReason::Rate(_) => CloseCode::POLICY_VIOLATION,
        CloseReason::Local => closing.own_code.unwrap_or(CloseCode::ABNORMAL),
        _ => CloseCode::ABNORMAL,
    }
}

/// Counts of durations, in buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Histogram<const N: usize> {
    /// The number of durations that are at most the bound, and more than the previous bound.
    pub(crate) counts: [u64; N],
    /// The number of longer durations.
    pub(crate) longer: u64,
    pub(crate) sum_ns: u64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], longer: 0, sum_ns: 0 }
    }
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn record(&mut self, bounds: &[Duration; N], value: Duration) {
        match bounds.iter().position(|bound| value <= *bound) {
            Some(at) => self.counts[at] += 1,
            None => self.longer += 1,
        }
        let ns = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.longer += other.longer;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The buckets of `windlass_handshake_seconds`.
pub(crate) const HANDSHAKE_BOUNDS: [Duration; 10] = [
    us(100),
    us(500),
    us(1000),
    us(5000),
    us(10_000),
    us(50_000),
    us(100_000),
    us(500_000),
    us(1_000_000),
    us(5_000_000),
];

/// The buckets of `windlass_loop_lag_seconds`.
pub(crate) const LAG_BOUNDS: [Duration; 9] = [
    us(100),
    us(500),
    us(1000),
    us(5000),
    us(10_000),
    us(50_000),
    us(100_000),
    us(500_000),
    us(1_000_000),
];

pub(crate) type LagHistogram = Histogram<{ LAG_BOUNDS.len() }>;
pub(crate) type HandshakeHistogram = Histogram<{ HANDSHAKE_BOUNDS.len() }>;

/// Number of connections by [`StateLabel`] and [`Transport`].
pub(crate) type ConnectionCounts = [[u64; Transport::TEXTS.len()]; StateLabel::TEXTS.len()];

/// The live counts.
#[derive(Default)]
pub(crate) struct LabelCounters {
    handshakes: [Counter; HandshakeResult::TEXTS.len()],
    closed: [Counter; ClosedLabel::TEXTS.len()],
    close_codes: [Counter; CLOSE_CODES.len()],
    exceeded: [Counter; ExceededLimit::TEXTS.len()],
    limits: [Counter; Limit::NAMES.len()],
    tls_handshakes: [[Counter; 2]; TlsVersion::TEXTS.len()],
    tls_failures: [Counter; TlsFailureLabel::TEXTS.len()],
    handshake_seconds: Cell<HandshakeHistogram>,
    lag: Cell<LagHistogram>,
    pub(crate) buffered: Cell<u64>,
    pub(crate) handler_longest: Cell<Option<Duration>>,
    pub(crate) slow_receivers: Cell<u64>,
}

impl LabelCounters {
    pub(crate) fn count_handshake(&self, result: HandshakeResult) {
        self.handshakes[result as usize].add(1);
    }

    pub(crate) fn count_tls_handshake(&self, version: Option<&str>, is_resumed: bool) {
        self.tls_handshakes[TlsVersion::of(version) as usize][usize::from(is_resumed)].add(1);
    }

    pub(crate) fn count_tls_failure(&self, reason: TlsFailureLabel) {
        self.tls_failures[reason as usize].add(1);
    }

    /// Counts a limit that nothing else here counts.
    pub(crate) fn count_limit(&self, limit: Limit) {
        self.limits[limit as usize].add(1);
    }

    pub(crate) fn note_handshake_time(&self, time: Duration) {
        let mut histogram = self.handshake_seconds.get();
        histogram.record(&HANDSHAKE_BOUNDS, time);
        self.handshake_seconds.set(histogram);
    }

    pub(crate) fn note_lag(&self, lag: Duration) {
        let mut histogram = self.lag.get();
        histogram.record(&LAG_BOUNDS, lag);
        self.lag.set(histogram);
    }

    /// Counts the end of an open connection.
    pub(crate) fn count_close(&self, closing: &Closing) {
        let label = match closing.reason {
            CloseReason::Peer => ClosedLabel::Peer,
            CloseReason::Local => ClosedLabel::Local,
            CloseReason::Violation(violation) => {
                self.count_violation(violation);
                ClosedLabel::Violation
            }
            CloseReason::Idle => ClosedLabel::Idle,
            CloseReason::Lifetime => ClosedLabel::Lifetime,
            CloseReason::Rate(_) => ClosedLabel::Rate,
            CloseReason::Evicted => ClosedLabel::Evicted,
            CloseReason::WriteStall => ClosedLabel::WriteStall,
            // A client that merely dies sends no `close_notify` either.
            CloseReason::Lost | CloseReason::Tls(TlsFailure::Truncated) => ClosedLabel::Lost,
            CloseReason::Failed(_) => ClosedLabel::Failed,
            CloseReason::Drained => ClosedLabel::Drained,
            CloseReason::Tls(_) => ClosedLabel::Tls,
        };
        self.closed[label as usize].add(1);
        self.close_codes[close_code_index(close_code(closing))].add(1);
    }

    /// Counts an open connection that ended without a callback.
    pub(crate) fn count_abort(&self) {
        self.closed[ClosedLabel::Aborted as usize].add(1);
        self.close_codes[close_code_index(CloseCode::ABNORMAL)].add(1);
    }

    fn count_violation(&self, violation: Violation) {
        let limit = match violation {
            Violation::FrameTooBig => ExceededLimit::Frame,
            Violation::MessageTooBig => ExceededLimit::Message,
            Violation::TooManyFragments => ExceededLimit::Fragments,
            Violation::TooManyControls => ExceededLimit::Controls,
            Violation::RatioTooHigh => ExceededLimit::InflateRatio,
            _ => return,
        };
        self.exceeded[limit as usize].add(1);
    }
}

fn copy<const N: usize>(counters: &[Counter; N]) -> [u64; N] {
    core::array::from_fn(|at| counters[at].get())
}

/// The budget of [`memory_max`](crate::Options::memory_max), which all workers share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolFigures {
    pub(crate) limit: u64,
    pub(crate) borrowed: u64,
    pub(crate) is_exhausted: bool,
}

/// A copy of all counts of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerSnapshot {
    pub(crate) stats: ServerStats,
    pub(crate) backend: Backend,
    pub(crate) is_draining: bool,
    pub(crate) pool: PoolFigures,
    pub(crate) connections: ConnectionCounts,
    pub(crate) handshakes: [u64; HandshakeResult::TEXTS.len()],
    pub(crate) closed: [u64; ClosedLabel::TEXTS.len()],
    pub(crate) close_codes: [u64; CLOSE_CODES.len()],
    pub(crate) exceeded: [u64; ExceededLimit::TEXTS.len()],
    pub(crate) limits: [u64; Limit::NAMES.len()],
    /// By version, and whether an earlier session was resumed.
    pub(crate) tls_handshakes: [[u64; 2]; TlsVersion::TEXTS.len()],
    pub(crate) tls_failures: [u64; TlsFailureLabel::TEXTS.len()],
    pub(crate) handshake_seconds: HandshakeHistogram,
    pub(crate) lag: LagHistogram,
    pub(crate) buffered: u64,
    /// `None` without the watchdog.
    pub(crate) handler_longest: Option<Duration>,
    /// Connections whose output waits, as of the last timeout scan.
    pub(crate) slow_receivers: u64,
    pub(crate) drop_policy: &'static str,
}

impl WorkerSnapshot {
    /// Adds the counts of another worker of the same server. What all workers share stays as it is.
    pub(crate) fn add(&mut self, other: &Self) {
        self.stats.add(&other.stats);
        self.is_draining |= other.is_draining;
        self.pool.is_exhausted |= other.pool.is_exhausted;
        for (transports, more) in self.connections.iter_mut().zip(other.connections) {
            add_each(transports, &more);
        }
        add_each(&mut self.handshakes, &other.handshakes);
        add_each(&mut self.closed, &other.closed);
        add_each(&mut self.close_codes, &other.close_codes);
        add_each(&mut self.exceeded, &other.exceeded);
        add_each(&mut self.limits, &other.limits);
        for (counts, more) in self.tls_handshakes.iter_mut().zip(&other.tls_handshakes) {
            add_each(counts, more);
        }
        add_each(&mut self.tls_failures, &other.tls_failures);
        self.handshake_seconds.add(&other.handshake_seconds);
        self.lag.add(&other.lag);
        self.buffered += other.buffered;
        self.slow_receivers += other.slow_receivers;
        self.handler_longest = self.handler_longest.max(other.handler_longest);
    }
}

fn add_each<const N: usize>(counts: &mut [u64; N], more: &[u64; N]) {
    for (count, more) in counts.iter_mut().zip(more) {
        *count += more;
    }
}

impl Default for WorkerSnapshot {
    fn default() -> Self {
        let counters = LabelCounters::default();
        counters.snapshot(ServerStats::default(), Backend::Auto)
    }
}

impl LabelCounters {
    /// Returns a copy. The caller sets the fields that are not counted here.
    pub(crate) fn snapshot(&self, stats: ServerStats, backend: Backend) -> WorkerSnapshot {
        WorkerSnapshot {
            stats,
            backend,
            is_draining: false,
            pool: PoolFigures::default(),
            connections: ConnectionCounts::default(),
            handshakes: copy(&self.handshakes),
            closed: copy(&self.closed),
            close_codes: copy(&self.close_codes),
            exceeded: copy(&self.exceeded),
            limits: copy(&self.limits),
            tls_handshakes: core::array::from_fn(|at| copy(&self.tls_handshakes[at])),
            tls_failures: copy(&self.tls_failures),
            handshake_seconds: self.handshake_seconds.get(),
            lag: self.lag.get(),
            buffered: self.buffered.get(),
            handler_longest: self.handler_longest.get(),
            slow_receivers: self.slow_receivers.get(),
            drop_policy: "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_close_code_has_its_own_count_and_chosen_codes_share_one() {
        let text = |code| CLOSE_CODES[close_code_index(CloseCode::new(code))];
        for code in [1000, 1001, 1002, 1003, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012, 1013] {
            assert_eq!(text(code), code.to_string());
        }
        assert_eq!((text(1014), text(1015), text(2999)), ("1014", "other", "other"));
        assert_eq!((text(1004), text(3000), text(3999)), ("other", "3000-3999", "3000-3999"));
        assert_eq!((text(4000), text(4999)), ("4000-4999", "4000-4999"));
    }

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let mut histogram = LagHistogram::default();
        for (index, bound) in LAG_BOUNDS.into_iter().enumerate() {
            let before = histogram;
            histogram.record(&LAG_BOUNDS, bound);
            assert_eq!(histogram.counts[index], before.counts[index] + 1, "{bound:?}");
        }
        assert_eq!(histogram.counts, [1; LAG_BOUNDS.len()]);
        histogram.record(&LAG_BOUNDS, Duration::from_nanos(1_000_000_001));
        assert_eq!(histogram.longer, 1);
        let sum: Duration = LAG_BOUNDS.iter().sum();
        assert_eq!(u128::from(histogram.sum_ns), sum.as_nanos() + 1_000_000_001);
    }
}
