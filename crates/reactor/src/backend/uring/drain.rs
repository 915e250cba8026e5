//! Receives that end for good, and what they leave behind.

use std::time::Instant;

use rustix::io::Errno;

use super::{
    CANCEL_MAX, Cell, Uring,
    pool::buffer_of,
    streams::{Streams, place_in},
    tag,
};
use crate::backend::completions::{COMPLETION, NO_BUFFER};

impl Uring {
    /// Ends the receives in flight of several cells for good. Each system call takes as many
    /// cancellations as the queue holds.
    ///
    /// A receive that has not started is left alone: its end takes no system call, and without a
    /// completion its stream would not learn of it. Its cell is removed from the list.
    pub(crate) fn end_receives(&mut self, cells: &mut Vec<Cell>) {
        if self.fork.is_child() {
            return;
        }
        if !self.awaiting_buffer.is_empty() || !self.to_receive.is_empty() {
            cells.retain(|cell| !self.is_to_start(*cell));
        }
        let mut first = 0;
        for (place, cell) in cells.iter().enumerate() {
            let _ = self.end_receive(*cell);
            if self.ring.queued() >= self.ring.capacity() {
                self.settle_receives(&cells[first..=place]);
                first = place + 1;
            }
        }
        self.settle_receives(&cells[first..]);
    }

    /// Whether the cell's receive has not started.
    fn is_to_start(&self, cell: Cell) -> bool {
        let address = cell.expose();
        place_in(&self.awaiting_buffer, |waiting| *waiting == address).is_some()
            || place_in(&self.to_receive, |(waiting, _)| *waiting == address).is_some()
    }

    /// Waits, for a bounded time, until all requests of these cells have completed.
    fn settle_receives(&mut self, cells: &[Cell]) {
        let end = Instant::now() + CANCEL_MAX;
        loop {
            self.reap();
            let left = cells.iter().filter(|cell| cell.requests() > 0).count();
            if left == 0 || self.outstanding == 0 || Instant::now() >= end {
                return;
            }
            self.enter_for(left);
        }
    }

    /// Ends a receive for good, and appends the bytes of which its stream was not told: those of
    /// `events`, which wait in the batch, and those of completions that were not reported. Returns
    /// the error by which the receive had ended.
    #[cold]
    pub(crate) fn drain_receive(
        &mut self,
        cell: Cell,
        events: impl Iterator<Item = u32>,
        bytes: &mut Vec<u8>,
    ) -> Option<Errno> {
        if self.fork.is_child() {
            return None;
        }
        let mut result = 0;
        for ready in events.filter(|ready| ready & COMPLETION != 0) {
            if let Some(mut done) = self.take_done(ready) {
                result = done.result;
                done.part.iter_mut().for_each(|part| bytes.extend_from_slice(part.bytes()));
            }
        }
        let _ = self.end_receive(cell);
        self.settle_while(|_| cell.requests() > 0);
        let address = cell.expose() | tag::RECEIVE;
        let mut has_bytes = false;
        for kept in self.backlog.iter().filter(|kept| kept.user_data == address) {
            result = kept.result;
            has_bytes |= buffer_of(kept.flags).is_some();
        }
        if has_bytes {
            self.copy_backlog(address, bytes);
        }
        error_of(result)
    }

    /// Copies the bytes that the backlog has for a receive.
    ///
    /// Buffers are claimed in the order of all completions, so these are copied without a claim.
    /// They are given back when they are reported to no stream.
    fn copy_backlog(&self, address: u64, bytes: &mut Vec<u8>) {
        let Streams::By(pool) = &self.streams else { return };
        // Each buffer, and how many of its bytes come before.
        let mut ahead: Vec<(u16, u32)> = Vec::new();
        for kept in self.backlog.iter().filter(|kept| kept.user_data & tag::MASK == tag::RECEIVE) {
            let len = u32::try_from(kept.result).unwrap_or(0);
            let Some(buffer) = buffer_of(kept.flags) else { continue };
            let before = ahead.iter().position(|(number, _)| *number == buffer);
            let before = before.unwrap_or_else(|| {
                ahead.push((buffer, 0));
                ahead.len() - 1
            });
            if kept.user_data == address {
                pool.copy_unclaimed(ahead[before].1, len, kept.flags, bytes);
            }
            ahead[before].1 += len;
        }
    }
}

/// The error of the connection that a receive's result reports, if it does.
fn error_of(result: i32) -> Option<Errno> {
    let error = (result < 0).then(|| Errno::from_raw_os_error(-result));
    error
        .filter(|errno| !matches!(*errno, Errno::CANCELED | Errno::INTR | Errno::AGAIN | NO_BUFFER))
}
