//! The protocol of one connection, without its stream.
//!
//! 1. The engine decides what arrives and what is answered. What it answers waits apart, in
//!    `answer`: a pong until a later one replaces it, or the Close frame.
//! 2. The answer follows what was queued before it, with the next `read`, `write` or `flush`.
//! 3. `state` says which calls are possible. The engine knows the same, but for raw frames of the
//!    user, which go past it.
//! 4. After a violation of the peer, the connection is over. Its Close frame is written as far as
//!    the stream takes it at once.

use std::io::{self, ErrorKind, Read, Write};

#[cfg(feature = "deflate")]
use windlass_ws::deflate::Agreement;
use windlass_ws::{Close, Engine, EngineEvent, FrameSendError, MessageRef, Scratch, Violation};

use super::{
    CloseFrame, Message, Role, WebSocketConfig,
    answer::{self, Answer},
    frame::{
        Frame, FrameHeader, Utf8Bytes, checked_str,
        coding::{CloseCode, Data, OpCode},
    },
    input::Input,
    lent::{LentMessage, Receive},
    output::Output,
    state::State,
    violation,
};
use crate::{
    error::{Error, ProtocolError, Result},
    shared::{self, SHORT_LEN_MAX, Tools},
};
use bytes::Bytes;

/// The protocol of one connection, for whoever owns the stream. [`WebSocket`](super::WebSocket) has
/// both.
#[derive(Debug)]
pub struct WebSocketContext {
    role: Role,
    config: WebSocketConfig,
    engine: Engine,
    state: State,
    input: Input,
    output: Output,
    answer: Option<Answer>,
    /// An answer was written, and the stream not flushed since.
    is_answer_unflushed: bool,
    /// The second for which the engine counts the next control frame. Without a limit, each frame
    /// has its own.
    second: u32,
}

/// What the engine found.
enum Found<M> {
    Message(M),
    Close(Option<CloseFrame>),
    Violation(Violation),
}

impl WebSocketContext {
    /// The protocol after a handshake.
    ///
    /// # Panics
    /// If `max_write_buffer_size` is not more than `write_buffer_size`.
    pub fn new(role: Role, config: Option<WebSocketConfig>) -> Self {
        Self::from_partially_read(Vec::new(), role, config)
    }

    /// The protocol after a handshake, of which `part` was read beyond the handshake.
    ///
    /// # Panics
    /// If `max_write_buffer_size` is not more than `write_buffer_size`.
    pub fn from_partially_read(part: Vec<u8>, role: Role, config: Option<WebSocketConfig>) -> Self {
        let config = config.unwrap_or_default();
        config.check();
        Self {
            role,
            config,
            engine: Engine::new(&shared::config(config.engine(role))),
            state: State::Open,
            input: Input::new(part),
            output: Output::default(),
            answer: None,
            is_answer_unflushed: false,
            second: 0,
        }
    }

