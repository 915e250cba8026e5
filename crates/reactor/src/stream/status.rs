//! The state of a stream in one word: its phase, its transport, what the kernel does for it, and
//! flags.
//!
//! 1. A stream is in one phase at a time. The phase only advances ([`StreamStatus::advance`]).
//! 2. A stream has one [`Transport`], which is decided when it is registered.
//! 3. Flags are set and cleared in any phase. They say what the user has asked for, what the peer
//!    and the clock did, and what the driver owes. They do not change the rest of the word.
//! 4. All of it shares a word, so that one comparison tells that there is nothing to do except to
//!    receive ([`StreamStatus::rests_as`]). Every event asks that.

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

/// How the kernel takes and brings the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum StreamIo {
    /// It reports that the socket is ready, and the driver makes the call: `io/readiness.rs`.
    Readiness = 0,
    /// A ring makes the call, and reports its completion: `io/completion.rs`.
    Ring = 1 << 3,
}

/// The way of a stream's bytes. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) io: StreamIo,
    /// It has a session: see `io/tls.rs`.
    pub(super) has_tls: bool,
}

impl Transport {
    pub(super) const READINESS: Self = Self { io: StreamIo::Readiness, has_tls: false };
    pub(super) const RING: Self = Self { io: StreamIo::Ring, has_tls: false };
    pub(super) const READINESS_TLS: Self = Self { io: StreamIo::Readiness, has_tls: true };

    const TLS: u32 = 1 << 4;
    const MASK: u32 = StreamIo::Ring as u32 | Self::TLS;

    const fn bits(self) -> u32 {
        self.io as u32 | if self.has_tls { Self::TLS } else { 0 }
    }
}

/// Whether the kernel brings input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Receive {
    Off = 0,
    /// The socket is watched for input, or a receive is in the ring.
    Armed = 1 << 5,
    /// On a ring: the receive was cancelled, and its final completion is still outstanding.
    Ending = 1 << 6,
    /// The socket is watched for input, which may come with descriptors.
    WithFds = Self::Armed as u32 | Self::Ending as u32,
}

impl Receive {
    const MASK: u32 = Self::WithFds as u32;
}

/// The other conditions that the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Watch {
    /// By readiness, errors and hang-ups are reported all the same.
    Nothing = 0,
    /// That the socket is writable.
    Writable = 1 << 7,
    /// On a ring: errors and hang-ups only.
    Ends = 1 << 8,
}

impl Watch {
    const MASK: u32 = Self::Writable as u32 | Self::Ends as u32;
}

/// Flags of a stream, each independent of the others and of the rest of the word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamFlags(u32);

impl StreamFlags {
    // What the user has asked for.
    /// Reading is paused.
    pub(super) const PAUSED: Self = Self(1 << 9);
    /// The writing half must be closed after the output.
    pub(super) const FINISHING: Self = Self(1 << 10);
    /// Closing does not wait for the peer's FIN.
    pub(super) const NO_LINGER: Self = Self(1 << 11);
    /// Closing must send a RST.
    pub(super) const RESET: Self = Self(1 << 12);
    /// `notify` was called; `on_notify` must follow.
    pub(super) const NOTIFY_DUE: Self = Self(1 << 13);
    /// It has an idle timeout.
    pub(super) const IDLE: Self = Self(1 << 14);

    // What the peer did, and what came of it.
    /// The peer's FIN was received.
    pub(super) const ENDED: Self = Self(1 << 15);
    /// The writing half is closed.
    pub(super) const FINISHED: Self = Self(1 << 16);
    /// Received bytes wait for delivery.
    pub(super) const PREFIX: Self = Self(1 << 17);
    /// The socket is full until it is writable.
    pub(super) const BLOCKED: Self = Self(1 << 18);
    /// The output has exceeded the high watermark and has not fallen to the low one since.
    pub(super) const FULL: Self = Self(1 << 19);
    /// The handler's last call was `on_full`; `on_drained` has not followed yet.
    pub(super) const REPORTED_FULL: Self = Self(1 << 20);
    /// It waits for its place among the handshakes of a turn, and does not read meanwhile.
    pub(super) const HANDSHAKE_WAITS: Self = Self(1 << 21);
    /// Of a lent socket: it has failed, and was not closed before. Its handler gets what was
    /// received.
    pub(super) const DELIVERS: Self = Self(1 << 22);
    /// It has ended before `on_open` was called.
    pub(super) const UNOPENED: Self = Self(1 << 23);

