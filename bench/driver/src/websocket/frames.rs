//! The frames of a client, and a parser for those of a server. The code is as simple as possible,
//! because it checks the others.

use crate::measured::Error;
use crate::payload::{cuts, pieces};
use crate::random::Random;

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) is_text: bool,
    pub(crate) payload: Vec<u8>,
}

/// Appends a message in `fragments` masked frames.
pub(crate) fn encode(message: &Message, fragments: usize, random: &mut Random, out: &mut Vec<u8>) {
    let cuts = cuts(message.payload.len(), fragments);
    for (number, piece) in pieces(&message.payload, &cuts).enumerate() {
        let opcode = match (number, message.is_text) {
            (0, true) => 1,
            (0, false) => 2,
            _ => 0,
        };
        let fin = if number == cuts.len() { 0x80 } else { 0 };
        out.push(fin | opcode);
        match piece.len() {
            length @ ..126 => out.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                out.push(0x80 | 126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                out.push(0x80 | 127);
                out.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        let key = (random.next() as u32).to_ne_bytes();
        out.extend_from_slice(&key);
        out.extend(piece.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    }
}

/// Returns all messages that a server has sent.
///
/// # Errors
///
/// If the bytes are not a sequence of complete unmasked messages.
pub(crate) fn decode(mut bytes: &[u8]) -> Result<Vec<Message>, Error> {
    let mut messages = Vec::new();
    let mut open: Option<Message> = None;
    while !bytes.is_empty() {
        let (first, second) = (take(&mut bytes, 1)?[0], take(&mut bytes, 1)?[0]);
        let length = match second {
            ..126 => u64::from(second),
            126 => u64::from(u16::from_be_bytes(take(&mut bytes, 2)?.try_into()?)),
            127 => u64::from_be_bytes(take(&mut bytes, 8)?.try_into()?),
            _ => return Err("a server's frame is masked".into()),
        };
        let payload = take(&mut bytes, usize::try_from(length)?)?;
        let mut message = match (first & 0x7f, open.take()) {
            (0, Some(message)) => message,
            (opcode @ (1 | 2), None) => Message { is_text: opcode == 1, payload: Vec::new() },
            (bits, _) => return Err(format!("a frame with {bits:#x} is out of place").into()),
        };
        message.payload.extend_from_slice(payload);
        if first & 0x80 == 0 {
            open = Some(message);
        } else {
            messages.push(message);
        }
    }
    if open.is_some() { Err("a message has no end".into()) } else { Ok(messages) }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Error> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or("a frame is cut off")?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_unmasks_to_the_message() {
        for (length, header) in [(20, 6), (1024, 8), (71_680, 14)] {
            let message = Message { is_text: false, payload: vec![7; length] };
            let mut bytes = Vec::new();
            encode(&message, 1, &mut Random::new(1), &mut bytes);
            assert_eq!((bytes[0], bytes.len()), (0x82, header + length));
            let (head, payload) = bytes.split_at(header);
            let key = &head[header - 4..];
            assert!(payload.iter().zip(key.iter().cycle()).all(|(byte, key)| byte ^ key == 7));
        }
    }

    #[test]
    fn fragments_have_their_bits() {
        let message = Message { is_text: true, payload: vec![b'a'; 40] };
        let mut bytes = Vec::new();
        encode(&message, 4, &mut Random::new(1), &mut bytes);
        assert_eq!(bytes.len(), 40 + 4 * 6);
        assert_eq!((bytes[0], bytes[bytes.len() - 6 - 9]), (0x01, 0x80));
    }

    #[test]
    fn only_whole_unmasked_messages_are_decoded() {
        let hello = Message { is_text: true, payload: b"hi".to_vec() };
        assert_eq!(decode(b"\x81\x02hi").unwrap(), std::slice::from_ref(&hello));
        assert_eq!(decode(b"\x01\x01h\x80\x01i").unwrap(), [hello]);
        for wrong in [
            &b"\x81"[..],
            b"\x81\x02h",
            b"\x81\x82aaaahi",
            b"\x01\x01h",
            b"\x80\x01h",
            b"\xc1\x01h",
        ] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }
}
