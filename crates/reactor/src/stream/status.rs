//! The phase of a stream's life, and the flags that are independent of it, in one word.
//!
//! 1. A stream is in one phase at a time. The phase only advances ([`StreamStatus::advance`]).
//! 2. Flags are set and cleared in any phase. They do not change the phase.
//! 3. The two share a word, so that [`StreamStatus::is_plain`], which every event asks, is one
//!    comparison.

use core::ops::BitOr;

/// The phase of a stream's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(super) enum StreamPhase {
    /// Registered. `on_open` has not been called.
    New = 0,
    /// connect(2) is in progress.
    Connecting = 1,
    /// The TLS handshake is in progress. `on_open` has not been called.
    Handshake = 2,
    /// `on_open` has been called.
    Open = 3,
    /// The user has closed it. The output and the lingering follow, and `on_close` is the only
    /// remaining callback.
    Closing = 4,
    /// It must be closed now, for the recorded reason.
    Dead = 5,
}

/// Flags of a stream, each independent of the others and of the phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamFlags(u32);

impl StreamFlags {
    // What the user has asked for.
    /// Reading is paused.
    pub(super) const PAUSED: Self = Self(1 << 3);
    /// The writing half must be closed after the output.
    pub(super) const FINISHING: Self = Self(1 << 4);
    /// Closing does not wait for the peer's FIN.
    pub(super) const NO_LINGER: Self = Self(1 << 5);
    /// Closing must send a RST.
    pub(super) const RESET: Self = Self(1 << 6);
    /// `notify` was called; `on_notify` must follow.
    pub(super) const NOTIFY_DUE: Self = Self(1 << 7);

    // The two directions.
    /// The peer's FIN was received.
    pub(super) const ENDED: Self = Self(1 << 8);
    /// The writing half is closed.
    pub(super) const FINISHED: Self = Self(1 << 9);
    /// Bytes of an adoption wait for delivery.
    pub(super) const PREFIX: Self = Self(1 << 10);
    /// The socket is full until it is writable.
    pub(super) const BLOCKED: Self = Self(1 << 11);
    /// The output has exceeded the high watermark and has not fallen to the low one since.
    pub(super) const FULL: Self = Self(1 << 12);
    /// The handler's last call was `on_full`; `on_drained` has not followed yet.
    pub(super) const REPORTED_FULL: Self = Self(1 << 13);

    // The driver.
    /// A frame of its driver is on the stack. It handles all pending work when it ends.
    pub(super) const RUNNING: Self = Self(1 << 14);
    /// Its driver is called in the next turn.
    pub(super) const DRIVER_QUEUED: Self = Self(1 << 15);
    /// It was changed outside its driver and must be handled at the end of the turn.
    pub(super) const TOUCHED: Self = Self(1 << 16);

    // Timeouts.
    /// It has an idle timeout.
    pub(super) const IDLE: Self = Self(1 << 17);
    /// It may have a deadline that the wheel does not contain.
    pub(super) const ARM: Self = Self(1 << 18);
    /// `since_ns` must be set.
    pub(super) const STAMP_WAIT: Self = Self(1 << 19);
    /// `last_rx_ns` must be set.
    pub(super) const STAMP_RX: Self = Self(1 << 20);
    /// The idle timeout has expired.
    pub(super) const IDLE_DUE: Self = Self(1 << 21);
    /// The write stall timeout has expired.
    pub(super) const STALL_DUE: Self = Self(1 << 22);

    // The kernel.
    /// It is watched for input, or a receive is in the ring.
    pub(super) const WATCHES_IN: Self = Self(1 << 23);
    /// It is watched for being writable.
    pub(super) const WATCHES_OUT: Self = Self(1 << 24);
    /// On a ring: it is polled for errors and hang-ups only.
    pub(super) const WATCHES_ENDS: Self = Self(1 << 25);
    /// It works by completion: see `io/completion.rs`.
    pub(super) const RING: Self = Self(1 << 26);
    /// On a ring: its receive was cancelled, and the final completion is still outstanding.
    pub(super) const ENDING: Self = Self(1 << 27);

    // TLS.
    /// It has a session: see `io/tls.rs`.
    pub(super) const TLS: Self = Self(1 << 28);
    /// It waits for its place among the handshakes of a turn, and does not read meanwhile.
    pub(super) const HANDSHAKE_WAITS: Self = Self(1 << 29);

