//! The header of a frame (RFC 6455 section 5.2).

use super::violation::Violation;

/// The longest header: two bytes, a length of eight bytes and a key of four.
pub const HEADER_LEN_MAX: usize = 14;

/// The longest payload of a control frame (RFC 6455 section 5.5).
pub(crate) const CONTROL_LEN_MAX: usize = 125;

/// The kind of a frame.
///
/// ```
/// use windlass_ws::Opcode;
///
/// assert_eq!(Opcode::from_bits(0x89), Some(Opcode::Ping));
/// assert!(Opcode::Ping.is_control());
/// assert_eq!(Opcode::from_bits(0x83), None, "reserved");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Continues the message of the last data frame.
    Continuation = 0,
    /// Starts a text message.
    Text = 1,
    /// Starts a binary message.
    Binary = 2,
    /// Closes the connection.
    Close = 8,
    /// Asks for a pong.
    Ping = 9,
    /// Answers a ping, or is unsolicited.
    Pong = 10,
}

impl Opcode {
    /// The opcode in the low four bits of a frame's first byte; the other bits are ignored. `None`
    /// if it is reserved.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits & 0x0f {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    /// Whether this is a control frame: Close, Ping or Pong. Control frames are never fragmented,
    /// have at most 125 bytes, and may come between the fragments of a message.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The header of a frame.
///
/// ```
/// use windlass_ws::{FrameHeader, HEADER_LEN_MAX, Opcode};
///
/// let (opcode, len) = (Opcode::Text, 300);
/// let header = FrameHeader { fin: true, compressed: false, opcode, key: None, len };
/// let mut bytes = [0; HEADER_LEN_MAX];
/// let len = header.encode(&mut bytes);
/// assert_eq!(bytes[..len], [0x81, 126, 1, 44]);
/// assert_eq!(FrameHeader::parse(&bytes[..len]), Ok(Some((header, len))));
/// assert_eq!(FrameHeader::parse(&bytes[..3]), Ok(None), "more bytes are needed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether this is the last frame of its message.
    pub fin: bool,
    /// RSV1: the message is compressed (RFC 7692 section 6). Only its first frame has the bit.
    pub compressed: bool,
    /// The kind of the frame.
    pub opcode: Opcode,
    /// The masking key, if the frame is masked.
    pub key: Option<[u8; 4]>,
    /// The length of the payload in bytes, below 2^63.
    pub len: u64,
}

impl FrameHeader {
    /// Parses the header at the start of `bytes`. Returns it with its length, which is at most
    /// [`HEADER_LEN_MAX`]. `None` means that more bytes are needed:
    /// [`bytes_needed`](Self::bytes_needed) says how many there must be at least.
    ///
    /// # Errors
    ///
    /// Headers that no endpoint may send: [`Violation::ReservedBits`],
    /// [`Violation::ReservedOpcode`], [`Violation::FragmentedControl`], [`Violation::LongControl`],
    /// [`Violation::BadLength`]. The error can come before the header is complete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        parse_with(bytes, None, |_| Ok(()))
    }

    /// The least length in bytes of a header that starts with `bytes`: 2 to 14. It is the length
    /// as soon as two bytes are there, and more than the length of `bytes` as long as
    /// [`parse`](Self::parse) returns `None`.
    ///
    /// ```
    /// use std::io::Read;
    /// use windlass_ws::{FrameHeader, HEADER_LEN_MAX};
    ///
    /// /// Reads a header and nothing behind it.
    /// fn read_header(mut from: impl Read) -> std::io::Result<FrameHeader> {
    ///     let (mut bytes, mut len) = ([0; HEADER_LEN_MAX], 0);
    ///     loop {
    ///         let needed = FrameHeader::bytes_needed(&bytes[..len]);
    ///         from.read_exact(&mut bytes[len..needed])?;
    ///         len = needed;
    ///         match FrameHeader::parse(&bytes[..len]) {
    ///             Ok(Some((header, _))) => return Ok(header),
    ///             Ok(None) => {}
    ///             Err(violation) => return Err(std::io::Error::other(violation)),
    ///         }
    ///     }
    /// }
    ///
    /// assert_eq!(read_header(&b"\x82\x03abc"[..])?.len, 3);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub const fn bytes_needed(bytes: &[u8]) -> usize {
        let [_, second, ..] = *bytes else { return 2 };
        let form = match second & 0x7f {
            126 => 4,
            127 => 10,
            _ => 2,
        };
        form + if second & 0x80 == 0 { 0 } else { 4 }
    }

    /// The length of the header in bytes: 2 to 14.
    #[must_use]
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        plain_len(self.len) + if self.key.is_some() { 4 } else { 0 }
    }

    #[inline]
    pub(crate) const fn first_byte(&self) -> u8 {
        ((self.fin as u8) << 7) | ((self.compressed as u8) << 6) | self.opcode as u8
    }

    /// Writes the header to the start of `out` and returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8; HEADER_LEN_MAX]) -> usize {
        out[0] = self.first_byte();
        let masked = u8::from(self.key.is_some()) << 7;
        let len = plain_len(self.len);
        match len {
            2 => out[1] = masked | self.len as u8,
            4 => {
                out[1] = masked | 126;
                out[2..4].copy_from_slice(&(self.len as u16).to_be_bytes());
            }
            _ => {
                out[1] = masked | 127;
                out[2..10].copy_from_slice(&self.len.to_be_bytes());
            }
        }
        match self.key {
            Some(key) => {
                out[len..len + 4].copy_from_slice(&key);
                len + 4
            }
            None => len,
        }
    }
}

