//! The bearer token of the admin listener (RFC 6750 section 2.1).

use core::{fmt, hint::black_box};
use std::io;

/// Minimum length of a token in bytes.
const LEN_MIN: usize = 16;

/// A token that requests to an [`Admin`](crate::Admin) listener must have.
///
/// ```
/// use windlass_server::AdminToken;
///
/// assert!(AdminToken::new("0123456789abcdef").is_ok());
/// assert!(AdminToken::new("too short").is_err());
/// ```
#[derive(Clone)]
pub struct AdminToken(Box<[u8]>);

impl AdminToken {
    /// Checks a token.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) if it is shorter than 16 bytes, or has
    ///   characters other than visible ASCII.
    pub fn new(token: &str) -> io::Result<Self> {
        let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.len() < LEN_MIN || !is_visible {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a token of the admin listener has at least 16 characters, all of them visible \
                 ASCII",
            ));
        }
        Ok(Self(token.as_bytes().into()))
    }

    /// Returns whether the value of an Authorization header has this token.
    pub(super) fn is_in(&self, authorization: &[u8]) -> bool {
        let Some((scheme, token)) = authorization.split_at_checked(b"Bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && self.equals(token.trim_ascii())
    }

    /// Compares in a time that depends on the length of `other` only.
    fn equals(&self, other: &[u8]) -> bool {
        let mut difference = self.0.len() ^ other.len();
        // The token is repeated if `other` is longer. The lengths differ then.
        for (byte, own) in other.iter().zip(self.0.iter().cycle()) {
            // The compiler cannot see that the rest does not matter after a difference.
            difference = black_box(difference | usize::from(byte ^ own));
        }
        difference == 0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminToken").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = AdminToken::new("0123456789abcdef").unwrap();
        for accepted in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef "] {
            assert!(token.is_in(accepted.as_bytes()), "{accepted}");
        }
        for other in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdef0123456789abcdef",
            "Bearer 0123456789abcdeF",
            "Bearer x123456789abcdef",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!token.is_in(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_weak_token_is_rejected() {
        for weak in ["", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé\n"] {
            assert!(AdminToken::new(weak).is_err(), "{weak}");
        }
    }
}
