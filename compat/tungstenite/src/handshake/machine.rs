//! One step of a handshake at a time.

use std::io::{Cursor, ErrorKind, Read, Write};

use bytes::Buf as _;

use crate::{
    buffer::ReadBuffer,
    error::{Error, ProtocolError, Result},
    util::NonBlockingResult as _,
};

/// The longest head, in bytes.
const HEAD_LEN_MAX: usize = 64 << 10;

/// How many bytes are parsed at most, to read one head. It is parsed again whenever more of it
/// arrives. A head of 2 KiB may come byte by byte, and one of 64 KiB in 64 pieces.
const PARSED_LEN_MAX: usize = 4 << 20;

/// The stream of a handshake, and the head that is being read or written.
#[derive(Debug)]
pub struct HandshakeMachine<Stream> {
    stream: Stream,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Reads a head. So many bytes were parsed in vain.
    Reading { buffer: ReadBuffer<4096>, parsed: usize },
    /// Writes a head.
    Writing(Cursor<Vec<u8>>),
    /// Flushes the stream.
    Flushing,
}

impl<Stream> HandshakeMachine<Stream> {
    /// Reads the peer's head next.
    pub fn start_read(stream: Stream) -> Self {
        Self { stream, state: State::Reading { buffer: ReadBuffer::new(), parsed: 0 } }
    }

    /// Writes these bytes next.
    pub fn start_write<D: Into<Vec<u8>>>(stream: Stream, data: D) -> Self {
        Self { stream, state: State::Writing(Cursor::new(data.into())) }
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

impl<Stream: Read + Write> HandshakeMachine<Stream> {
    /// Reads, writes or flushes once.
    ///
    /// # Errors
    /// [`ProtocolError::HandshakeIncomplete`] at the end of the stream. [`Error::AttackAttempt`]
    /// for a head of more than 64 KiB, or one in too many pieces. Those of the parser and the
    /// stream.
    pub fn single_round<Obj: TryParse>(mut self) -> Result<RoundResult<Obj, Stream>> {
        match self.state {
            State::Reading { mut buffer, mut parsed } => {
                let Some(count) = buffer.read_from(&mut self.stream).no_block()? else {
                    self.state = State::Reading { buffer, parsed };
                    return Ok(RoundResult::WouldBlock(self));
                };
                if count == 0 {
                    return Err(Error::Protocol(ProtocolError::HandshakeIncomplete));
                }
                parsed += buffer.remaining();
                if buffer.remaining() > HEAD_LEN_MAX || parsed > PARSED_LEN_MAX {
                    return Err(Error::AttackAttempt);
                }
                match Obj::try_parse(buffer.chunk())? {
                    Some((len, result)) => {
                        buffer.advance(len);
                        let (stream, tail) = (self.stream, buffer.into_vec());
                        let stage = StageResult::DoneReading { result, stream, tail };
                        Ok(RoundResult::StageFinished(stage))
                    }
                    None => {
                        self.state = State::Reading { buffer, parsed };
                        Ok(RoundResult::Incomplete(self))
                    }
                }
            }
            State::Writing(mut data) => {
                let written = match data.has_remaining() {
                    true => self.stream.write(data.chunk()).no_block()?,
                    false => Some(0),
                };
                match written {
                    Some(0) if data.has_remaining() => Err(Error::Io(ErrorKind::WriteZero.into())),
                    Some(count) => {
                        data.advance(count);
                        self.state = match data.has_remaining() {
                            true => State::Writing(data),
                            false => State::Flushing,
                        };
                        Ok(RoundResult::Incomplete(self))
                    }
                    None => {
                        self.state = State::Writing(data);
                        Ok(RoundResult::WouldBlock(self))
                    }
                }
            }
            State::Flushing => match self.stream.flush().no_block()? {
                Some(()) => Ok(RoundResult::StageFinished(StageResult::DoneWriting(self.stream))),
                None => Ok(RoundResult::WouldBlock(self)),
            },
        }
    }
}

/// What a round has done.
#[derive(Debug)]
pub enum RoundResult<Obj, Stream> {
    /// Nothing: the stream is not ready.
    WouldBlock(HandshakeMachine<Stream>),
    /// A part of the stage.
    Incomplete(HandshakeMachine<Stream>),
    /// The last part of the stage.
    StageFinished(StageResult<Obj, Stream>),
}

/// The result of a stage.
#[derive(Debug)]
pub enum StageResult<Obj, Stream> {
    /// A head was read.
    DoneReading {
        /// The head.
        result: Obj,
        /// The stream.
        stream: Stream,
        /// What was read beyond the head.
        tail: Vec<u8>,
    },
    /// A head was written, and the stream flushed.
    DoneWriting(Stream),
}

/// Something that is parsed from the bytes that have arrived.
pub trait TryParse: Sized {
    /// Parses it, and returns how many bytes it has. `Ok(None)` asks for more bytes.
    ///
    /// # Errors
    /// The bytes cannot become valid.
    fn try_parse(data: &[u8]) -> Result<Option<(usize, Self)>>;
}