    // The driver.
    /// A frame of its driver is on the stack. It handles all pending work when it ends.
    pub(super) const RUNNING: Self = Self(1 << 24);
    /// Its driver is called in the next turn.
    pub(super) const DRIVER_QUEUED: Self = Self(1 << 25);
    /// It was changed outside its driver and must be handled at the end of the turn.
    pub(super) const TOUCHED: Self = Self(1 << 26);

    // The clock.
    /// It may have a deadline that the wheel does not contain.
    pub(super) const ARM: Self = Self(1 << 27);
    /// `since_ns` must be set.
    pub(super) const STAMP_WAIT: Self = Self(1 << 28);
    /// `last_rx_ns` must be set.
    pub(super) const STAMP_RX: Self = Self(1 << 29);
    /// The idle timeout has expired.
    pub(super) const IDLE_DUE: Self = Self(1 << 30);
    /// The write stall timeout has expired.
    pub(super) const STALL_DUE: Self = Self(1 << 31);

    /// Either keeps it from reading.
    pub(super) const NO_READING: Self = Self(Self::PAUSED.0 | Self::HANDSHAKE_WAITS.0);
    /// The flags that need the time.
    pub(super) const TIMES: Self = Self(Self::ARM.0 | Self::STAMP_WAIT.0 | Self::STAMP_RX.0);
    pub(super) const DUE: Self = Self(Self::IDLE_DUE.0 | Self::STALL_DUE.0);
}

impl BitOr for StreamFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamStatus(u32);

impl StreamStatus {
    const PHASE: u32 = 0b111;

