//! The closing handshake.

/// How far the closing handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is none.
    Open,
    /// This side has sent a Close frame.
    ClosedByUs,
    /// The peer has sent a Close frame.
    ClosedByPeer,
    /// Both have, the peer last.
    Acknowledged,
    /// The end was reported.
    Over,
}

impl State {
    /// Whether messages may arrive.
    #[inline]
    pub(super) const fn can_read(self) -> bool {
        matches!(self, Self::Open | Self::ClosedByUs)
    }
}
