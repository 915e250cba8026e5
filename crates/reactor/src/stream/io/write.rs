//! Output of streams: what is written at once, and what is buffered.

use std::io::IoSlice;

use crate::{
    Errno,
    kernel::Kernel,
    stream::{
        SharedBytes, StreamWriteError,
        io::output::Output,
        state::{StreamCore, StreamTable},
        status::{StreamFlags, StreamPhase, StreamStatus, Transport},
    },
};

/// Gathered output of this many bytes is written at once.
const WRITE_AT_ONCE: usize = 16 << 10;

/// The maximum number of output pieces per write.
pub(super) const PIECES_PER_WRITE: usize = 16;

/// The maximum number of pieces that sendmsg(2) accepts (`UIO_MAXIOV`).
const KERNEL_PIECES_MAX: usize = 1024;

/// Bytes to send. Each kind has its own copy of the code, because an enum that is passed on costs
/// instructions for each receiver of a publication.
pub(in crate::stream) trait Payload: Copy {
    /// Output of [`WRITE_AT_ONCE`] bytes is written when it is sent.
    const IS_WRITTEN_WHEN_LONG: bool;

    fn len(self) -> usize;

    /// Buffers the bytes, except for the first `skip`, which were already sent.
    fn buffer(self, streams: &mut StreamTable, index: u32, skip: usize);

    /// Writes the buffered output and then the bytes. Returns how many of the bytes the socket has
    /// accepted.
    fn transmit(self, streams: &mut StreamTable, index: u32) -> Result<usize, Errno>;
}

/// A payload in one piece, which can also be written at once.
pub(in crate::stream) trait SinglePayload<'p>: Payload {
    fn bytes(self) -> &'p [u8];

    /// Queues the bytes with the ring, if they are next in order.
    fn queue(self, streams: &mut StreamTable, kernel: &mut Kernel, index: u32) -> bool;
}

/// Bytes that are copied if they have to wait.
impl Payload for &[u8] {
    const IS_WRITTEN_WHEN_LONG: bool = true;

    #[inline]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn buffer(self, streams: &mut StreamTable, index: u32, skip: usize) {
        if skip < <[u8]>::len(self) {
            streams.output(index).push(&self[skip..]);
        }
    }

    #[inline]
    fn transmit(self, streams: &mut StreamTable, index: u32) -> Result<usize, Errno> {
        streams.transmit(index, &[IoSlice::new(self)])
    }
}

impl<'p> SinglePayload<'p> for &'p [u8] {
    #[inline]
    fn bytes(self) -> &'p [u8] {
        self
    }

    #[inline]
    fn queue(self, streams: &mut StreamTable, kernel: &mut Kernel, index: u32) -> bool {
        streams.queue_send(kernel, index, self)
    }
}

/// Several pieces of such bytes, in order.
impl Payload for &[IoSlice<'_>] {
    const IS_WRITTEN_WHEN_LONG: bool = true;

    #[inline]
    fn len(self) -> usize {
        self.iter().map(|piece| piece.len()).sum()
    }

    #[inline]
    fn buffer(self, streams: &mut StreamTable, index: u32, mut skip: usize) {
        for piece in self {
            let rest = &piece[skip.min(piece.len())..];
            skip -= piece.len() - rest.len();
            if !rest.is_empty() {
                streams.output(index).push(rest);
            }
        }
    }

    #[inline]
    fn transmit(self, streams: &mut StreamTable, index: u32) -> Result<usize, Errno> {
        streams.transmit(index, self)
    }
}

/// Bytes for many streams. The streams in which they have to wait share one copy.
impl Payload for &SharedBytes<'_> {
    const IS_WRITTEN_WHEN_LONG: bool = false;

    #[inline]
    fn len(self) -> usize {
        SharedBytes::bytes(self).len()
    }

    #[inline]
    fn buffer(self, streams: &mut StreamTable, index: u32, skip: usize) {
        if skip < Payload::len(self) {
            streams.output(index).push_shared(self, skip);
        }
    }

    #[inline]
    fn transmit(self, streams: &mut StreamTable, index: u32) -> Result<usize, Errno> {
        streams.transmit(index, &[IoSlice::new(SharedBytes::bytes(self))])
    }
}

impl<'p> SinglePayload<'p> for &'p SharedBytes<'_> {
    #[inline]
    fn bytes(self) -> &'p [u8] {
        SharedBytes::bytes(self)
    }

    #[inline]
    fn queue(self, streams: &mut StreamTable, kernel: &mut Kernel, index: u32) -> bool {
        streams.queue_shared(kernel, index, self)
    }
}

impl StreamTable {
    /// Writes the buffered output, unless the socket is known to be full.
    pub(in crate::stream) fn flush(&mut self, kernel: &mut Kernel, index: u32) {
        let core = self.core(index);
        if core.output.is_some()
            && !core.status.holds_output()
            && !core.status.is(StreamPhase::Dead)
        {
            self.write(kernel, index);
        }
        self.core(index).update_full();
    }

    /// Writes the buffered output; an error ends the stream. In a child of fork(2) the output stays
    /// buffered: the parent writes it.
    pub(in crate::stream) fn write(&mut self, kernel: &mut Kernel, index: u32) {
        if self.is_in_child() {
            return;
        }
        if self.core(index).status.is_on_ring() {
            return self.write_by_ring(kernel, index);
        }
        if let Err(errno) = self.transmit(index, &[]) {
            self.core(index).fail(errno);
        }
    }

