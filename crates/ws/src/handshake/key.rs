//! The key of a handshake, and what proves that the server has read it (RFC 6455 section 1.3).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// What a server appends to the key, so that only programs that know this protocol accept it.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// 16 bytes in base64.
pub(super) const KEY_LEN: usize = 24;
/// A SHA-1 in base64.
pub(super) const ACCEPT_LEN: usize = 28;

/// The 16 random bytes as they travel.
pub(super) fn encode(key: [u8; 16]) -> [u8; KEY_LEN] {
    let mut encoded = [0; KEY_LEN];
    let len = STANDARD.encode_slice(key, &mut encoded);
    debug_assert_eq!(len, Ok(KEY_LEN), "16 bytes make 24");
    encoded
}

/// Whether `value` is the base64 of 16 bytes, padded, and with no bits set beyond them (section 4.2.1, item 5).
pub(super) fn is_key(value: &[u8]) -> bool {
    let [digits @ .., last, b'=', b'='] = value else { return false };
    // The last digit has two bits of the 128, and four that are zero.
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() | (byte == b'+') | (byte == b'/');
    let are_digits = digits.iter().fold(true, |all, &byte| all & is_digit(byte));
    value.len() == KEY_LEN && are_digits && matches!(last, b'A' | b'Q' | b'g' | b'w')
}

/// The answer to a key (section 4.2.2, item 5.4).
pub(super) fn accept(key: &[u8]) -> [u8; ACCEPT_LEN] {
    let hash = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut encoded = [0; ACCEPT_LEN];
    let len = STANDARD.encode_slice(hash, &mut encoded);
    debug_assert_eq!(len, Ok(ACCEPT_LEN), "20 bytes make 28");
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(encode(*b"the sample nonce"), *b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), *b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_key_is_16_bytes_of_canonical_base64() {
        assert!(is_key(b"dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(is_key(&encode([0xff; 16])) && is_key(&encode([0; 16])));
        for bad in [
            &b""[..],
            b"dGhlIHNhbXBsZSBub25jZQ",       // no padding
            b"dGhlIHNhbXBsZSBub25jZQ=",      // half of it
            b"dGhlIHNhbXBsZSBub25jZR==",     // a bit beyond the last byte
            b"dGhlIHNhbXBsZSBub25jZWE=",     // 17 bytes
            b"dGhlIHNhbXBsZSBub25j",         // 15 bytes
            b"dGhlIHNhbXBsZSBub25jZWVl",     // 18 bytes
            b"dGhlIHNhbXBsZSBub2 jZQ==",     // a space
            b"dGhlIHNhbXBsZSBub2-_ZQ==",     // the other alphabet
            b"dGhlIHNhbXBsZSBub25jZQ==\x80", // a byte more
        ] {
            assert!(!is_key(bad), "{bad:?}");
        }
    }

    /// Against a whole decoder: every last digit, and every byte at every place.
    #[test]
    #[cfg_attr(miri, ignore = "long loops over safe code")]
    fn a_key_is_what_decodes_to_16_bytes() {
        let decodes = |value: &[u8]| {
            let mut decoded = [0; KEY_LEN / 4 * 3];
            value.len() == KEY_LEN && STANDARD.decode_slice(value, &mut decoded) == Ok(16)
        };
        for at in 0..KEY_LEN {
            for byte in 0..=u8::MAX {
                let mut value = *b"dGhlIHNhbXBsZSBub25jZQ==";
                value[at] = byte;
                assert_eq!(is_key(&value), decodes(&value), "{:?}", value.escape_ascii());
            }
        }
        for len in 0..30 {
            let value = &b"dGhlIHNhbXBsZSBub25jZQ==dGhlIH"[..len];
            assert_eq!(is_key(value), decodes(value), "{len}");
        }
    }
}
