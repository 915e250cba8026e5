//! The header of a frame (RFC 6455 section 5.2), with every bit that can be set.

use std::io::{Cursor, Write};

use super::coding::{Control, Data, OpCode};
use crate::error::{Error, ProtocolError, Result};

/// The header of a frame, without its length.
#[allow(missing_copy_implementations, reason = "the interface has none")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The last frame of its message.
    pub is_final: bool,
    /// The first reserved bit.
    pub rsv1: bool,
    /// The second reserved bit.
    pub rsv2: bool,
    /// The third reserved bit.
    pub rsv3: bool,
    /// The opcode.
    pub opcode: OpCode,
    /// The masking key, if the frame is masked.
    pub mask: Option<[u8; 4]>,
}

impl Default for FrameHeader {
    /// The header of an unmasked Close frame.
    fn default() -> Self {
        Self {
            is_final: true,
            rsv1: false,
            rsv2: false,
            rsv3: false,
            opcode: OpCode::Control(Control::Close),
            mask: None,
        }
    }
}

impl FrameHeader {
    /// Reads a header, and the length of the payload behind it. `None` means that more bytes are
    /// needed; the cursor stays where it was.
    ///
    /// # Errors
    /// [`ProtocolError::InvalidOpcode`] if the opcode is reserved.
    pub fn parse(cursor: &mut Cursor<impl AsRef<[u8]>>) -> Result<Option<(Self, u64)>> {
        let start = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
        let bytes = cursor.get_ref().as_ref().get(start..).unwrap_or_default();
        let found = parse(bytes)?;
        Ok(found.map(|(header, header_len, payload_len)| {
            cursor.set_position((start + header_len) as u64);
            (header, payload_len)
        }))
    }

    /// How many bytes this header has before a payload of `length` bytes.
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self, length: u64) -> usize {
        let length_len = match length {
            0..=125 => 0,
            126..=0xffff => 2,
            _ => 8,
        };
        2 + length_len + if self.mask.is_some() { 4 } else { 0 }
    }

    /// Writes the header of a frame with a payload of `length` bytes.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn format(&self, length: u64, output: &mut impl Write) -> Result<()> {
        let bit = |is_set: bool, place: u8| u8::from(is_set) << place;
        let first = bit(self.is_final, 7) | bit(self.rsv1, 6) | bit(self.rsv2, 5);
        let first = first | bit(self.rsv3, 4) | u8::from(self.opcode);
        let masked = bit(self.mask.is_some(), 7);
        match length {
            0..=125 => output.write_all(&[first, masked | length as u8])?,
            126..=0xffff => {
                output.write_all(&[first, masked | 126])?;
                output.write_all(&(length as u16).to_be_bytes())?;
            }
            _ => {
                output.write_all(&[first, masked | 127])?;
                output.write_all(&length.to_be_bytes())?;
            }
        }
        if let Some(mask) = &self.mask {
            output.write_all(mask)?;
        }
        Ok(())
    }
}

/// The header at the start of the bytes, its length, and that of the payload.
fn parse(bytes: &[u8]) -> Result<Option<(FrameHeader, usize, u64)>> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let (length, rest) = match second & 0x7f {
        126 => {
            let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (u64::from(u16::from_be_bytes(*length)), rest)
        }
        127 => {
            let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (u64::from_be_bytes(*length), rest)
        }
        length => (u64::from(length), rest),
    };
    let (mask, rest) = if second & 0x80 == 0 {
        (None, rest)
    } else {
        let Some((mask, rest)) = rest.split_first_chunk() else { return Ok(None) };
        (Some(*mask), rest)
    };
    let opcode = OpCode::from(first & 0x0f);
    if let OpCode::Data(Data::Reserved(code)) | OpCode::Control(Control::Reserved(code)) = opcode {
        return Err(Error::Protocol(ProtocolError::InvalidOpcode(code)));
    }
    let is_set = |place: u8| first >> place & 1 != 0;
    let header = FrameHeader {
        is_final: is_set(7),
        rsv1: is_set(6),
        rsv2: is_set(5),
        rsv3: is_set(4),
        opcode,
        mask,
    };
    Ok(Some((header, bytes.len() - rest.len(), length)))
}
