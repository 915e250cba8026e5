//! The receiving side of a socket: the buffer that bytes are read into, and the message in it.

use std::{
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
    /// The current message, if it does not lie in the buffer.
    message: Option<MessageBuffer>,
    /// The clock is read for the next control frames.
    saw_control: bool,
    second: u32,
}

/// The kind and place of the current message.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) is_text: bool,
    /// In the buffer, or `None` if the message has a buffer of its own.
    place: Option<Range<usize>>,
}

impl Inbox {
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

    pub(crate) fn payload(&self, found: &Found) -> &[u8] {
        match (&found.place, &self.buffer, &self.message) {
            (Some(place), Some(buffer), _) => &buffer[place.clone()],
            (None, _, Some(message)) => message.payload(),
            _ => &[],
        }
    }

    pub(crate) fn payload_mut(&mut self, found: &Found) -> &mut [u8] {
        match (&found.place, &mut self.buffer, &mut self.message) {
            (Some(place), Some(buffer), _) => &mut buffer[place.clone()],
            (None, _, Some(message)) => message.payload_mut(),
            _ => &mut [],
        }
    }

    /// The message with a payload of its own.
    pub(crate) fn to_message(&self, found: &Found) -> Message {
        let bytes = Bytes::copy_from_slice(self.payload(found));
        if found.is_text {
            Message::Text(Utf8Bytes::from_checked(bytes))
        } else {
            Message::Binary(bytes)
        }
    }

    /// Takes the buffer of a message that has its own.
    pub(crate) fn take_message(&mut self, found: &Found) -> Option<MessageBuffer> {
        if found.place.is_none() { self.message.take() } else { None }
    }

    /// Adds the reply to the current message of a server, which lies around its payload. Returns
    /// `false` if the message does not lie in the buffer.
    pub(crate) fn reply_in_place(&mut self, found: &Found) -> bool {
        let Some(payload) = &found.place else { return false };
        let start = payload.start - FrameHead::new(found.is_text, payload.len()).len;
        if self.unsent.is_empty() {
            self.unsent = start..payload.end;
        } else {
            // The engine moved the payload to behind the replies before it.
            debug_assert_eq!(self.unsent.end, start);
            self.unsent.end = payload.end;
        }
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
    pub(crate) fn poll_flush<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while !self.unsent.is_empty() {
            let Some(buffer) = &self.buffer else { break };
            if ready!(core.poll_drain(context)).is_err() {
                self.unsent = 0..0;
                break;
            }
            match core.write_now(context, &buffer[self.unsent.clone()]) {
                Ok(0) => return Poll::Pending,
                Ok(count) => self.unsent.start += count,
                Err(_) => self.unsent = 0..0,
            }
        }
        // The error is told when there is nothing left to receive.
        let _ = ready!(core.poll_flush(context));
        Poll::Ready(())
    }

    /// Waits for the next message. `None` is the clean end.
    pub(crate) fn poll_next<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Found>, RecvError>> {
        if let Some(end) = core.told_end() {
            return Poll::Ready(end.map(|()| None));
        }
        loop {
            // After the protocol's end the rest belongs to the caller: `into_inner`.
            if self.at < self.end && core.engine.end().is_none() {
                if let Some(found) = self.next_message(core) {
                    core.note_message();
                    return Poll::Ready(Ok(Some(found)));
                }
            }
            if let Some(end) = core.engine.end() {
                self.queue_unsent(core);
                let end = ready!(core.poll_protocol_end(context, end));
                self.release();
                return Poll::Ready(core.tell_end(end).map(|()| None));
            }
            let is_flushed = self.poll_flush(core, context).is_ready();
            let waits = core.output.answers() + self.unsent.len();
            if !is_flushed && waits > core.config.settings().answers_max {
                core.is_reader_blocked = true;
                let error = ready!(core.poll_limits(context));
                return Poll::Ready(core.tell_end(Err(error)).map(|()| None));
            }
            ready!(self.poll_read(core, context))?;
        }
    }

    /// Reads into the buffer. It is released if nothing has arrived.
    fn poll_read<S: Transport>(
        &mut self,
        core: &mut Core<S>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), RecvError>> {
        self.queue_unsent(core);
        let buffer = self.buffer.get_or_insert_with(shared::take_read_buffer);
        (self.at, self.end) = (0, 0);
        let error = match core.io.poll_read(context, buffer) {
            Poll::Ready(Ok(0)) => core.end_of_stream(None),
            Poll::Ready(Ok(count)) => {
                self.end = count.min(buffer.len());
                if self.saw_control {
                    self.saw_control = false;
                    self.second = core.second().unwrap_or_default();
                }
                core.note_read();
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(Err(error)) => core.end_of_stream(Some(error)),
            Poll::Pending => {
                self.release();
                ready!(core.poll_limits(context))
            }
        };
        self.release();
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

    /// Processes the bytes up to the next message. `None` if they have all been processed, or the
    /// connection has ended.
    fn next_message<S: Transport>(&mut self, core: &mut Core<S>) -> Option<Found> {
        shared::with(|shared| self.process(core, shared))
    }

    fn process<S: Transport>(&mut self, core: &mut Core<S>, shared: &mut Shared) -> Option<Found> {
        let Shared { scratch, .. } = shared;
        if let Some(message) = self.message.take() {
            scratch.recycle(message);
        }
        scratch.set_second(self.second);
        let input = &mut self.buffer.as_mut()?[..self.end];
        let base = input.as_ptr().addr();
        let unsent = std::mem::replace(&mut self.unsent, 0..0);
        let before = unsent.len();
        let mut pass = core.engine.process_from(input, self.at, unsent, scratch);
        let mut close = None;
        let found = loop {
            let place = |bytes: &[u8]| (bytes.as_ptr().addr(), bytes.len());
            match pass.next() {
                Some(EngineEvent::Binary(bytes)) => break Some((false, place(&bytes))),
                Some(EngineEvent::Text(text)) => break Some((true, place(text.as_bytes()))),
                Some(EngineEvent::Close(event)) => {
                    close = Some(CloseFrame { code: event.code, reason: event.reason.to_owned() });
                    break None;
                }
                Some(_) => self.saw_control = true,
                None => break None,
            }
        };
        let found = found.map(|(is_text, (address, len))| {
            self.message = pass.take_message();
            let place = self.message.is_none().then(|| {
                let start = address - base;
                start..start + len
            });
            Found { is_text, place }
        });
        let outcome = pass.finish();
        self.at = outcome.consumed;
        let answers = outcome.len.saturating_sub(before);
        if let Some(range) = &outcome.in_place {
            self.unsent = if range.is_empty() { 0..0 } else { range.clone() };
        } else {
            scratch.output(&outcome, input).for_each(|piece| core.output.push(piece));
            core.output.note_answers(answers);
        }
        if let Some(close) = close {
            core.peer_close = Some(Box::new(close));
            core.note_closing();
        }
        found
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            shared::give_read_buffer(buffer);
        }
    }
}