    // A lent socket.
    /// It has failed, and was not closed before: its handler gets what was received.
    pub(super) const DELIVERS: Self = Self(1 << 30);
    /// It has ended before `on_open` was called.
    pub(super) const UNOPENED: Self = Self(1 << 31);

    /// Either keeps it from reading.
    pub(super) const NO_READING: Self = Self(Self::PAUSED.0 | Self::HANDSHAKE_WAITS.0);
    /// The flags that need the time.
    pub(super) const TIMES: Self = Self(Self::ARM.0 | Self::STAMP_WAIT.0 | Self::STAMP_RX.0);
    pub(super) const DUE: Self = Self(Self::IDLE_DUE.0 | Self::STALL_DUE.0);
    pub(super) const POLLS: Self = Self(Self::WATCHES_OUT.0 | Self::WATCHES_ENDS.0);
    pub(super) const WATCHES: Self = Self(Self::WATCHES_IN.0 | Self::WATCHES_OUT.0);

    /// All flags.
    const ALL: Self = Self(!0b111);

    /// Whether any of these is set.
    #[inline]
    pub(super) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(super) fn set(&mut self, those: Self, on: bool) {
        self.0 = if on { self.0 | those.0 } else { self.0 & !those.0 };
    }
}

impl BitOr for StreamFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The phase and the flags of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamStatus(u32);

impl StreamStatus {
    /// The bits of the phase.
    const PHASE: u32 = !StreamFlags::ALL.0 & 0b111;

    pub(super) const fn new(phase: StreamPhase, flags: StreamFlags) -> Self {
        Self(phase as u32 | flags.0)
    }

    #[inline]
    pub(super) const fn is(self, phase: StreamPhase) -> bool {
        self.0 & Self::PHASE == phase as u32
    }

    /// Whether the user has closed it, or it must be closed now.
    #[inline]
    pub(super) const fn is_ending(self) -> bool {
        self.0 & Self::PHASE >= StreamPhase::Closing as u32
    }

    /// Enters a phase. An earlier phase than the present one is ignored.
    #[inline]
    pub(super) const fn advance(&mut self, to: StreamPhase) {
        if self.0 & Self::PHASE < to as u32 {
            self.0 = self.0 & !Self::PHASE | to as u32;
        }
    }

    /// Whether any of these flags is set.
    #[inline]
    pub(super) const fn any(self, of: StreamFlags) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(super) const fn only(self, those: StreamFlags) -> StreamFlags {
        StreamFlags(self.0 & those.0)
    }

    #[inline]
    pub(super) const fn insert(&mut self, those: StreamFlags) {
        self.0 |= those.0;
    }

    #[inline]
    pub(super) const fn clear(&mut self, those: StreamFlags) {
        self.0 &= !those.0;
    }

    #[inline]
    pub(super) const fn set(&mut self, those: StreamFlags, on: bool) {
        if on {
            self.insert(those);
        } else {
            self.clear(those);
        }
    }

    /// Clears these flags, and returns true if any was set.
    #[inline]
    pub(super) const fn take(&mut self, those: StreamFlags) -> bool {
        let any = self.any(those);
        self.clear(those);
        any
    }

    /// Whether it is open, with nothing to do except to receive.
    #[inline]
    pub(super) const fn is_plain(self) -> bool {
        const PLAIN: u32 = StreamPhase::Open as u32 | StreamFlags::WATCHES_IN.0;
        const IGNORED: u32 = StreamFlags::RUNNING.0 | StreamFlags::TOUCHED.0 | StreamFlags::IDLE.0;
        self.0 & !IGNORED == PLAIN
    }

    /// The same for a stream by completion.
    #[inline]
    pub(super) const fn is_plain_on_ring(self) -> bool {
        self.any(StreamFlags::RING) && Self(self.0 & !StreamFlags::RING.0).is_plain()
    }

    /// The same as [`is_plain`](Self::is_plain) for a stream with TLS that works by readiness.
    #[inline]
    pub(super) const fn is_plain_with_tls(self) -> bool {
        self.any(StreamFlags::TLS) && Self(self.0 & !StreamFlags::TLS.0).is_plain()
    }

