//! The state of an open connection, beside its engine and the data of the application.

use super::conn_table::ConnFlags;

/// A message of at least this length counts against the pass's output limit, as if it were sent
/// back.
pub(crate) const LARGE_LEN: usize = 16 << 10;

/// State of an open connection that the connection handler keeps beside its engine and the user's
/// data.
pub(crate) struct ConnState {
    pub(crate) index: u32,
    /// The tick in which the connection table was last told that bytes were received.
    pub(crate) last_rx: u32,
    /// Bytes sent in this pass.
    pub(crate) pass_output: u32,
    /// Reasons to interrupt the pass, and whether the connection uses compression or its messages
    /// have a rate; 0 if nothing applies. For a connection with compression, the upper byte holds
    /// the lowest bits of the tick in which it last used the codecs heavily.
    pub(crate) halt: u16,
    /// The memory accounting includes a partly received message or frame.
    pub(crate) has_partial: bool,
}

impl ConnState {
    pub(crate) fn new(index: u32, last_rx: u32, has_deflate: bool) -> Self {
        let mut conn = Self { index, last_rx, pass_output: 0, halt: 0, has_partial: false };
        if has_deflate {
            conn.halt = HAS_DEFLATE;
            // A tick far in the past.
            conn.note_heavy(last_rx.wrapping_sub(1 << 7));
        }
        conn
    }

    /// Sets whether its messages have a rate.
    pub(crate) fn with_rate(mut self, has_rate: bool) -> Self {
        if has_rate {
            self.halt |= HAS_RATE;
        }
        self
    }

    /// Copies from the connection table whether the connection is paused and whether it is closing,
    /// so that a pass looks at one word only.
    pub(crate) fn follow(&mut self, flags: ConnFlags) {
        self.halt &= !(HALT_PAUSED | HALT_CLOSING);
        if flags.any(ConnFlags::PAUSED) {
            self.halt |= HALT_PAUSED;
        }
        if flags.any(ConnFlags::CLOSING) {
            self.halt |= HALT_CLOSING;
        }
    }

    /// Counts output of this pass, and ends the pass after more than `max` bytes.
    #[cold]
    pub(crate) fn add_pass_output(&mut self, len: usize, max: u32) {
        self.pass_output = self.pass_output.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        if self.pass_output > max {
            self.halt |= HALT_OUTPUT_MAX;
        }
    }

    /// Notes that the codecs were used heavily in this tick.
    pub(crate) fn note_heavy(&mut self, tick: u32) {
        self.halt = (self.halt & 0xff) | (tick as u16) << 8;
    }

    /// Number of ticks since the codecs were last used heavily, modulo 256.
    pub(crate) fn since_heavy(&self, tick: u32) -> u8 {
        (tick as u8).wrapping_sub((self.halt >> 8) as u8)
    }
}

/// A copy of [`ConnFlags::CLOSING`]. No more messages are delivered.
pub(crate) const HALT_CLOSING: u16 = 1;
/// A copy of [`ConnFlags::PAUSED`].
pub(crate) const HALT_PAUSED: u16 = 1 << 1;
/// So much was sent that the pass must end.
pub(crate) const HALT_OUTPUT_MAX: u16 = 1 << 2;
/// Bytes of an earlier pass wait to be processed.
pub(crate) const HALT_HELD: u16 = 1 << 3;
/// The codecs have done so much work in this turn that the pass must end.
pub(crate) const HALT_CODEC: u16 = 1 << 4;
/// The connection is in the queue for the codecs.
pub(crate) const HALT_QUEUED: u16 = 1 << 5;
/// All of these flags.
pub(crate) const HALTS: u16 = HAS_DEFLATE - 1;
/// Not a reason to halt: messages may be compressed, so the codec budget is checked before each
/// message. The flag is stored here so that connections without compression check one word only.
pub(crate) const HAS_DEFLATE: u16 = 1 << 6;
/// Not a reason to halt either: each message counts towards a rate.
pub(crate) const HAS_RATE: u16 = 1 << 7;
