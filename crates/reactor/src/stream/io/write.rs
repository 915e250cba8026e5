//! Output of streams: what is written at once, and what is buffered.

use std::io::IoSlice;

use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::{
    Errno, Reactor,
    stream::{
        SharedBytes, StreamWriteError,
        io::output::Output,
        state::{StreamCore, StreamTable},
        status::{StreamFlags, StreamPhase},
    },
};

/// Gathered output of this many bytes is written at once.
const WRITE_AT_ONCE: usize = 16 << 10;

/// The maximum number of output pieces per write.
const PIECES_PER_WRITE: usize = 16;

/// The maximum number of pieces that sendmsg(2) accepts (`UIO_MAXIOV`).
const KERNEL_PIECES_MAX: usize = 1024;

/// `DONTWAIT`, because the socket may have been left in blocking mode.
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Bytes to send.
#[derive(Clone, Copy)]
pub(in crate::stream) enum Payload<'p> {
    /// Bytes that are copied if they have to wait.
    Bytes(&'p [u8]),
    /// Several pieces of such bytes, in order.
    Pieces(&'p [IoSlice<'p>]),
    /// Bytes for many streams, which all keep one copy of bytes that have to wait.
    Shared(&'p SharedBytes<'p>),
}

impl Payload<'_> {
    #[inline]
    pub(in crate::stream) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Self::Shared(shared) => shared.bytes().len(),
        }
    }

    /// The bytes, which must be in one piece.
    #[inline(always)]
    fn single(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Shared(shared) => shared.bytes(),
            Self::Pieces(_) => unreachable!("pieces are sent and not written"),
        }
    }

    const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

impl Reactor {
    /// Writes the buffered output, unless the socket is known to be full.
    pub(in crate::stream) fn flush_stream(&mut self, index: u32) {
        let core = self.stream_core(index);
        if core.output.is_some()
            && !core.status.holds_output()
            && !core.status.is(StreamPhase::Dead)
        {
            self.write_stream(index);
        }
        self.stream_core(index).update_full();
    }