    /// The same for one that works by completion.
    #[inline]
    pub(super) const fn is_plain_with_tls_on_ring(self) -> bool {
        self.any(StreamFlags::TLS) && Self(self.0 & !StreamFlags::TLS.0).is_plain_on_ring()
    }

    /// Whether output is buffered and not written: the socket is full or not connected yet.
    #[inline]
    pub(super) const fn holds_output(self) -> bool {
        self.any(StreamFlags::BLOCKED) || self.is(StreamPhase::Connecting)
    }

    /// Whether further output is rejected.
    #[inline]
    pub(super) const fn rejects_output(self) -> bool {
        self.any(StreamFlags::FINISHING) || self.is_ending()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StreamPhase::{Closing, Connecting, Dead, Handshake, New, Open};

    const PHASES: [StreamPhase; 6] = [New, Connecting, Handshake, Open, Closing, Dead];

    fn flags() -> impl Iterator<Item = StreamFlags> {
        (3..32).map(|bit| StreamFlags(1 << bit))
    }

    #[test]
    fn a_phase_only_advances_and_leaves_the_flags() {
        for (from, to) in PHASES.into_iter().flat_map(|from| PHASES.map(|to| (from, to))) {
            let mut status = StreamStatus::new(from, StreamFlags::ALL);
            status.advance(to);
            assert!(PHASES.iter().all(|phase| status.is(*phase) == (*phase == from.max(to))));
            assert_eq!(status.only(StreamFlags::ALL), StreamFlags::ALL);
            assert_eq!(status.is_ending(), from.max(to) >= Closing);
        }
    }

    #[test]
    fn a_flag_is_one_bit_and_leaves_the_phase_and_the_others() {
        for (phase, flag) in PHASES.into_iter().flat_map(|phase| flags().map(move |f| (phase, f))) {
            let mut status = StreamStatus::new(phase, StreamFlags::default());
            status.insert(flag);
            assert!(status.is(phase) && status.any(flag));
            assert_eq!(status.only(StreamFlags::ALL), flag);
            assert!(status.take(flag) && !status.take(flag));
            assert_eq!(status, StreamStatus::new(phase, StreamFlags::default()));
            status.set(StreamFlags::ALL, true);
            status.set(flag, false);
            assert!(status.is(phase) && !status.any(flag));
            assert!(flags().all(|other| other == flag || status.any(other)));
        }
    }

    #[test]
    fn only_an_open_stream_that_receives_is_plain() {
        let receives = StreamFlags::WATCHES_IN;
        for phase in PHASES {
            assert_eq!(StreamStatus::new(phase, receives).is_plain(), phase == Open, "{phase:?}");
            let on_ring = StreamStatus::new(phase, receives | StreamFlags::RING);
            assert_eq!(on_ring.is_plain_on_ring(), phase == Open, "{phase:?}");
            assert!(!on_ring.is_plain() && !StreamStatus::new(phase, receives).is_plain_on_ring());
            let with_tls = StreamStatus::new(phase, receives | StreamFlags::TLS);
            assert_eq!(with_tls.is_plain_with_tls(), phase == Open, "{phase:?}");
            assert!(!with_tls.is_plain() && !with_tls.is_plain_with_tls_on_ring());
        }
        let ignored = StreamFlags::RUNNING | StreamFlags::TOUCHED | StreamFlags::IDLE;
        for flag in flags().filter(|flag| *flag != receives) {
            let status = StreamStatus::new(Open, receives | flag);
            assert_eq!(status.is_plain(), ignored.any(flag), "{flag:?}");
        }
        assert!(!StreamStatus::new(Open, StreamFlags::default()).is_plain(), "it does not receive");
    }

    #[test]
    fn output_is_held_and_rejected_by_phase_and_flag() {
        for phase in PHASES {
            let of = |flag| StreamStatus::new(phase, flag);
            assert_eq!(of(StreamFlags::default()).holds_output(), phase == Connecting);
            assert!(of(StreamFlags::BLOCKED).holds_output());
            assert_eq!(of(StreamFlags::default()).rejects_output(), phase >= Closing);
            assert!(of(StreamFlags::FINISHING).rejects_output());
            assert_eq!(of(StreamFlags::FINISHED).rejects_output(), phase >= Closing);
        }
    }
}