/// The length of an unmasked header: 2, 4 or 10.
#[inline]
pub(crate) const fn plain_len(payload_len: u64) -> usize {
    match payload_len {
        0..=125 => 2,
        126..=0xffff => 4,
        _ => 10,
    }
}

/// Fills `head` with the unmasked, uncompressed header of a complete message. The length of `head`
/// must be [`plain_len`] of the payload's.
#[inline]
pub(crate) fn write_plain(head: &mut [u8], opcode: Opcode, payload_len: usize) {
    let first = 0x80 | opcode as u8;
    if let Ok(head) = <&mut [u8; 2]>::try_from(&mut *head) {
        *head = [first, payload_len as u8];
    } else {
        write_plain_long(head, first, payload_len);
    }
}

fn write_plain_long(head: &mut [u8], first: u8, payload_len: usize) {
    let [a, b, rest @ ..] = head else { return };
    *a = first;
    if let Ok(rest) = <&mut [u8; 2]>::try_from(&mut *rest) {
        *b = 126;
        *rest = (payload_len as u16).to_be_bytes();
    } else {
        *b = 127;
        rest.copy_from_slice(&(payload_len as u64).to_be_bytes());
    }
}

/// The contents of a frame's first byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstByte {
    pub(crate) fin: bool,
    pub(crate) compressed: bool,
    pub(crate) opcode: Opcode,
}

impl FirstByte {
    #[inline]
    fn parse(byte: u8) -> Result<Self, Violation> {
        let Some(opcode) = Opcode::from_bits(byte) else { return Err(Violation::ReservedOpcode) };
        let first = Self { fin: byte & 0x80 != 0, compressed: byte & 0x40 != 0, opcode };
        let may_be_compressed = matches!(opcode, Opcode::Text | Opcode::Binary);
        if byte & 0x30 != 0 || (first.compressed && !may_be_compressed) {
            Err(Violation::ReservedBits)
        } else if opcode.is_control() && !first.fin {
            Err(Violation::FragmentedControl)
        } else {
            Ok(first)
        }
    }
}

