//! The contents of a Close frame (RFC 6455 section 7.4).

use core::fmt;

/// Why a connection is closed: the status code of a Close frame.
///
/// It can hold any number. [`is_sendable`](Self::is_sendable) says which codes a Close frame may
/// carry.
///
/// ```
/// use windlass_ws::CloseCode;
///
/// assert_eq!(CloseCode::GOING_AWAY.get(), 1001);
/// assert!(CloseCode::new(4000).is_sendable());
/// assert!(!CloseCode::NO_STATUS.is_sendable());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: the purpose of the connection is fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// 1001: the server is shutting down, or the user left the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: the peer has broken the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// 1003: the endpoint does not accept this kind of data.
    pub const UNSUPPORTED: Self = Self(1003);
    /// 1005: the Close frame had no code. Never sent.
    pub const NO_STATUS: Self = Self(1005);
    /// 1006: the connection ended without a Close frame. Never sent.
    pub const ABNORMAL: Self = Self(1006);
    /// 1007: the payload does not match the frame's type: text that is not UTF-8, or compressed
    /// data that is not DEFLATE.
    pub const INVALID_PAYLOAD: Self = Self(1007);
    /// 1008: the peer broke a policy of this endpoint.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// 1009: a message is too big to be processed.
    pub const TOO_BIG: Self = Self(1009);
    /// 1010: the server's handshake lacks an extension that the client needs.
    pub const EXTENSION_MISSING: Self = Self(1010);
    /// 1011: the server met an internal error.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// 1012: the server restarts.
    pub const RESTART: Self = Self(1012);
    /// 1013: the server is overloaded; try again later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);
    /// 1014: a gateway got an invalid response.
    pub const BAD_GATEWAY: Self = Self(1014);
    /// 1015: the TLS handshake failed. Never sent.
    pub const TLS_FAILED: Self = Self(1015);

    /// A code with any number.
    #[must_use]
    pub const fn new(code: u16) -> Self {
        Self(code)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether a Close frame may carry this code. It may carry 1000 to 1003 and 1007 to 1014 (the
    /// IANA registry), and 3000 to 4999 (libraries and applications). 1004 is reserved. 1005, 1006
    /// and 1015 are for local use and are never sent. The rest is undefined (RFC 6455 section
    /// 7.4.2).
    #[must_use]
    pub const fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloseCode({})", self.0)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The contents of a Close frame.
///
/// ```
/// use windlass_ws::{Close, CloseCode};
///
/// let close = Close { code: Some(CloseCode::NORMAL), reason: "done" };
/// let line = match close.code {
///     Some(code) => format!("closed with {code}: {}", close.reason),
///     None => "closed without a code".to_owned(),
/// };
/// assert_eq!(line, "closed with 1000: done");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close<'a> {
    /// The code, or `None` if the frame is empty.
    pub code: Option<CloseCode>,
    /// The reason, for people to read: at most 123 bytes.
    pub reason: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sendable_codes() {
        let sendable = |code| CloseCode::new(code).is_sendable();
        for code in [1000, 1003, 1007, 1011, 1014, 3000, 3999, 4000, 4999] {
            assert!(sendable(code), "{code}");
        }
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
            assert!(!sendable(code), "{code}");
        }
    }
}
