//! The bearer token of the admin listener (RFC 6750 section 2.1).

use core::hint::black_box;
use std::io;

/// Minimum length of a token in bytes.
const LEN_MIN: usize = 16;

/// A token that requests must have.
pub(super) struct Token(Box<[u8]>);

impl Token {
    pub(super) fn new(token: &str) -> io::Result<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = Token::new("0123456789abcdef").unwrap();
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
            assert!(Token::new(weak).is_err(), "{weak}");
        }
    }
}
