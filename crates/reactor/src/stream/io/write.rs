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

    pub(in crate::stream) fn stream_send(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<(), StreamWriteError> {
        if self.streams_in_child() {
            return Err(StreamWriteError::Closed);
        }
        let len = pieces.iter().map(|piece| piece.len()).sum();
        if self.stream_core(index).status.any(StreamFlags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, len)?;
        let core = streams.core(index);
        if core.buffered() + len >= WRITE_AT_ONCE {
            streams.write_through(index, pieces)?;
        } else {
            streams.enqueue(index, pieces, 0);
        }
        self.after_output(index);
        Ok(())
    }

    pub(in crate::stream) fn stream_send_shared(
        &mut self,
        index: u32,
        shared: &SharedBytes<'_>,
    ) -> Result<(), StreamWriteError> {
        if self.streams_in_child() {
            return Err(StreamWriteError::Closed);
        }
        if self.stream_core(index).status.any(StreamFlags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, shared.bytes().len())?;
        if !shared.bytes().is_empty() {
            streams.output(index).push_shared(shared, 0);
        }
        self.after_output(index);
        Ok(())
    }

    #[inline]
    pub(in crate::stream) fn stream_write_shared(
        &mut self,
        index: u32,
        shared: &SharedBytes<'_>,
    ) -> Result<usize, StreamWriteError> {
        if self.streams_in_child() {
            return Err(StreamWriteError::Closed);
        }
        let core = self.stream_core(index);
        let bytes = shared.bytes();
        if core.status.is_plain() && core.output.is_none() && bytes.len() <= core.options.output_max
        {
            let sent = core.send(bytes);
            if sent == Ok(bytes.len()) {
                return Ok(0);
            }
            let taken = core.note_sent(sent, bytes.len());
            return self.stream_wrote_shared(index, shared, taken);
        }
        self.stream_write_shared_after(index, shared)
    }

    #[cold]
    fn stream_wrote_shared(
        &mut self,
        index: u32,
        shared: &SharedBytes<'_>,
        taken: Result<usize, Errno>,
    ) -> Result<usize, StreamWriteError> {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        match taken {
            Ok(taken) if taken == shared.bytes().len() => {}
            Ok(taken) => streams.output(index).push_shared(shared, taken),
            Err(errno) => {
                streams.core(index).fail(errno);
                return Err(StreamWriteError::Closed);
            }
        }
        self.after_output(index);
        Ok(self.stream_core(index).buffered())
    }

    #[inline(never)]
    fn stream_write_shared_after(
        &mut self,
        index: u32,
        shared: &SharedBytes<'_>,
    ) -> Result<usize, StreamWriteError> {
        if self.queue_stream_shared(index, shared) {
            return Ok(0);
        }
        self.stream_write_shared_behind(index, shared)
    }

    #[cold]
    fn stream_write_shared_behind(
        &mut self,
        index: u32,
        shared: &SharedBytes<'_>,
    ) -> Result<usize, StreamWriteError> {
        if self.stream_core(index).status.any(StreamFlags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let bytes = shared.bytes();
        streams.admit_output(index, bytes.len())?;
        let is_held = streams.core(index).status.holds_output();
        let taken = if is_held { Ok(0) } else { streams.transmit(index, &[IoSlice::new(bytes)]) };
        self.stream_wrote_shared(index, shared, taken)
    }

    // A function call here would cost an echo a twentieth of its instructions.
    #[inline(always)]
    pub(in crate::stream) fn stream_reply(
        &mut self,
        index: u32,
        bytes: &[u8],
    ) -> Result<usize, StreamWriteError> {
        if self.streams_in_child() {
            return Err(StreamWriteError::Closed);
        }
        let core = self.stream_core(index);
        // The fast path of most replies: nothing is buffered, and the socket accepts everything.
        if core.status.is_plain() && core.output.is_none() && bytes.len() <= core.options.output_max
        {
            let sent = core.send(bytes);
            if sent == Ok(bytes.len()) {
                return Ok(0);
            }
            return self.stream_replied(index, bytes, sent);
        }
        self.stream_reply_after(index, bytes)
    }

    /// The socket has accepted a part of the bytes, or none.
    #[cold]
    #[inline(never)]
    fn stream_replied(
        &mut self,
        index: u32,
        bytes: &[u8],
        sent: Result<usize, Errno>,
    ) -> Result<usize, StreamWriteError> {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        let taken = streams.core(index).note_sent(sent, bytes.len());
        streams.settle_write(index, &[IoSlice::new(bytes)], taken)?;
        self.after_output(index);
        Ok(self.stream_core(index).buffered())
    }

    #[inline(never)]
    fn stream_reply_after(&mut self, index: u32, bytes: &[u8]) -> Result<usize, StreamWriteError> {
        if self.queue_stream_send(index, bytes) {
            return Ok(0);
        }
        self.stream_reply_behind(index, bytes)
    }

    #[cold]
    fn stream_reply_behind(&mut self, index: u32, bytes: &[u8]) -> Result<usize, StreamWriteError> {
        if self.stream_core(index).status.any(StreamFlags::RING) {
            self.before_output(index);
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        streams.admit_output(index, bytes.len())?;
        streams.write_through(index, &[IoSlice::new(bytes)])?;
        self.after_output(index);
        Ok(self.stream_core(index).buffered())
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

    /// Writes pieces after the buffered output. Bytes that the socket does not accept are buffered.
    #[inline]
    pub(in crate::stream) fn write_through(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<(), StreamWriteError> {
        let core = self.core(index);
        let taken = if core.status.holds_output() { Ok(0) } else { self.transmit(index, pieces) };
        self.settle_write(index, pieces, taken)
    }

    /// Buffers the bytes that a write of pieces has left.
    fn settle_write(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
        taken: Result<usize, Errno>,
    ) -> Result<(), StreamWriteError> {
        match taken {
            Ok(taken) => {
                self.enqueue(index, pieces, taken);
                Ok(())
            }
            Err(errno) => {
                self.core(index).fail(errno);
                Err(StreamWriteError::Closed)
            }
        }
    }

    /// Buffers pieces, except for their first bytes that were already sent.
    #[inline]
    fn enqueue(&mut self, index: u32, pieces: &[IoSlice<'_>], mut skip: usize) {
        for piece in pieces {
            let rest = &piece[skip.min(piece.len())..];
            skip -= piece.len() - rest.len();
            if !rest.is_empty() {
                self.output(index).push(rest);
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
