//! The receiving side of a socket: the buffer that bytes are read into, and the message in it.

use std::{
    io,
    ops::Range,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use windlass_ws::{EngineEvent, MessageBuffer};

use crate::{
    Message, RecvError, Utf8Bytes,
    core::{CloseFrame, Core},
    output::FrameHead,
    shared::{self, Shared},
    transport::Transport,
};

/// What was read and not yet processed, and the current message.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Held only while it has bytes, a message or replies.
    buffer: Option<Box<[u8]>>,
    /// The bytes from `at` to `end` of the buffer are to be processed.
    at: usize,
    end: usize,
    /// Replies that lie in the buffer, before `at`. They follow the output of the core.
    unsent: Range<usize>,
    /// Where the payload of the current message lies in the buffer.
    payload: Range<usize>,
    /// The current message, if it does not lie in the buffer.
    message: Option<MessageBuffer>,
    /// The current message is text.
    is_text: bool,
    /// The current message ends with the current piece.
    is_last: bool,
    /// Messages are received in pieces.
    pieces: bool,
    /// Pings and pongs are received too.
    #[cfg(feature = "axum")]
    controls: Option<Box<Controls>>,
    /// The clock is read for the next control frames.
    saw_control: bool,
    second: u32,
}

/// The current ping or pong.
#[cfg(feature = "axum")]
#[derive(Default)]
struct Controls {
    current: Option<(ControlKind, Bytes)>,
}

#[cfg(feature = "axum")]
pub(crate) enum ControlKind {
    Ping,
    Pong,
}

#[cfg(feature = "axum")]
impl Controls {
    /// Remembers a ping or pong. Returns whether it was one.
    fn note(&mut self, event: &EngineEvent<'_>) -> bool {
        self.current = match *event {
            EngineEvent::Ping(payload) => Some((ControlKind::Ping, payload)),
            EngineEvent::Pong(payload) => Some((ControlKind::Pong, payload)),
            _ => None,
        }
        .map(|(kind, payload)| (kind, Bytes::copy_from_slice(payload)));
        self.current.is_some()
    }
}

impl Inbox {
    /// An inbox that receives pings and pongs like messages: see
    /// [`take_control`](Self::take_control).
    #[cfg(feature = "axum")]
    pub(crate) fn with_controls() -> Self {
        let mut inbox = Self::default();
        inbox.controls = Some(Box::default());
        inbox
    }

    /// What was received, if it was a ping or pong.
    #[cfg(feature = "axum")]
    pub(crate) fn take_control(&mut self) -> Option<(ControlKind, Bytes)> {
        self.controls.as_mut()?.current.take()
    }

    /// An inbox with bytes that were read before.
    pub(crate) fn with_bytes(bytes: &[u8]) -> Self {
        let mut inbox = Self::default();
        if !bytes.is_empty() {
            let mut buffer = if bytes.len() <= shared::READ_BUFFER_LEN {
                shared::take_read_buffer()
            } else {
                vec![0; bytes.len()].into_boxed_slice()
            };
            buffer[..bytes.len()].copy_from_slice(bytes);
            (inbox.buffer, inbox.end) = (Some(buffer), bytes.len());
        }
        inbox
    }

