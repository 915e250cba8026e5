//! Frames of WebSockets, made from RFC 6455 section 5.2 and not by the engine under test.

/// A text in one frame.
pub const TEXT: u8 = 0x81;
/// Binary data in one frame.
pub const BINARY: u8 = 0x82;
/// A Close frame.
pub const CLOSE: u8 = 0x88;
/// A ping.
pub const PING: u8 = 0x89;

/// The key of [`masked`] frames. Each byte differs from the others and from zero.
pub const KEY: [u8; 4] = [0xa1, 0x02, 0xc3, 0x7f];

/// A frame: the first byte, the length in its shortest form, the key if there is one, the payload.
#[must_use]
pub fn frame(first: u8, key: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + 14);
    frame.push(first);
    let is_masked = if key.is_some() { 0x80 } else { 0 };
    match payload.len() {
        len @ ..126 => frame.push(is_masked | len as u8),
        len @ ..0x1_0000 => {
            frame.push(is_masked | 126);
            frame.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            frame.push(is_masked | 127);
            frame.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let Some(key) = key else {
        frame.extend_from_slice(payload);
        return frame;
    };
    frame.extend_from_slice(&key);
    // Masks sixteen bytes at a time, because tests are not optimised.
    let repeated = u128::from(u32::from_be_bytes(key)) * 0x1_00000001_00000001_00000001;
    let mut words = payload.chunks_exact(16);
    for word in &mut words {
        let word = u128::from_be_bytes(word.try_into().expect("sixteen bytes"));
        frame.extend_from_slice(&(word ^ repeated).to_be_bytes());
    }
    frame.extend(words.remainder().iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}

/// A client's frame.
#[must_use]
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, Some(KEY), payload)
}

/// A server's frame.
#[must_use]
pub fn plain(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, None, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6455 section 5.7, and the limits of the three forms of a length.
    #[test]
    fn frames_are_those_of_the_rfc() {
        assert_eq!(plain(TEXT, b"Hello"), b"\x81\x05Hello");
        let key = [0x37, 0xfa, 0x21, 0x3d];
        let expected = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
        assert_eq!(frame(TEXT, Some(key), b"Hello"), expected);
        for (len, head) in [
            (125, &[0x82, 125][..]),
            (126, &[0x82, 126, 0, 126]),
            (0xffff, &[0x82, 126, 0xff, 0xff]),
            (0x1_0000, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let frame = plain(BINARY, &vec![7; len]);
            assert!(frame.starts_with(head) && frame.len() == head.len() + len, "{len}");
        }
    }

    #[test]
    fn each_byte_is_masked_by_its_byte_of_the_key() {
        let payload: Vec<u8> = (0..100).collect();
        let masked = masked(BINARY, &payload);
        for (at, byte) in masked[6..].iter().enumerate() {
            assert_eq!(byte ^ KEY[at % 4], payload[at]);
        }
    }
}
