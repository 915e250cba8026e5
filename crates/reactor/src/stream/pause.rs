//! Paused streams: members of a paused group.
//!
//! 1. A paused cell calls no driver (`kernel/pause.rs`). So no callback comes before the resume,
//!    which calls the driver.
//! 2. A socket is not watched, and a receive of a ring ends. The driver asks for both again.
//! 3. Input that a ring has received before is kept, as that of a stream that does not read.
//! 4. A driver whose callback has paused its own stream makes no further one.
//! 5. Output is written as far as the socket accepts it. The rest waits for the resume.
//! 6. Timeouts begin anew with the resume.

use crate::{
    Errno, Key,
    backend::completions::{COMPLETION, Done, NO_BUFFER},
    cell::CellFlags,
    kernel::Kernel,
    stream::{
        io::{memory::Undelivered, readiness::DriverFrame},
        state::{SCRATCH_LEN, StreamTable},
        status::{Receive, StreamFlags, StreamPhase, Watch},
    },
};

impl StreamTable {
    /// Pauses a stream or listener. The caller calls [`Kernel::keep_synthetic_of_paused`]
    /// afterwards.
    pub(crate) fn pause_member(&mut self, kernel: &mut Kernel, key: Key) {
        let Some(cell) = self.member_cell(kernel, key) else { return };
        let Some(index) = self.find(key) else { return kernel.pause(cell) };
        if self.paused.insert(cell.key(), index).is_some() {
            return;
        }
        self.deadlines.remove(index);
        let core = self.core(index);
        if !core.status.is_on_ring() {
            return kernel.pause(cell);
        }
        cell.pause();
        let Some(ring) = kernel.ring() else { return };
        if core.status.watch() != Watch::Nothing {
            cell.set_flag(CellFlags::DIRTY, false);
            cell.set_flag(CellFlags::ABSENT, true);
            ring.unpoll(cell);
            core.status.set_watch(Watch::Nothing);
        }
        if core.status.receive() == Receive::Armed {
            let is_over = ring.end_receive(cell);
            core.status.set_receive(if is_over { Receive::Off } else { Receive::Ending });
        }
    }

    /// Resumes a stream or listener, if it is paused.
    pub(crate) fn resume_member(&mut self, kernel: &mut Kernel, key: Key) {
        let Some(cell) = self.member_cell(kernel, key) else { return };
        let Some(index) = self.find(key) else { return kernel.resume(cell) };
        if self.paused.remove(&cell.key()).is_none() {
            return;
        }
        let core = self.core(index);
        // Its event in the batch may have been dropped.
        core.status.clear(StreamFlags::DRIVER_QUEUED);
        core.begin_timeouts_anew();
        if core.status.is_on_ring() {
            kernel.resume_dispatch(cell);
        } else {
            kernel.resume(cell);
        }
        self.notify(kernel, index);
    }

    /// Whether a stream is paused with its group.
    pub(super) fn is_paused(&mut self, index: u32) -> bool {
        if self.paused.is_empty() {
            return false;
        }
        let cell = self.core(index).cell;
        self.paused.contains_key(&cell)
    }

    /// An event of a paused cell. Keeps what a ring has received, and returns the conditions, which
    /// are none then.
    pub(crate) fn hold_event(&mut self, kernel: &mut Kernel, cell: Key, ready: u32) -> u32 {
        let Some(&index) = self.paused.get(&cell).filter(|_| ready & COMPLETION != 0) else {
            return ready;
        };
        let Some(ring) = kernel.ring() else { return 0 };
        let Some(Done { result, has_more, part }) = ring.take_done(ready) else {
            self.note_failed_sends(kernel);
            return 0;
        };
        if !has_more {
            self.core(index).status.set_receive(Receive::Off);
        }
        match result {
            1.. => part.into_iter().for_each(|mut part| {
                part.bytes().chunks(SCRATCH_LEN).for_each(|piece| self.hold(index, piece));
            }),
            0 => self.hold(index, &[]),
            _ => match Errno::from_raw_os_error(-result) {
                NO_BUFFER | Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                errno => self.core(index).fail(errno),
            },
        }
        0
    }

    /// Keeps received bytes, or the peer's end of stream if there are none.
    fn hold(&mut self, index: u32, bytes: &[u8]) {
        let status = &mut self.core(index).status;
        if status.is_ending() && !status.any(StreamFlags::DELIVERS) {
            // A closed stream discards its input.
            let has_ended = bytes.is_empty() && status.is(StreamPhase::Closing);
            return status.set(StreamFlags::ENDED, has_ended || status.any(StreamFlags::ENDED));
        }
        status.insert(StreamFlags::PREFIX);
        let piece = Undelivered::new(bytes.to_vec(), &self.memory);
        self.prefixes.entry(index).or_default().push_back(piece);
    }
}

impl DriverFrame<'_> {
    /// Whether a callback of this frame has paused the stream with its group.
    pub(in crate::stream) fn is_paused(&mut self) -> bool {
        let (streams, _, index) = self.split();
        streams.is_paused(index)
    }

    /// Whether input must wait.
    pub(in crate::stream) fn holds_input(&mut self) -> bool {
        self.has(StreamFlags::NO_READING) || self.is_paused()
    }
}