    /// The same with permessage-deflate, as a handshake of other code agreed on it. Call it before
    /// the first message. Not in tungstenite.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn with_agreement(mut self, agreement: Agreement) -> Self {
        let deflate = self.config.deflate.unwrap_or_default();
        let config = shared::config(self.config.engine(self.role));
        self.engine = Engine::with_deflate(&config, &agreement, &deflate);
        self
    }

    /// Changes the settings, for what is read and written from now on.
    ///
    /// # Panics
    /// If `max_write_buffer_size` is not more than `write_buffer_size`.
    pub fn set_config(&mut self, set_func: impl FnOnce(&mut WebSocketConfig)) {
        set_func(&mut self.config);
        self.config.check();
        self.engine.set_config(&shared::config(self.config.engine(self.role)));
    }

    /// The settings.
    pub fn get_config(&self) -> &WebSocketConfig {
        &self.config
    }

    /// Whether messages may arrive: the peer has not sent a Close frame.
    pub fn can_read(&self) -> bool {
        self.state.can_read()
    }

    /// Whether messages can be sent: neither side has sent a Close frame.
    pub fn can_write(&self) -> bool {
        self.state == State::Open
    }

    /// Reads a message. Pings and the peer's Close frame are answered with the next call.
    ///
    /// # Errors
    /// [`Error::ConnectionClosed`] is the end. [`Error::Io`] with `WouldBlock` loses nothing.
    #[inline]
    pub fn read<Stream>(&mut self, stream: &mut Stream) -> Result<Message>
    where
        Stream: Read + Write,
    {
        self.receive(stream)
    }

    /// [`read`](Self::read) without a copy: the message stays in the buffer where it was received,
    /// until the next call that reads. That call gives the buffer back. Not in tungstenite.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    #[inline]
    pub fn recv<Stream>(&mut self, stream: &mut Stream) -> Result<LentMessage<'_>>
    where
        Stream: Read + Write,
    {
        let control = self.__receive(stream)?;
        Ok(self.__lent(control))
    }

    /// The first half of [`recv`](Self::recv): a control frame, or nothing, and data are lent.
    #[doc(hidden)]
    #[inline]
    pub fn __receive<Stream>(&mut self, stream: &mut Stream) -> Result<Option<Message>>
    where
        Stream: Read + Write,
    {
        self.receive(stream)
    }

    /// The second half: that frame, or what is lent.
    #[doc(hidden)]
    #[inline]
    pub fn __lent(&self, control: Option<Message>) -> LentMessage<'_> {
        match (control, self.input.lent()) {
            (Some(control), _) => LentMessage::Control(control),
            (None, (true, bytes)) => LentMessage::Text(checked_str(bytes)),
            (None, (false, bytes)) => LentMessage::Binary(bytes),
        }
    }

    #[inline]
    fn receive<M: Receive>(&mut self, stream: &mut (impl Read + Write)) -> Result<M> {
        self.input.take_back();
        if self.answer.is_some() || self.is_answer_unflushed || self.state != State::Open {
            self.drive(stream)?;
        }
        loop {
            if self.input.is_empty() {
                self.read_once(stream)?;
            }
            if !self.state.can_read() {
                self.input.clear();
                return Err(Error::Protocol(ProtocolError::ReceivedAfterClosing));
            }
            if !M::LENDS {
                if let Some(message) = self.copied() {
                    return Ok(message.into());
                }
            }
            if let Some(missing @ 1..) = self.engine.missing(self.input.bytes()) {
                if self.input.has_room(missing) {
                    self.read_rest(stream, missing)?;
                    continue;
                }
            }
            match self.next_found() {
                None => {}
                Some(Found::Message(message)) => return Ok(message),
                Some(Found::Close(close)) => return Ok(self.note_close(close).into()),
                Some(Found::Violation(violation)) => {
                    return self.fail(violation, stream).map(M::from);
                }
            }
        }
    }

    /// The next message, if it lies whole in the input: it is copied while it is unmasked.
    #[inline(always)]
    fn copied(&mut self) -> Option<Message> {
        let message = self.engine.whole_message(self.input.bytes())?;
        let len = message.payload_len();
        let data = if len > SHORT_LEN_MAX {
            message.to_vec().map(Bytes::from)
        } else {
            shared::with_tools(|tools| tools.block.fill(len, |room| message.copy_to(room)))
        };
        // A pass fails the connection.
        let data = data.ok()?;
        let (is_text, frame_len) = (message.is_text(), message.frame_len());
        self.input.consume(frame_len);
        Some(match is_text {
            true => Message::Text(Utf8Bytes::from_checked(data)),
            false => Message::Binary(data),
        })
    }

    /// Does what comes before reading, if something is to be done.
    #[inline(never)]
    fn drive<Stream: Read + Write>(&mut self, stream: &mut Stream) -> Result<()> {
        if self.state == State::Over {
            return Err(Error::AlreadyClosed);
        }
        if self.answer.is_some() || self.is_answer_unflushed {
            return match self.flush(stream) {
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    // What the peer sends can be read before it takes the answer.
                    self.is_answer_unflushed = true;
                    Ok(())
                }
                result => result,
            };
        }
        if self.role == Role::Server && !self.state.can_read() {
            self.state = State::Over;
            return Err(Error::ConnectionClosed);
        }
        Ok(())
    }

    /// Reads bytes, at least one.
    #[inline]
    fn read_once(&mut self, stream: &mut impl Read) -> Result<()> {
        let result = self.input.read(stream);
        self.check_read(result)
    }

    /// Reads the rest of a frame behind its beginning, so that the engine gets it whole.
    #[inline(never)]
    fn read_rest(&mut self, stream: &mut impl Read, missing: usize) -> Result<()> {
        let result = self.input.read_more(stream, missing);
        if !matches!(result, Ok(1..)) {
            // The engine keeps what is there, so that a socket that waits holds no buffer.
            let found = self.next_found::<Message>();
            debug_assert!(found.is_none(), "the frame is incomplete");
        }
        self.check_read(result)
    }

    #[inline]
    fn check_read(&mut self, result: io::Result<usize>) -> Result<()> {
        match result {
            Ok(1..) => Ok(()),
            Ok(0) => {
                let is_clean = !self.state.can_read();
                self.state = State::Over;
                Err(match is_clean {
                    true => Error::ConnectionClosed,
                    false => Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                })
            }
            Err(error) => Err(self.stream_error(error)),
        }
    }

    /// Processes what was read, up to the next event.
    #[inline]
    fn next_found<M: Receive>(&mut self) -> Option<Found<M>> {
        let Self { engine, input, answer, second, config, .. } = self;
        shared::with_tools(|Tools { scratch, block }| {
            scratch.set_second(*second);
            let mut pass = engine.process(input.bytes_mut(), scratch);
            let mut is_pong = false;
            let mut data = None;
            let mut note = |is_text: bool, bytes: &[u8]| {
                data = M::LENDS.then(|| (is_text, bytes.as_ptr().addr(), bytes.len()));
            };
            let found = match pass.next() {
                Some(EngineEvent::Text(text)) => {
                    note(true, text.as_bytes());
                    Some(Found::Message(M::text(&text, block)))
                }
                Some(EngineEvent::Binary(bytes)) => {
                    note(false, &bytes);
                    Some(Found::Message(M::binary(&bytes, block)))
                }
                Some(EngineEvent::Ping(payload)) => {
                    is_pong = true;
                    *second = config.next_second(*second);
                    Some(Found::Message(Message::Ping(Bytes::copy_from_slice(payload)).into()))
                }
                Some(EngineEvent::Pong(payload)) => {
                    *second = config.next_second(*second);
                    Some(Found::Message(Message::Pong(Bytes::copy_from_slice(payload)).into()))
                }
                Some(EngineEvent::Close(Close { code, reason })) => Some(Found::Close(
                    code.map(|code| CloseFrame { code: code.get().into(), reason: reason.into() }),
                )),
                Some(EngineEvent::Violation(violation)) => Some(Found::Violation(violation)),
                // Pieces are not asked for.
                Some(_) | None => None,
            };
            let message = data.and_then(|_| pass.take_message());
            let outcome = pass.finish();
            if outcome.len > 0 {
                let pieces = scratch.output(&outcome, input.bytes_mut());
                answer::set(answer, is_pong, pieces.flatten().copied().collect());
            }
            match data {
                Some(data) => input.lend(outcome.consumed, message, data),
                None => input.consume(outcome.consumed),
            }
            found
        })
    }

    /// The peer's Close frame has arrived, and the engine has answered it.
    #[cold]
    fn note_close(&mut self, close: Option<CloseFrame>) -> Message {
        self.state = match self.state {
            State::ClosedByUs => State::Acknowledged,
            _ => State::ClosedByPeer,
        };
        Message::Close(close)
    }

    #[cold]
    fn fail<Stream: Read + Write>(
        &mut self,
        violation: Violation,
        stream: &mut Stream,
    ) -> Result<Message> {
        if violation == Violation::BadCloseCode {
            // The interface shows it as a Close frame with the code that was answered.
            let reason = Utf8Bytes::from_static("Protocol violation");
            return Ok(self.note_close(Some(CloseFrame { code: CloseCode::Protocol, reason })));
        }
        let error = violation::error(violation, &self.engine, &self.config);
        self.input.clear();
        // The violation is reported, whether or not the peer can be told.
        let _ = self.queue_answer(stream).and_then(|()| self.write_out(stream));
        let _ = stream.flush();
        self.state = State::Over;
        Err(error)
    }

    /// Queues a message. It is written when more than `write_buffer_size` bytes wait, and by
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::WriteBufferFull`] returns the message. After [`Error::Io`] it waits, and is written
    /// by a later call.
    pub fn write<Stream>(&mut self, stream: &mut Stream, message: Message) -> Result<()>
    where
        Stream: Read + Write,
    {
        self.queue(stream, message, false)
    }

    /// [`write`](Self::write) and [`flush`](Self::flush). Not in tungstenite, where only
    /// `WebSocket` has it.
    ///
    /// # Errors
    /// Those of both.
    #[inline]
    pub fn send<Stream>(&mut self, stream: &mut Stream, message: Message) -> Result<()>
    where
        Stream: Read + Write,
    {
        self.queue(stream, message, true)?;
        self.flush(stream)
    }

    /// Queues a message, or writes it at once if `now` is set and nothing waits.
    #[inline]
    fn queue<Stream>(&mut self, stream: &mut Stream, message: Message, now: bool) -> Result<()>
    where
        Stream: Read + Write,
    {
        match self.state {
            State::Open => {}
            State::Over => return Err(Error::AlreadyClosed),
            _ => return Err(Error::Protocol(ProtocolError::SendAfterClosing)),
        }
        match message {
            Message::Text(text) => self.queue_data(stream, MessageRef::Text(&text), now, || {
                Frame::message(text.clone(), OpCode::Data(Data::Text), true)
            })?,
            Message::Binary(data) => {
                self.queue_data(stream, MessageRef::Binary(&data), now, || {
                    Frame::message(data.clone(), OpCode::Data(Data::Binary), true)
                })?
            }
            Message::Ping(data) => {
                self.check_room(data.len(), || Frame::ping(data.clone()))?;
                self.queue_frame(stream, now, |engine, scratch| engine.ping(&data, scratch))?;
            }
            Message::Pong(data) => {
                shared::with_scratch(|scratch| {
                    let frame = self.engine.pong(&data, scratch).map_err(violation::refused)?;
                    answer::set(&mut self.answer, true, frame.into());
                    Ok::<_, Error>(())
                })?;
                // The user decides when it is flushed.
                return self.queue_answer(stream);
            }
            Message::Close(close) => return self.close(stream, close),
            Message::Frame(frame) => self.queue_raw(stream, frame)?,
        }
        if self.answer.is_some() || self.is_answer_unflushed {
            self.queue_answer(stream)?;
            self.flush(stream)?;
        }
        Ok(())
    }

    #[inline]
    fn queue_data<Stream: Read + Write>(
        &mut self,
        stream: &mut Stream,
        message: MessageRef<'_>,
        now: bool,
        frame: impl FnOnce() -> Frame,
    ) -> Result<()> {
        let len = message.as_bytes().len();
        self.check_room(len, frame)?;
        // A frame that waits is copied once, if it is the same without the engine.
        let is_plain = self.role == Role::Server && !self.engine.has_deflate();
        let waits = !self.output.is_empty() || !(now || len > self.config.write_buffer_size);
        if is_plain && waits {
            self.output.push_message(message);
            return self.write_beyond_buffer(stream);
        }
        self.queue_frame(stream, now, |engine, scratch| engine.send(message, scratch))
    }

    /// Checks that a frame with such a payload fits into the write buffer. Otherwise the frame is
    /// returned.
    #[inline]
    fn check_room(&self, payload_len: usize, frame: impl FnOnce() -> Frame) -> Result<()> {
        let mask = (self.role == Role::Client).then_some([0; 4]);
        let header = FrameHeader { mask, ..FrameHeader::default() };
        let frame_len = header.len(payload_len as u64) + payload_len;
        match self.output.len().checked_add(frame_len) {
            Some(len) if len <= self.config.max_write_buffer_size => Ok(()),
            _ => Err(Error::WriteBufferFull(Box::new(Message::Frame(frame())))),
        }
    }

    /// Queues a frame that the engine makes.
    #[inline]
    fn queue_frame<Stream: Read + Write>(
        &mut self,
        stream: &mut Stream,
        now: bool,
        make: impl for<'s> FnOnce(
            &mut Engine,
            &'s mut Scratch,
        ) -> std::result::Result<&'s [u8], FrameSendError>,
    ) -> Result<()> {
        let Self { engine, output, config, .. } = self;
        let written = shared::with_scratch(|scratch| {
            let frame = make(engine, scratch).map_err(violation::refused)?;
            if output.is_empty() && (now || frame.len() > config.write_buffer_size) {
                return Ok(output.write_now(stream, frame));
            }
            output.push(frame);
            Ok::<_, Error>(Ok(()))
        })?;
        written.map_err(|error| self.stream_error(error))?;
        self.write_beyond_buffer(stream)
    }

    /// Queues a frame of the user as it is.
    #[cold]
    fn queue_raw<Stream: Read + Write>(
        &mut self,
        stream: &mut Stream,
        mut frame: Frame,
    ) -> Result<()> {
        if self.role == Role::Client {
            let mut key = [0; 4];
            shared::entropy(&mut key);
            frame.header_mut().mask = Some(key);
        }
        match self.output.len().checked_add(frame.len()) {
            Some(len) if len <= self.config.max_write_buffer_size => {}
            _ => return Err(Error::WriteBufferFull(Box::new(Message::Frame(frame)))),
        }
        self.output.push_frame(frame)?;
        self.write_beyond_buffer(stream)
    }

    /// Writes what waits, if it is more than the write buffer is to hold.
    #[inline]
    fn write_beyond_buffer(&mut self, stream: &mut impl Write) -> Result<()> {
        if self.output.len() > self.config.write_buffer_size {
            self.write_out(stream)
        } else {
            Ok(())
        }
    }

    /// Moves the answer to what waits.
    #[cold]
    fn queue_answer<Stream: Read + Write>(&mut self, stream: &mut Stream) -> Result<()> {
        if let Some(answer) = self.answer.take() {
            self.output.push(&answer.frame);
            // Until a flush has succeeded.
            self.is_answer_unflushed = true;
            self.write_beyond_buffer(stream)?;
        }
        Ok(())
    }

    /// Writes everything that waits, and flushes the stream.
    ///
    /// # Errors
    /// [`Error::ConnectionClosed`] if that was the end of a server's closing handshake.
    #[inline]
    pub fn flush<Stream>(&mut self, stream: &mut Stream) -> Result<()>
    where
        Stream: Read + Write,
    {
        if self.answer.is_some() {
            self.queue_answer(stream)?;
        }
        self.write_out(stream)?;
        stream.flush().map_err(|error| self.stream_error(error))?;
        self.is_answer_unflushed = false;
        if self.role == Role::Server && !self.state.can_read() {
            // The server closes the connection first (RFC 6455 section 7.1.1).
            self.state = State::Over;
            return Err(Error::ConnectionClosed);
        }
        Ok(())
    }

    /// Queues a Close frame, unless one was sent or has arrived, and flushes. Go on reading until
    /// [`Error::ConnectionClosed`].
    ///
    /// # Errors
    /// [`ProtocolError::InvalidCloseSequence`] if the code must not be sent,
    /// [`ProtocolError::ControlFrameTooBig`] if the reason has more than 123 bytes.
    pub fn close<Stream>(&mut self, stream: &mut Stream, code: Option<CloseFrame>) -> Result<()>
    where
        Stream: Read + Write,
    {
        if self.state == State::Open {
            let Self { engine, output, .. } = self;
            shared::with_scratch(|scratch| {
                let frame = match &code {
                    Some(CloseFrame { code, reason }) => {
                        engine.close(windlass_ws::CloseCode::new(code.into()), reason, scratch)
                    }
                    None => engine.close_without_code(scratch),
                };
                output.push(frame.map_err(violation::refused)?);
                Ok::<_, Error>(())
            })?;
            self.state = State::ClosedByUs;
        }
        self.flush(stream)
    }

    #[inline]
    fn write_out(&mut self, stream: &mut impl Write) -> Result<()> {
        self.output.write(stream).map_err(|error| self.stream_error(error))
    }

    /// A peer that has sent its Close frame may reset the connection.
    #[cold]
    fn stream_error(&self, error: io::Error) -> Error {
        if error.kind() == ErrorKind::ConnectionReset && !self.state.can_read() {
            return Error::ConnectionClosed;
        }
        Error::Io(error)
    }
}
