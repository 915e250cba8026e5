//! The bytes that wait for the transport.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use windlass_ws::{FrameHeader, HEADER_LEN_MAX, MessageBuffer, Opcode};

use crate::{shared, transport::Transport};

/// Shorter shared bytes are copied, which costs less than a piece of their own.
pub(crate) const SHARED_MIN: usize = 1024;

/// The most pieces in one write.
const PARTS_MAX: usize = 16;

/// Frames in the order in which they are sent: `queue`, then `tail`.
#[derive(Default)]
pub(crate) struct Output {
    queue: VecDeque<Piece>,
    tail: Vec<u8>,
    /// How much of the first piece was written; of `tail`, if `queue` is empty.
    written: usize,
    /// How many bytes wait.
    len: usize,
    /// About how many of them answer what the peer sent. Bytes that were before them in the queue
    /// are subtracted too, so it is too small by less than what else waits.
    answers: usize,
    /// The transport may have buffered something.
    needs_flush: bool,
}

enum Piece {
    Copied(Vec<u8>),
    Shared(Bytes),
    Message(MessageBuffer),
}

impl Piece {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Message(message) => message.frame(),
        }
    }
}

impl Output {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// About how many bytes of answers wait.
    pub(crate) fn answers(&self) -> usize {
        self.answers
    }

    pub(crate) fn note_answers(&mut self, len: usize) {
        self.answers += len;
    }

    /// Appends copied bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.tail.capacity() == 0 && !bytes.is_empty() {
            self.tail = shared::take_output();
        }
        if self.queue.is_empty() && self.written > 0 && self.written >= self.tail.len() / 2 {
            self.tail.drain(..std::mem::take(&mut self.written));
        }
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn push_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_MIN {
            self.push(bytes);
        } else {
            self.push_piece(bytes.len(), Piece::Shared(bytes.clone()));
        }
    }

    /// Appends the frame that was built around a message.
    pub(crate) fn push_message(&mut self, message: MessageBuffer) {
        self.push_piece(message.frame().len(), Piece::Message(message));
    }

    fn push_piece(&mut self, len: usize, piece: Piece) {
        if !self.tail.is_empty() {
            self.queue.push_back(Piece::Copied(std::mem::take(&mut self.tail)));
        }
        self.queue.push_back(piece);
        self.len += len;
    }

    /// Discards everything, because the transport has failed.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether something is to be written, or the transport to be flushed.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.len > 0 || self.needs_flush
    }

    /// Writes bytes that are not queued. Nothing may be queued before them.
    #[inline]
    pub(crate) fn poll_write_unqueued<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        debug_assert!(self.is_empty(), "what is queued comes first");
        let count = not_zero(ready!(io.poll_write(context, bytes)));
        self.needs_flush = true;
        Poll::Ready(count)
    }

    /// Writes the head and the payload of a frame, which are not queued, by one call. Returns how
    /// many bytes the transport took. Nothing may be queued before them.
    pub(crate) fn write_frame_now<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
        head: &[u8],
        payload: &[u8],
    ) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "what is queued comes first");
        if !io.is_write_vectored() {
            return Ok(0);
        }
        self.needs_flush = true;
        match io.poll_write_vectored(context, &[IoSlice::new(head), IoSlice::new(payload)]) {
            Poll::Ready(count) => not_zero(count),
            Poll::Pending => Ok(0),
        }
    }

    /// Writes bytes that are not queued as far as the transport takes them now, if nothing is
    /// queued before them. Returns how many it took.
    pub(crate) fn write_now<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let mut written = 0;
        while self.is_empty() && written < bytes.len() {
            match self.poll_write_unqueued(io, context, &bytes[written..]) {
                Poll::Ready(count) => written += count?,
                Poll::Pending => break,
            }
        }
        Ok(written)
    }

    /// Writes until at most `left` bytes wait.
    pub(crate) fn poll_drain<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
        left: usize,
    ) -> Poll<io::Result<()>> {
        while self.len > left {
            let count = not_zero(ready!(self.poll_write(io, context)))?;
            self.needs_flush = true;
            self.consume(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes everything, and has the transport send it.
    #[inline]
    pub(crate) fn poll_flush<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.len > 0 {
            ready!(self.poll_drain(io, context, 0))?;
        }
        if self.needs_flush {
            ready!(io.poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write<S: Transport>(
        &self,
        io: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let Some(first) = self.queue.front() else {
            return io.poll_write(context, &self.tail[self.written..]);
        };
        let first = &first.as_bytes()[self.written..];
        if !io.is_write_vectored() {
            return io.poll_write(context, first);
        }
        let mut parts = [IoSlice::new(&[]); PARTS_MAX];
        parts[0] = IoSlice::new(first);
        let others = self.queue.iter().skip(1).map(Piece::as_bytes).chain([&self.tail[..]]);
        let mut count = 1;
        for (part, bytes) in parts[1..].iter_mut().zip(others) {
            *part = IoSlice::new(bytes);
            count += 1;
        }
        io.poll_write_vectored(context, &parts[..count])
    }

    /// Removes bytes that were written.
    fn consume(&mut self, count: usize) {
        self.len = self.len.saturating_sub(count);
        self.answers = self.answers.saturating_sub(count);
        self.written += count;
        while let Some(first) = self.queue.front() {
            let len = first.as_bytes().len();
            if self.written < len {
                return;
            }
            self.written -= len;
            match self.queue.pop_front() {
                Some(Piece::Copied(bytes)) => shared::give_output(bytes),
                Some(Piece::Message(message)) => shared::with(|it| it.scratch.recycle(message)),
                _ => {}
            }
        }
        if self.len == 0 {
            // An idle socket holds no memory for its output.
            shared::give_output(std::mem::take(&mut self.tail));
            self.queue = VecDeque::new();
            (self.written, self.answers) = (0, 0);
        }
    }
}

#[inline]
fn not_zero(count: io::Result<usize>) -> io::Result<usize> {
    match count {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    }
}

/// The header of a server's message.
#[derive(Clone, Copy)]
pub(crate) struct FrameHead {
    bytes: [u8; HEADER_LEN_MAX],
    len: usize,
}

impl FrameHead {
    pub(crate) fn new(is_text: bool, payload_len: usize) -> Self {
        let opcode = if is_text { Opcode::Text } else { Opcode::Binary };
        let len = payload_len as u64;
        let header = FrameHeader { fin: true, compressed: false, opcode, key: None, len };
        let mut bytes = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut bytes);
        Self { bytes, len }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The length of the header before a payload of this length.
    #[inline]
    pub(crate) const fn len(payload_len: usize) -> usize {
        match payload_len {
            0..=125 => 2,
            126..=0xffff => 4,
            _ => 10,
        }
    }
}