    /// Sends bytes when the turn or the callback ends, or at once if there are many.
    pub(in crate::stream) fn send<P: Payload>(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        payload: P,
    ) -> Result<(), StreamWriteError> {
        if self.is_in_child() {
            return Err(StreamWriteError::Closed);
        }
        let len = payload.len();
        let status = self.core(index).status;
        if !status.uses(Transport::READINESS) {
            self.before_write(kernel, index, status);
        }
        self.admit_output(index, len)?;
        let is_long = self.core(index).buffered() + len >= WRITE_AT_ONCE;
        let accepted = if P::IS_WRITTEN_WHEN_LONG && is_long {
            self.write_through(index, payload)
        } else {
            Ok(0)
        };
        self.buffer_rest(index, payload, accepted)?;
        self.after_output(kernel, index);
        Ok(())
    }

    /// Writes bytes at once, after the output sent before. Returns the number of buffered bytes.
    ///
    /// 1. If nothing is buffered and the socket accepts everything, nothing else is done.
    /// 2. On a ring, the bytes are queued if they are next in order.
    /// 3. Otherwise they go out after the buffered output, and the rest is buffered.
    // A function call here would be a noticeable part of an echo.
    #[inline(always)]
    pub(in crate::stream) fn write_payload<'p, P: SinglePayload<'p>>(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        payload: P,
    ) -> Result<usize, StreamWriteError> {
        if self.is_in_child() {
            return Err(StreamWriteError::Closed);
        }
        let core = self.core(index);
        let bytes = payload.bytes();
        if core.status.rests_as(Transport::READINESS)
            && core.output.is_none()
            && bytes.len() <= core.options.output_max
        {
            let sent = core.socket.send(bytes);
            if sent == Ok(bytes.len()) {
                return Ok(0);
            }
            return self.wrote_part(kernel, index, payload, sent);
        }
        if payload.queue(self, kernel, index) {
            return Ok(0);
        }
        self.write_behind(kernel, index, payload)
    }

    /// The socket has accepted a part of the bytes, or none.
    #[cold]
    #[inline(never)]
    fn wrote_part<'p, P: SinglePayload<'p>>(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        payload: P,
        sent: Result<usize, Errno>,
    ) -> Result<usize, StreamWriteError> {
        let accepted = self.core(index).note_sent(sent, payload.len());
        self.buffer_rest(index, payload, accepted)?;
        self.after_output(kernel, index);
        Ok(self.core(index).buffered())
    }

    #[cold]
    #[inline(never)]
    fn write_behind<'p, P: SinglePayload<'p>>(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        payload: P,
    ) -> Result<usize, StreamWriteError> {
        let status = self.core(index).status;
        self.before_write(kernel, index, status);
        self.admit_output(index, payload.len())?;
        let is_short = payload.len() < WRITE_AT_ONCE && !status.any(StreamFlags::BLOCKED);
        if status.has_tls() && status.is_on_ring() && is_short {
            // Its records may go by the ring.
            payload.buffer(self, index, 0);
            self.flush(kernel, index);
            if self.core(index).status.is_ending() {
                return Err(StreamWriteError::Closed);
            }
        } else {
            let accepted = self.write_through(index, payload);
            self.buffer_rest(index, payload, accepted)?;
        }
        self.after_output(kernel, index);
        Ok(self.core(index).buffered())
    }

    /// Called before output is added.
    #[inline]
    fn before_write(&mut self, kernel: &mut Kernel, index: u32, status: StreamStatus) {
        if status.has_tls() {
            // If the session panics in this call, the end of the turn resets the stream.
            self.touch(kernel, index);
        }
        if status.is_on_ring() {
            self.before_output(kernel, index);
        }
    }

    /// Output was added. The driver or the end of the turn writes the rest and handles the effects.
    #[inline]
    pub(in crate::stream) fn after_output(&mut self, kernel: &mut Kernel, index: u32) {
        self.core(index).update_full();
        self.touch(kernel, index);
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
    fn write_through<P: Payload>(&mut self, index: u32, payload: P) -> Result<usize, Errno> {
        if self.core(index).status.holds_output() { Ok(0) } else { payload.transmit(self, index) }
    }

    /// Buffers the bytes that a write has left. An error ends the stream.
    #[inline]
    fn buffer_rest<P: Payload>(
        &mut self,
        index: u32,
        payload: P,
        accepted: Result<usize, Errno>,
    ) -> Result<(), StreamWriteError> {
        match accepted {
            Ok(accepted) => {
                payload.buffer(self, index, accepted);
                Ok(())
            }
            Err(errno) => {
                self.core(index).fail(errno);
                Err(StreamWriteError::Closed)
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
        if core.status.has_tls() {
            return self.transmit_tls(index, pieces);
        }
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
    pub(super) fn drain(
        &mut self,
        output: &mut Output,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        if output.has_fds() {
            return self.drain_with_fds(output, pieces);
        }
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
    pub(super) fn offer(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let (sent, offered) = match slices {
            [slice] => (self.socket.send(slice), slice.len()),
            slices => {
                (self.socket.send_vectored(slices), slices.iter().map(|slice| slice.len()).sum())
            }
        };
        self.note_sent(sent, offered)
    }

    /// Handles the result of a write: returns the number of accepted bytes.
    #[inline]
    pub(super) fn note_sent(
        &mut self,
        sent: Result<usize, Errno>,
        offered: usize,
    ) -> Result<usize, Errno> {
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
    /// something. The linger time of a closed stream does not start again, unless its options say
    /// so, nor that of a handshake: otherwise a peer that reads a little from time to time could
    /// keep the stream open without end.
    pub(in crate::stream) fn block(&mut self, anew: bool) {
        let is_timed = if self.status.is(StreamPhase::Closing) {
            self.options.linger_restarts
        } else {
            self.options.write_stall_timeout.is_some() && !self.status.is(StreamPhase::Handshake)
        };
        if is_timed && (anew || !self.status.any(StreamFlags::BLOCKED)) {
            self.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
        }
        self.status.insert(StreamFlags::BLOCKED);
    }
}