/// [`FrameHeader::parse`] for an endpoint that knows whether frames must be masked and which ones
/// are allowed now. It checks byte by byte, so the result does not depend on how many bytes have
/// arrived.
#[inline]
pub(crate) fn parse_with(
    bytes: &[u8],
    masked: Option<bool>,
    check_allowed: impl FnOnce(FirstByte) -> Result<(), Violation>,
) -> Result<Option<(FrameHeader, usize)>, Violation> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
    let first = FirstByte::parse(first)?;
    check_allowed(first)?;
    let Some((&second, rest)) = rest.split_first() else { return Ok(None) };
    let has_key = second & 0x80 != 0;
    match masked {
        Some(true) if !has_key => return Err(Violation::Unmasked),
        Some(false) if has_key => return Err(Violation::Masked),
        _ => {}
    }
    let short = second & 0x7f;
    if first.opcode.is_control() && usize::from(short) > CONTROL_LEN_MAX {
        return Err(Violation::LongControl);
    }
    let (len, rest) = match short {
        126 => {
            let Some((long, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (u64::from(u16::from_be_bytes(*long)), rest)
        }
        127 => {
            let Some((long, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (u64::from_be_bytes(*long), rest)
        }
        short => (u64::from(short), rest),
    };
    let form = match short {
        126 => 4,
        127 => 10,
        _ => 2,
    };
    if plain_len(len) != form || len >> 63 != 0 {
        return Err(Violation::BadLength);
    }
    let key = if has_key {
        let Some(key) = rest.first_chunk() else { return Ok(None) };
        Some(*key)
    } else {
        None
    };
    let header = FrameHeader {
        fin: first.fin,
        compressed: first.compressed,
        opcode: first.opcode,
        key,
        len,
    };
    Ok(Some((header, form + if has_key { 4 } else { 0 })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_reads_back_and_is_awaited_until_it_is_whole() {
        for len in [0, 1, 125, 126, 127, 0xffff, 0x1_0000, (1 << 63) - 1] {
            for key in [None, Some([1, 2, 3, 4])] {
                for opcode in [
                    Opcode::Continuation,
                    Opcode::Text,
                    Opcode::Binary,
                    Opcode::Close,
                    Opcode::Ping,
                    Opcode::Pong,
                ] {
                    for fin in [true, false] {
                        if opcode.is_control() && (len > 125 || !fin) {
                            continue;
                        }
                        let compressed = opcode == Opcode::Text;
                        let header = FrameHeader { fin, compressed, opcode, key, len };
                        let mut bytes = [0; HEADER_LEN_MAX];
                        let written = header.encode(&mut bytes);
                        assert_eq!(written, header.encoded_len());
                        assert_eq!(FrameHeader::parse(&bytes), Ok(Some((header, written))));
                        for short in 0..written {
                            let start = &bytes[..short];
                            let context = (header, short);
                            assert_eq!(FrameHeader::parse(start), Ok(None), "{context:?}");
                            let needed = if short < 2 { 2 } else { written };
                            assert_eq!(FrameHeader::bytes_needed(start), needed, "{context:?}");
                        }
                        assert_eq!(FrameHeader::bytes_needed(&bytes), written, "with a payload");
                    }
                }
            }
        }
    }

    #[test]
    fn an_invalid_header_is_found_at_its_byte() {
        use Violation::*;
        let cases: [(&[u8], usize, Violation); 15] = [
            (&[0x91], 1, ReservedBits),
            (&[0xa1], 1, ReservedBits),
            (&[0xc0], 1, ReservedBits),
            (&[0xc9], 1, ReservedBits),
            (&[0x83], 1, ReservedOpcode),
            (&[0x87], 1, ReservedOpcode),
            (&[0x8b], 1, ReservedOpcode),
            (&[0x8f], 1, ReservedOpcode),
            (&[0x09], 1, FragmentedControl),
            (&[0x89, 126], 2, LongControl),
            (&[0x88, 127], 2, LongControl),
            (&[0x82, 126, 0, 125], 4, BadLength),
            (&[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], 10, BadLength),
            (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], 10, BadLength),
            (&[0x82, 0xfe, 0, 1], 4, BadLength),
        ];
        for (bytes, at, violation) in cases {
            assert_eq!(FrameHeader::parse(&bytes[..at - 1]), Ok(None), "{bytes:x?} too early");
            assert_eq!(FrameHeader::parse(bytes), Err(violation), "{bytes:x?}");
        }
    }

    #[test]
    fn a_plain_header_is_that_of_an_unmasked_message() {
        for len in [0, 125, 126, 0xffff, 0x1_0000] {
            let header = FrameHeader {
                fin: true,
                compressed: false,
                opcode: Opcode::Binary,
                key: None,
                len: len as u64,
            };
            let mut bytes = [0; HEADER_LEN_MAX];
            let written = header.encode(&mut bytes);
            assert_eq!(plain_len(len as u64), written);
            let mut head = [7; HEADER_LEN_MAX];
            write_plain(&mut head[..written], Opcode::Binary, len);
            assert_eq!(head[..written], bytes[..written]);
        }
    }
}
