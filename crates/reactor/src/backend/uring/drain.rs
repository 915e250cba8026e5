//! What a receive that ends for good leaves behind.

use rustix::io::Errno;

use super::{COMPLETION, Cell, NO_BUFFER, Uring, pool::buffer_of, streams::Streams, tag};

impl Uring {
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
                done.lent.iter_mut().for_each(|lent| bytes.extend_from_slice(lent.bytes()));
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
