//! One frame.

use std::{fmt, io::Write, str::Utf8Error};

use bytes::Bytes;

use super::{
    FrameHeader, Utf8Bytes,
    coding::{CloseCode, Control, OpCode},
};
use crate::error::Result;

/// The contents of a Close frame that has a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// Why the connection is closed.
    pub code: CloseCode,
    /// The reason, for people to read: at most 123 bytes.
    pub reason: Utf8Bytes,
}

impl fmt::Display for CloseFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.code)
    }
}

/// A frame: a header, and an unmasked payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    header: FrameHeader,
    payload: Bytes,
}

impl Frame {
    /// How many bytes the frame has, header and payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.header.len(self.payload.len() as u64) + self.payload.len()
    }

    /// Always `false`, because of the header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// The header, to change it.
    #[inline]
    pub fn header_mut(&mut self) -> &mut FrameHeader {
        &mut self.header
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The payload as text.
    ///
    /// # Errors
    /// It is not UTF-8.
    #[inline]
    pub fn into_text(self) -> Result<Utf8Bytes, Utf8Error> {
        self.payload.try_into()
    }

    /// The payload.
    #[inline]
    pub fn into_payload(self) -> Bytes {
        self.payload
    }

    /// The payload as text.
    ///
    /// # Errors
    /// It is not UTF-8.
    #[inline]
    pub fn to_text(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.payload)
    }

    /// A data frame.
    #[inline]
    pub fn message(data: impl Into<Bytes>, opcode: OpCode, is_final: bool) -> Frame {
        debug_assert!(matches!(opcode, OpCode::Data(_)), "{opcode} is no opcode of a data frame");
        let header = FrameHeader { is_final, opcode, ..FrameHeader::default() };
        Self { header, payload: data.into() }
    }

    /// A pong.
    #[inline]
    pub fn pong(data: impl Into<Bytes>) -> Frame {
        Self::control(Control::Pong, data.into())
    }

    /// A ping.
    #[inline]
    pub fn ping(data: impl Into<Bytes>) -> Frame {
        Self::control(Control::Ping, data.into())
    }

    /// A Close frame.
    #[inline]
    pub fn close(msg: Option<CloseFrame>) -> Frame {
        let payload = msg.map(|CloseFrame { code, reason }| {
            [&u16::from(code).to_be_bytes()[..], reason.as_bytes()].concat()
        });
        Self::control(Control::Close, payload.unwrap_or_default().into())
    }

    fn control(control: Control, payload: Bytes) -> Self {
        let header = FrameHeader { opcode: OpCode::Control(control), ..FrameHeader::default() };
        Self { header, payload }
    }

    /// A frame of these parts.
    pub fn from_payload(header: FrameHeader, payload: Bytes) -> Self {
        Self { header, payload }
    }

    /// Writes the frame. The payload is masked if the header has a key.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn format(self, output: &mut impl Write) -> Result<()> {
        self.header.format(self.payload.len() as u64, output)?;
        match self.header.mask {
            Some(key) => {
                let mut payload = Vec::from(self.payload);
                windlass_ws::mask(&mut payload, key);
                output.write_all(&payload)?;
            }
            None => output.write_all(&self.payload)?,
        }
        Ok(())
    }
}

impl fmt::Display for Frame {
    /// Several lines, with the payload in hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrameHeader { is_final, rsv1, rsv2, rsv3, opcode, .. } = self.header;
        writeln!(f, "opcode: {opcode}, final: {is_final}, reserved bits: {rsv1} {rsv2} {rsv3}")?;
        writeln!(f, "length: {}, of the payload: {}", self.len(), self.payload.len())?;
        f.write_str("payload: 0x")?;
        self.payload.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
