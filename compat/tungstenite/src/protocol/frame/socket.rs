//! A stream of frames, which are not checked beyond their headers.

use std::io::{self, Cursor, Read, Write};

use bytes::{Buf as _, BytesMut};

use super::{Frame, FrameHeader};
use crate::{
    error::{CapacityError, Error, Result},
    protocol::{Message, output::Output},
};

/// How many bytes are read at a time.
const READ_LEN: usize = 64 << 10;

/// Reads and writes single frames.
#[derive(Debug)]
pub struct FrameSocket<Stream> {
    stream: Stream,
    /// What was read and is no frame yet.
    input: BytesMut,
    /// The header that was read last, while its payload has not arrived, and its length.
    header: Option<(FrameHeader, usize)>,
    output: Output,
}

impl<Stream> FrameSocket<Stream> {
    /// Frames on a stream.
    pub fn new(stream: Stream) -> Self {
        Self::from_partially_read(stream, Vec::new())
    }

    /// Frames on a stream of which `part` was read before.
    pub fn from_partially_read(stream: Stream, part: Vec<u8>) -> Self {
        let input = BytesMut::from(&part[..]);
        Self { stream, input, header: None, output: Output::default() }
    }

    /// The stream, and what was read beyond the last frame.
    pub fn into_inner(self) -> (Stream, BytesMut) {
        (self.stream, self.input)
    }

    /// The stream.
    pub fn get_ref(&self) -> &Stream {
        &self.stream
    }

    /// The stream.
    pub fn get_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}

impl<Stream> FrameSocket<Stream>
where
    Stream: Read,
{
    /// Reads a frame. `None` is the end of the stream, also within a frame.
    ///
    /// # Errors
    /// [`CapacityError::MessageTooLong`] if the payload has more than `max_size` bytes, a reserved
    /// opcode, and those of the stream.
    pub fn read(&mut self, max_size: Option<usize>) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.buffered_frame(max_size)? {
                return Ok(Some(frame));
            }
            let start = self.input.len();
            self.input.resize(start + READ_LEN, 0);
            let result = self.stream.read(&mut self.input[start..]);
            let count = *result.as_ref().unwrap_or(&0);
            self.input.truncate(start + count);
            if result? == 0 {
                return Ok(None);
            }
        }
    }

    fn buffered_frame(&mut self, max_size: Option<usize>) -> Result<Option<Frame>> {
        if self.header.is_none() {
            let mut cursor = Cursor::new(&self.input[..]);
            let Some((header, length)) = FrameHeader::parse(&mut cursor)? else { return Ok(None) };
            let header_len = cursor.position() as usize;
            self.input.advance(header_len);
            let max_size = max_size.unwrap_or(usize::MAX);
            let length = match usize::try_from(length) {
                Ok(length) if length <= max_size => length,
                other => {
                    let size = other.unwrap_or(usize::MAX);
                    return Err(Error::Capacity(CapacityError::MessageTooLong { size, max_size }));
                }
            };
            self.header = Some((header, length));
        }
        match self.header.take_if(|(_, length)| *length <= self.input.len()) {
            Some((header, length)) => {
                let payload = self.input.split_to(length).freeze();
                Ok(Some(Frame::from_payload(header, payload)))
            }
            None => Ok(None),
        }
    }
}

impl<Stream> FrameSocket<Stream>
where
    Stream: Write,
{
    /// Writes a frame and flushes the stream.
    ///
    /// # Errors
    /// Those of the stream. The frame was queued.
    pub fn send(&mut self, frame: Frame) -> Result<()> {
        self.write(frame)?;
        self.flush()
    }

    /// Queues a frame, and writes what is queued as far as the stream takes it.
    ///
    /// # Errors
    /// Those of the stream. The frame was queued.
    pub fn write(&mut self, frame: Frame) -> Result<()> {
        if self.output.len().checked_add(frame.len()).is_none() {
            return Err(Error::WriteBufferFull(Box::new(Message::Frame(frame))));
        }
        self.output.push_frame(frame)?;
        Ok(self.output.write(&mut self.stream)?)
    }

    /// Writes what is queued, and flushes the stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn flush(&mut self) -> Result<()> {
        self.output.write(&mut self.stream)?;
        Ok::<(), io::Error>(self.stream.flush()?).map_err(Error::Io)
    }
}