    /// Writes the buffered output; an error ends the stream. In a child of fork(2) the output stays
    /// buffered: the parent writes it.
    pub(in crate::stream) fn write_stream(&mut self, index: u32) {
        if self.streams_in_child() {
            return;
        }
        if self.stream_core(index).status.any(StreamFlags::RING) {
            return self.write_by_ring(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        if let Err(errno) = streams.transmit(index, &[]) {
            streams.core(index).fail(errno);
        }
    }

    /// Sends bytes when the turn or the callback ends, or at once if there are many.
    pub(in crate::stream) fn stream_send(
        &mut self,
        index: u32,
        payload: Payload<'_>,
    ) -> Result<(), StreamWriteError> {
        if self.streams_in_child() {
            return Err(StreamWriteError::Closed);
        }
        if self.stream_core(index).status.any(StreamFlags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let len = payload.len();
        streams.admit_output(index, len)?;
        let is_long = streams.core(index).buffered() + len >= WRITE_AT_ONCE;
        let accepted = if is_long && !payload.is_shared() {
            streams.write_through(index, payload)
        } else {
            Ok(0)
        };
        self.buffer_rest(index, payload, accepted)
    }

    /// Sends bytes at once, after the output sent before. Returns the number of buffered bytes.
    ///
    /// 1. If nothing is buffered and the socket accepts everything, nothing else is done.
    /// 2. On a ring, the bytes are queued if they are next in order.
    /// 3. Otherwise they go out behind the buffered output, and the rest is buffered.
    // A function call here would cost an echo a twentieth of its instructions.
    #[inline(always)]
    pub(in crate::stream) fn stream_write(
        &mut self,
        index: u32,
        payload: Payload<'_>,
    ) -> Result<usize, StreamWriteError> {
        if self.streams_in_child() {
            return Err(StreamWriteError::Closed);
        }
        let core = self.stream_core(index);
        let bytes = payload.single();
        if core.status.is_plain() && core.output.is_none() && bytes.len() <= core.options.output_max
        {
            let sent = core.send(bytes);
            if sent == Ok(bytes.len()) {
                return Ok(0);
            }
            return self.write_accepted_part(index, payload, sent);
        }
        self.write_slow(index, payload)
    }

    /// The socket has accepted a part of the bytes, or none.
    #[cold]
    #[inline(never)]
    fn write_accepted_part(
        &mut self,
        index: u32,
        payload: Payload<'_>,
        sent: Result<usize, Errno>,
    ) -> Result<usize, StreamWriteError> {
        let accepted = self.stream_core(index).note_sent(sent, payload.len());
        self.buffer_rest(index, payload, accepted)?;
        Ok(self.stream_core(index).buffered())
    }

    #[inline(never)]
    fn write_slow(&mut self, index: u32, payload: Payload<'_>) -> Result<usize, StreamWriteError> {
        if self.queue_payload(index, payload) {
            return Ok(0);
        }
        self.write_behind(index, payload)
    }

    #[cold]
    fn write_behind(
        &mut self,
        index: u32,
        payload: Payload<'_>,
    ) -> Result<usize, StreamWriteError> {
        if self.stream_core(index).status.any(StreamFlags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, payload.len())?;
        let accepted = streams.write_through(index, payload);
        self.buffer_rest(index, payload, accepted)?;
        Ok(self.stream_core(index).buffered())
    }

    /// Buffers the bytes that the socket has not accepted. An error ends the stream.
    fn buffer_rest(
        &mut self,
        index: u32,
        payload: Payload<'_>,
        accepted: Result<usize, Errno>,
    ) -> Result<(), StreamWriteError> {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        match accepted {
            Ok(accepted) => streams.buffer(index, payload, accepted),
            Err(errno) => {
                streams.core(index).fail(errno);
                return Err(StreamWriteError::Closed);
            }
        }
        self.after_output(index);
        Ok(())
    }

    /// Output was added. The driver or the end of the turn writes the rest and handles the effects.
    #[inline]
    pub(in crate::stream) fn after_output(&mut self, index: u32) {
        self.stream_core(index).update_full();
        self.touch_stream(index);
    }
}

impl StreamTable {
    /// Checks whether `len` more bytes may be sent.
    #[inline]
    pub(in crate::stream) fn admit_output(
        &mut self,
        index: u32,
        len: usize,
    ) -> Result<(), StreamWriteError> {
        let core = self.core(index);
        if core.status.rejects_output() {
            return Err(StreamWriteError::Closed);
        }
        if core.buffered().saturating_add(len) <= core.options.output_max {
            return Ok(());
        }
        self.make_room(index, len)
    }

    /// Part of the buffered output may only be gathered, so writing it may make room.
    #[cold]
    fn make_room(&mut self, index: u32, len: usize) -> Result<(), StreamWriteError> {
        if !self.core(index).status.holds_output() {
            if let Err(errno) = self.transmit(index, &[]) {
                self.core(index).fail(errno);
                return Err(StreamWriteError::Closed);
            }
        }
        let core = self.core(index);
        if core.buffered().saturating_add(len) <= core.options.output_max {
            Ok(())
        } else {
            Err(StreamWriteError::Full)
        }
    }

    /// Writes bytes after the buffered output, unless the socket is known to be full. Returns how
    /// many of them the socket has accepted.
    #[inline]
    fn write_through(&mut self, index: u32, payload: Payload<'_>) -> Result<usize, Errno> {
        if self.core(index).status.holds_output() {
            return Ok(0);
        }
        match payload {
            Payload::Bytes(bytes) => self.transmit(index, &[IoSlice::new(bytes)]),
            Payload::Pieces(pieces) => self.transmit(index, pieces),
            Payload::Shared(shared) => self.transmit(index, &[IoSlice::new(shared.bytes())]),
        }
    }

    /// Buffers bytes, except for the first `skip`, which were already sent.
    fn buffer(&mut self, index: u32, payload: Payload<'_>, mut skip: usize) {
        match payload {
            _ if skip == payload.len() => {}
            Payload::Bytes(bytes) => self.output(index).push(&bytes[skip..]),
            Payload::Shared(shared) => self.output(index).push_shared(shared, skip),
            Payload::Pieces(pieces) => {
                for piece in pieces {
                    let rest = &piece[skip.min(piece.len())..];
                    skip -= piece.len() - rest.len();
                    if !rest.is_empty() {
                        self.output(index).push(rest);
                    }
                }
            }
        }
    }

    /// Writes the buffered output and then the pieces. Returns how many bytes of the pieces the
    /// socket has accepted.
    #[inline]
    pub(in crate::stream) fn transmit(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let core = self.core(index);
        let Some(mut output) = core.output.take() else {
            return if pieces.is_empty() {
                Ok(0)
            } else {
                core.offer(&pieces[..pieces.len().min(KERNEL_PIECES_MAX)])
            };
        };
        let taken = core.drain(&mut output, pieces);
        if output.len() == 0 {
            self.keep_output(output);
        } else {
            core.output = Some(output);
        }
        taken
    }
}

impl StreamCore {
    fn drain(&mut self, output: &mut Output, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if let (Some(single), true) = (output.single(), pieces.is_empty()) {
            let sent = self.offer(&[IoSlice::new(single)])?;
            output.advance(sent);
            return Ok(0);
        }
        loop {
            let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
            let count = output.slices(&mut slices);
            let is_whole = count == output.pieces();
            let more = if is_whole { pieces.len().min(PIECES_PER_WRITE - count) } else { 0 };
            slices[count..count + more].copy_from_slice(&pieces[..more]);
            let sent = self.offer(&slices[..count + more])?;
            let own = sent.min(output.len());
            output.advance(own);
            if is_whole || self.status.any(StreamFlags::BLOCKED) {
                return Ok(sent - own);
            }
        }
    }

    /// Writes once. The rest waits until the socket is writable.
    #[inline]
    fn offer(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let (sent, offered) = match slices {
            [slice] => (self.send(slice), slice.len()),
            slices => (
                rustix::net::sendmsg(
                    &self.socket,
                    slices,
                    &mut SendAncillaryBuffer::default(),
                    SEND_FLAGS,
                ),
                slices.iter().map(|slice| slice.len()).sum(),
            ),
        };
        self.note_sent(sent, offered)
    }

    /// The system call alone; the caller handles its result.
    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(&self.socket, bytes, SEND_FLAGS)
    }

    /// Handles the result of a write: returns the number of accepted bytes.
    #[inline]
    fn note_sent(&mut self, sent: Result<usize, Errno>, offered: usize) -> Result<usize, Errno> {
        match sent {
            Ok(sent) if sent == offered => {
                self.status.clear(StreamFlags::BLOCKED);
                Ok(sent)
            }
            Ok(sent) => {
                self.block(true);
                Ok(sent)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.block(false);
                Ok(0)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The socket is full. The stall time starts, or starts again if the socket has accepted
    /// something. The linger time of a closed stream does not start again: otherwise a peer that
    /// reads a little from time to time could keep the stream open without end.
    pub(in crate::stream) fn block(&mut self, anew: bool) {
        let is_timed =
            self.options.write_stall_timeout.is_some() && !self.status.is(StreamPhase::Closing);
        if is_timed && (anew || !self.status.any(StreamFlags::BLOCKED)) {
            self.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
        }
        self.status.insert(StreamFlags::BLOCKED);
    }
}