    /// The bytes that were read and not processed.
    pub(crate) fn unprocessed(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.at..self.end])
    }

    /// Whether the current message is text.
    pub(crate) fn is_text(&self) -> bool {
        self.is_text
    }

    /// Whether the current message ends with the current piece.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Chooses between messages and their pieces.
    #[inline]
    pub(crate) fn set_pieces<S>(&mut self, core: &mut Core<S>, pieces: bool) {
        if self.pieces != pieces {
            self.pieces = pieces;
            core.engine.set_pieces(pieces);
        }
    }

    /// The payload of the current message, or piece.
    pub(crate) fn payload(&self) -> &[u8] {
        match (&self.message, &self.buffer) {
            (Some(message), _) => message.payload(),
            (None, Some(buffer)) => &buffer[self.payload.clone()],
            (None, None) => &[],
        }
    }

    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        match (&mut self.message, &mut self.buffer) {
            (Some(message), _) => message.payload_mut(),
            (None, Some(buffer)) => &mut buffer[self.payload.clone()],
            (None, None) => &mut [],
        }
    }

    /// The current message with a payload of its own.
    pub(crate) fn to_message(&self) -> Message {
        let bytes = Bytes::copy_from_slice(self.payload());
        if self.is_text {
            Message::Text(Utf8Bytes::from_checked(bytes))
        } else {
            Message::Binary(bytes)
        }
    }

    /// Takes the buffer of the current message, if it has its own.
    pub(crate) fn take_message(&mut self) -> Option<MessageBuffer> {
        self.message.take()
    }

    /// Adds the reply to the current message of a server, which lies around its payload. Returns
    /// `false` if the message does not lie in the buffer.
    #[inline]
    pub(crate) fn reply_in_place(&mut self) -> bool {
        if self.message.is_some() {
            return false;
        }
        let start = self.payload.start - FrameHead::len(self.payload.len());
        if self.unsent.is_empty() {
            self.unsent.start = start;
        } else {
            // The engine moved the payload to behind the replies before it.
            debug_assert_eq!(self.unsent.end, start);
        }
        self.unsent.end = self.payload.end;
        true
    }

    /// How many bytes of replies lie in the buffer.
    pub(crate) fn unsent_len(&self) -> usize {
        self.unsent.len()
    }

    /// Moves the replies in the buffer to the output, because something else is to follow them.
    pub(crate) fn queue_unsent<S>(&mut self, core: &mut Core<S>) {
        if let (false, Some(buffer)) = (self.unsent.is_empty(), &self.buffer) {
            core.output.push(&buffer[self.unsent.clone()]);
            core.output.note_answers(self.unsent.len());
        }
        self.unsent = 0..0;
    }

    /// Writes what waits. The replies in the buffer stay there if the transport does not take them.
    #[inline]
    pub(crate) fn poll_flush<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while let (false, Some(buffer)) = (self.unsent.is_empty(), &self.buffer) {
            if core.output.is_empty() {
                let bytes = &buffer[self.unsent.clone()];
                match ready!(core.poll_write(context, bytes)) {
                    Ok(count) => self.unsent.start += count.min(bytes.len()),
                    Err(_) => self.unsent = 0..0,
                }
            } else if ready!(core.poll_drain(context)).is_err() {
                self.unsent = 0..0;
            }
        }
        // The error is told when there is nothing left to receive.
        let _ = ready!(core.poll_flush(context));
        Poll::Ready(())
    }

    /// Waits for the next message. `false` is the clean end.
    // As a call it would return its result in memory, which is a noticeable part of an echo.
    #[inline(always)]
    pub(crate) fn poll_next<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, RecvError>> {
        loop {
            if self.at < self.end && !core.is_over() {
                // The messages of one read may inflate, and so may their replies.
                let answers = core.output.answers();
                if answers > 0 && answers > core.config.settings().answers_max {
                    ready!(self.poll_send(core, context))?;
                }
                if self.next_message(core) {
                    return Poll::Ready(Ok(true));
                }
            }
            if core.is_over() {
                return self.poll_end(core, context);
            }
            if !self.unsent.is_empty() || core.output.has_work() {
                ready!(self.poll_send(core, context))?;
            }
            if core.has_work() {
                if let Err(error) = core.check_passed(context) {
                    return Poll::Ready(core.tell_end(Err(error)).map(|()| false));
                }
            }
            ready!(self.poll_read(core, context))?;
        }
    }

    /// Writes what waits. It waits itself only if so much waits that nothing more is to be read.
    #[inline(never)]
    fn poll_send<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), RecvError>> {
        let before = core.output.len() + self.unsent.len();
        let must_wait = |inbox: &Self, core: &Core<S>| {
            core.output.answers() + inbox.unsent.len() > core.config.settings().answers_max
        };
        let has_waited = must_wait(self, core);
        if self.poll_flush(core, context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if has_waited && core.output.len() + self.unsent.len() < before {
            // The peer reads. While nothing is read here, that is its only sign of life.
            core.note_read();
            core.note_message();
        }
        if !must_wait(self, core) {
            return Poll::Ready(Ok(()));
        }
        core.is_reader_blocked = true;
        let error = ready!(core.poll_limits(context));
        Poll::Ready(core.tell_end(Err(error)))
    }

    /// Sends what the protocol's end left to send, and tells the end.
    #[cold]
    fn poll_end<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, RecvError>> {
        if let Some(end) = core.told_end() {
            return Poll::Ready(end.map(|()| false));
        }
        self.queue_unsent(core);
        // The peer may not read the Close frame that tells it about its violation.
        core.note_closing();
        let end = ready!(core.poll_protocol_end(context));
        self.release();
        Poll::Ready(core.tell_end(end).map(|()| false))
    }

    /// Reads into the buffer. It is released if nothing has arrived.
    #[inline(always)]
    fn poll_read<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), RecvError>> {
        if !self.unsent.is_empty() {
            self.queue_unsent(core);
        }
        let mut buffer = self.buffer.take().unwrap_or_else(shared::take_read_buffer);
        (self.at, self.end, self.unsent) = (0, 0, 0..0);
        let result = core.io.poll_read(context, &mut buffer);
        if let Poll::Ready(Ok(count @ 1..)) = result {
            self.end = count.min(buffer.len());
            self.buffer = Some(buffer);
            if self.saw_control {
                self.saw_control = false;
                self.second = core.second().unwrap_or_default();
            }
            core.note_read();
            return Poll::Ready(Ok(()));
        }
        shared::give_read_buffer(buffer);
        if let Some(message) = self.message.take() {
            shared::with(|shared| shared.scratch.recycle(message));
        }
        if result.is_pending() && !core.has_work() {
            return Poll::Pending;
        }
        self.read_nothing(core, context, result)
    }

    /// Nothing was read: the end of the stream, or time for the limits of time.
    #[inline(never)]
    fn read_nothing<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<Result<(), RecvError>> {
        let error = match result {
            Poll::Ready(Ok(_)) => RecvError::Abnormal,
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                RecvError::Cut
            }
            Poll::Ready(Err(error)) => RecvError::Io(error),
            Poll::Pending => ready!(core.poll_limits(context)),
        };
        Poll::Ready(core.tell_end(Err(error)))
    }

    /// Gives back the buffers that are not needed.
    fn release(&mut self) {
        if let Some(message) = self.message.take() {
            shared::with(|shared| shared.scratch.recycle(message));
        }
        if self.at == self.end && self.unsent.is_empty() {
            if let Some(buffer) = self.buffer.take() {
                shared::give_read_buffer(buffer);
            }
        }
    }

    /// Processes the bytes up to the next message. `false` if they have all been processed, or the
    /// connection has ended.
    #[inline]
    fn next_message<S: Transport>(&mut self, core: &mut Core<S>) -> bool {
        shared::with(|shared| self.process(core, shared))
    }

    #[inline(always)]
    fn process<S: Transport>(&mut self, core: &mut Core<S>, shared: &mut Shared) -> bool {
        let Shared { scratch, .. } = shared;
        if let Some(message) = self.message.take() {
            scratch.recycle(message);
        }
        let Some(buffer) = &mut self.buffer else { return false };
        let input = &mut buffer[..self.end];
        let base = input.as_ptr().addr();
        let (unsent, before) = (self.unsent.clone(), self.unsent.len());
        scratch.set_second(self.second);
        let mut pass = core.engine.process_from(input, self.at, unsent, scratch);
        let mut close = None;
        #[cfg(feature = "axum")]
        let mut is_control = false;
        self.is_last = true;
        let found = loop {
            let place = |bytes: &[u8]| (bytes.as_ptr().addr(), bytes.len());
            match pass.next() {
                Some(EngineEvent::Binary(bytes)) => break Some((false, place(&bytes))),
                Some(EngineEvent::Text(text)) => break Some((true, place(text.as_bytes()))),
                Some(EngineEvent::Piece(piece)) => {
                    self.is_last = piece.is_last;
                    break Some((piece.is_text, place(piece.bytes)));
                }
                Some(EngineEvent::Close(event)) => {
                    close = Some(CloseFrame { code: event.code, reason: event.reason.to_owned() });
                    break None;
                }
                Some(_event) => {
                    self.saw_control = true;
                    #[cfg(feature = "axum")]
                    if self.controls.as_mut().is_some_and(|controls| controls.note(&_event)) {
                        is_control = true;
                        break None;
                    }
                }
                None => break None,
            }
        };
        if let Some((is_text, (address, len))) = found {
            self.is_text = is_text;
            self.message = pass.take_message();
            if self.message.is_none() {
                let start = address - base;
                self.payload = start..start + len;
            }
        }
        let outcome = pass.finish();
        self.at = outcome.consumed;
        match outcome.in_place {
            Some(range) => self.unsent = range,
            None => {
                self.unsent = 0..0;
                scratch.output(&outcome, input).for_each(|piece| core.output.push(piece));
                core.output.note_answers(outcome.len.saturating_sub(before));
            }
        }
        if outcome.end.is_some() {
            core.note_protocol_end(close);
        }
        if found.is_some() {
            core.note_message();
        }
        #[cfg(feature = "axum")]
        if is_control {
            return true;
        }
        found.is_some()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            shared::give_read_buffer(buffer);
        }
    }
}
