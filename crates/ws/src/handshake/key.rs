//! The key of a handshake, and the proof that the server has read it (RFC 6455 section 1.3).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::{Digest as _, Sha1};

/// The server appends this to the key, so that only programs that know this protocol accept it.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The length of 16 bytes in base64.
pub(super) const KEY_LEN: usize = 24;
/// The length of a SHA-1 in base64.
pub(super) const ACCEPT_LEN: usize = 28;

/// The 16 random bytes in base64.
pub(super) fn encode(key: [u8; 16]) -> [u8; KEY_LEN] {
    base64(&key)
}

/// Base64 with padding. The number of bytes determines the length of the result.
fn base64<const BYTES: usize, const LEN: usize>(bytes: &[u8; BYTES]) -> [u8; LEN] {
    const { assert!(LEN == BYTES.div_ceil(3) * 4) };
    let mut encoded = [0; LEN];
    STANDARD.encode_slice(bytes, &mut encoded).expect("the room is as long as the digits are");
    encoded
}

/// The value as a key, if it is the padded base64 of 16 bytes with no bits set beyond them (section
/// 4.2.1, item 5).
pub(super) fn checked(value: &[u8]) -> Option<&[u8; KEY_LEN]> {
    let key: &[u8; KEY_LEN] = value.try_into().ok()?;
    let [digits @ .., last, b'=', b'='] = key else { return None };
    // The last digit has two of the 128 bits, and four zero bits.
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() | (byte == b'+') | (byte == b'/');
    // Blocks overlap, so that all of them are whole; some bytes are checked twice.
    let are_digits = |block: &[u8; 16]| block.iter().fold(true, |all, &byte| all & is_digit(byte));
    let blocks = [digits.first_chunk(), digits.last_chunk()];
    let is_good =
        blocks.into_iter().flatten().all(are_digits) && matches!(last, b'A' | b'Q' | b'g' | b'w');
    is_good.then_some(key)
}

/// The answer to a key (section 4.2.2, item 5.4).
pub(super) fn accept(key: &[u8; KEY_LEN]) -> [u8; ACCEPT_LEN] {
    base64(&Sha1::new().chain_update(key).chain_update(GUID).finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(value: &[u8]) -> bool {
        checked(value).is_some()
    }

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(encode(*b"the sample nonce"), *b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), *b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_key_is_16_bytes_of_canonical_base64() {
        assert!(is(b"dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(is(&encode([0xff; 16])) && is(&encode([0; 16])));
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
            assert!(!is(bad), "{bad:?}");
        }
    }

    /// Compared with a complete decoder: every last digit, and every byte at every place.
    #[test]
    #[cfg_attr(miri, ignore = "long loops over safe code")]
    fn a_key_decodes_to_16_bytes() {
        let decodes = |value: &[u8]| {
            let mut decoded = [0; KEY_LEN / 4 * 3];
            value.len() == KEY_LEN && STANDARD.decode_slice(value, &mut decoded) == Ok(16)
        };
        for at in 0..KEY_LEN {
            for byte in 0..=u8::MAX {
                let mut value = *b"dGhlIHNhbXBsZSBub25jZQ==";
                value[at] = byte;
                assert_eq!(is(&value), decodes(&value), "{:?}", value.escape_ascii());
            }
        }
        for len in 0..30 {
            let value = &b"dGhlIHNhbXBsZSBub25jZQ==dGhlIH"[..len];
            assert_eq!(is(value), decodes(value), "{len}");
        }
    }
}