    pub(super) const fn new(phase: StreamPhase, transport: Transport) -> Self {
        Self(phase as u32 | transport.bits())
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

    #[inline]
    pub(super) const fn uses(self, transport: Transport) -> bool {
        self.0 & Transport::MASK == transport.bits()
    }

    #[inline]
    pub(super) const fn io(self) -> StreamIo {
        if self.0 & StreamIo::Ring as u32 == 0 { StreamIo::Readiness } else { StreamIo::Ring }
    }

    #[inline]
    pub(super) const fn is_on_ring(self) -> bool {
        matches!(self.io(), StreamIo::Ring)
    }

    #[inline]
    pub(super) const fn has_tls(self) -> bool {
        self.0 & Transport::TLS != 0
    }

    pub(super) const fn receive(self) -> Receive {
        match self.0 & Receive::MASK {
            0 => Receive::Off,
            armed if armed == Receive::Armed as u32 => Receive::Armed,
            ending if ending == Receive::Ending as u32 => Receive::Ending,
            _ => Receive::WithFds,
        }
    }

    pub(super) const fn set_receive(&mut self, receive: Receive) {
        self.0 = self.0 & !Receive::MASK | receive as u32;
    }

    pub(super) const fn watch(self) -> Watch {
        match self.0 & Watch::MASK {
            0 => Watch::Nothing,
            writable if writable == Watch::Writable as u32 => Watch::Writable,
            _ => Watch::Ends,
        }
    }

    pub(super) const fn set_watch(&mut self, watch: Watch) {
        self.0 = self.0 & !Watch::MASK | watch as u32;
    }

    /// Whether any of these flags is set.
    #[inline]
    pub(super) const fn any(self, of: StreamFlags) -> bool {
        self.0 & of.0 != 0
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

    /// The word of a stream that is open, with nothing to do except to receive. [`RUNNING`] and the
    /// like say nothing about that.
    ///
    /// [`RUNNING`]: StreamFlags::RUNNING
    const fn at_rest(transport: Transport) -> u32 {
        StreamPhase::Open as u32 | transport.bits() | Receive::Armed as u32
    }

    const NO_WORK: u32 = StreamFlags::RUNNING.0 | StreamFlags::TOUCHED.0 | StreamFlags::IDLE.0;

    /// Whether it has this transport and is [at rest](Self::at_rest).
    #[inline]
    pub(super) const fn rests_as(self, transport: Transport) -> bool {
        self.0 & !Self::NO_WORK == Self::at_rest(transport)
    }

    /// Whether it is [at rest](Self::at_rest), with any transport.
    #[inline]
    pub(super) const fn rests(self) -> bool {
        self.0 & !Self::NO_WORK & !Transport::MASK == Self::at_rest(Transport::READINESS)
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
    const RING_TLS: Transport = Transport { io: StreamIo::Ring, has_tls: true };
    const TRANSPORTS: [Transport; 4] =
        [Transport::READINESS, Transport::RING, Transport::READINESS_TLS, RING_TLS];
    const RECEIVES: [Receive; 4] =
        [Receive::Off, Receive::Armed, Receive::Ending, Receive::WithFds];
    const WATCHES: [Watch; 3] = [Watch::Nothing, Watch::Writable, Watch::Ends];
    const ALL: StreamFlags = StreamFlags(!0 << 9);

    fn flags() -> impl Iterator<Item = StreamFlags> {
        (9..32).map(|bit| StreamFlags(1 << bit))
    }

    fn with(phase: StreamPhase, transport: Transport, flags: StreamFlags) -> StreamStatus {
        let mut status = StreamStatus::new(phase, transport);
        status.insert(flags);
        status
    }

    #[test]
    fn a_phase_only_advances_and_leaves_the_rest() {
        for (from, to) in PHASES.into_iter().flat_map(|from| PHASES.map(|to| (from, to))) {
            let mut status = with(from, RING_TLS, ALL);
            status.advance(to);
            assert!(PHASES.iter().all(|phase| status.is(*phase) == (*phase == from.max(to))));
            assert_eq!(status, with(from.max(to), RING_TLS, ALL));
            assert_eq!(status.is_ending(), from.max(to) >= Closing);
        }
    }

    #[test]
    fn a_flag_is_one_bit_and_leaves_the_rest_and_the_others() {
        for (phase, flag) in PHASES.into_iter().flat_map(|phase| flags().map(move |f| (phase, f))) {
            let mut status = StreamStatus::new(phase, RING_TLS);
            status.insert(flag);
            assert!(status.is(phase) && status.any(flag));
            assert!(flags().all(|other| status.any(other) == (other == flag)));
            assert!(status.take(flag) && !status.take(flag));
            assert_eq!(status, StreamStatus::new(phase, RING_TLS));
            status.set(ALL, true);
            status.set(flag, false);
            assert!(status.is(phase) && !status.any(flag));
            assert!(flags().all(|other| other == flag || status.any(other)));
        }
    }

    #[test]
    fn the_transport_and_what_the_kernel_does_are_what_was_set() {
        for transport in TRANSPORTS {
            let mut status = with(Dead, transport, ALL);
            assert!(TRANSPORTS.iter().all(|other| status.uses(*other) == (*other == transport)));
            assert_eq!((status.io(), status.has_tls()), (transport.io, transport.has_tls));
            for (receive, watch) in RECEIVES.into_iter().flat_map(|r| WATCHES.map(|w| (r, w))) {
                status.set_receive(receive);
                status.set_watch(watch);
                assert_eq!((status.receive(), status.watch()), (receive, watch));
                assert!(status.uses(transport) && status.is(Dead));
                assert!(flags().all(|flag| status.any(flag)));
            }
        }
    }

    #[test]
    fn only_an_open_stream_that_receives_is_at_rest() {
        let ignored = StreamFlags::RUNNING | StreamFlags::TOUCHED | StreamFlags::IDLE;
        for (transport, phase) in TRANSPORTS.into_iter().flat_map(|t| PHASES.map(|p| (t, p))) {
            for (receive, watch) in RECEIVES.into_iter().flat_map(|r| WATCHES.map(|w| (r, w))) {
                let mut status = StreamStatus::new(phase, transport);
                status.set_receive(receive);
                status.set_watch(watch);
                let is_so = phase == Open && receive == Receive::Armed && watch == Watch::Nothing;
                assert_eq!(status.rests(), is_so, "{phase:?} {receive:?} {watch:?}");
                for other in TRANSPORTS {
                    assert_eq!(status.rests_as(other), is_so && other == transport, "{other:?}");
                }
                for flag in flags() {
                    let mut status = status;
                    status.insert(flag);
                    assert_eq!(status.rests(), is_so && ignored.0 & flag.0 != 0, "{flag:?}");
                }
            }
        }
    }

    #[test]
    fn output_is_held_and_rejected_by_phase_and_flag() {
        for phase in PHASES {
            let of = |flag| with(phase, Transport::READINESS, flag);
            assert_eq!(of(StreamFlags::default()).holds_output(), phase == Connecting);
            assert!(of(StreamFlags::BLOCKED).holds_output());
            assert_eq!(of(StreamFlags::default()).rejects_output(), phase >= Closing);
            assert!(of(StreamFlags::FINISHING).rejects_output());
            assert_eq!(of(StreamFlags::FINISHED).rejects_output(), phase >= Closing);
        }
    }
}
