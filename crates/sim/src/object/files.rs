//! Event counters, pipes, timers and signals: state and readiness.

use std::collections::VecDeque;

use rustix::io::Errno;

use crate::ids::{Fd, mask};

/// eventfd(2).
#[derive(Debug)]
pub(crate) struct EventCount {
    pub(crate) count: u64,
    pub(crate) is_semaphore: bool,
}

/// The greatest count less one that a write may leave.
const COUNT_MAX: u64 = u64::MAX - 1;

impl EventCount {
    pub(crate) fn mask(&self) -> u32 {
        let input = if self.count > 0 { mask::IN } else { 0 };
        let output = if self.count < COUNT_MAX { mask::OUT } else { 0 };
        input | output
    }

    pub(crate) fn read(&mut self) -> Result<u64, Errno> {
        let taken = if self.is_semaphore { self.count.min(1) } else { self.count };
        self.count -= taken;
        if taken == 0 { Err(Errno::AGAIN) } else { Ok(taken) }
    }

    pub(crate) fn write(&mut self, value: u64) -> Result<(), Errno> {
        if value == u64::MAX {
            return Err(Errno::INVAL);
        }
        if COUNT_MAX - self.count < value {
            return Err(Errno::AGAIN);
        }
        self.count += value;
        Ok(())
    }
}

/// The size of a pipe, and the part of it that must be free before it is writable: a page.
const PIPE_BYTES: usize = 65_536;
const PIPE_PAGE: usize = 4_096;

/// pipe(2), with both ends.
#[derive(Debug)]
pub(crate) struct Pipe {
    bytes: VecDeque<u8>,
    pub(crate) reader: Option<Fd>,
    pub(crate) writer: Option<Fd>,
}

impl Pipe {
    pub(crate) fn new() -> Self {
        Self { bytes: VecDeque::new(), reader: None, writer: None }
    }

    pub(crate) fn is_full(&self) -> bool {
        PIPE_BYTES - self.bytes.len() < PIPE_PAGE
    }

    pub(crate) fn unread(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn reader_mask(&self) -> u32 {
        let input = if self.bytes.is_empty() { 0 } else { mask::IN };
        let end = if self.writer.is_none() { mask::HUP } else { 0 };
        input | end
    }

    pub(crate) fn writer_mask(&self) -> u32 {
        let output = if self.is_full() { 0 } else { mask::OUT };
        let end = if self.reader.is_none() { mask::ERR } else { 0 };
        output | end
    }

    /// A write of up to a page is whole or nothing.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.reader.is_none() {
            return Err(Errno::PIPE);
        }
        let room = PIPE_BYTES - self.bytes.len();
        let count = bytes.len().min(room);
        if !bytes.is_empty() && (room == 0 || (bytes.len() <= PIPE_PAGE && count < bytes.len())) {
            return Err(Errno::AGAIN);
        }
        self.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
        if self.bytes.is_empty() && self.writer.is_some() && !out.is_empty() {
            return Err(Errno::AGAIN);
        }
        let count = out.len().min(self.bytes.len());
        for (out, byte) in out.iter_mut().zip(self.bytes.drain(..count)) {
            *out = byte;
        }
        Ok(count)
    }
}

/// timerfd_create(2), on the virtual clock.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) interval_ns: u64,
    pub(crate) expired: u64,
    /// The earliest task of the scheduler for it.
    pub(crate) armed_ns: Option<u64>,
}

impl Timer {
    pub(crate) fn mask(&self) -> u32 {
        if self.expired > 0 { mask::IN } else { 0 }
    }

    /// Counts the deadlines that have come, and returns their number.
    pub(crate) fn expire(&mut self, now_ns: u64) -> u64 {
        let Some(deadline_ns) = self.deadline_ns.filter(|deadline_ns| *deadline_ns <= now_ns)
        else {
            return 0;
        };
        let times = match self.interval_ns {
            0 => {
                self.deadline_ns = None;
                1
            }
            interval_ns => {
                let times = (now_ns - deadline_ns) / interval_ns + 1;
                self.deadline_ns = Some(deadline_ns + times * interval_ns);
                times
            }
        };
        self.expired += times;
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_count_has_the_bounds_of_eventfd() {
        let mut count = EventCount { count: 0, is_semaphore: false };
        assert_eq!((count.mask(), count.read()), (mask::OUT, Err(Errno::AGAIN)));
        assert_eq!(count.write(u64::MAX), Err(Errno::INVAL));
        count.write(u64::MAX - 1).expect("room");
        assert_eq!((count.mask(), count.write(1)), (mask::IN, Err(Errno::AGAIN)));
        assert_eq!(count.read(), Ok(u64::MAX - 1));
        count.is_semaphore = true;
        count.write(2).expect("room");
        assert_eq!((count.read(), count.count), (Ok(1), 1));
    }

    #[test]
    fn a_pipe_is_full_without_a_free_page() {
        let fd = Some(Fd::from_raw(1));
        let mut pipe = Pipe { reader: fd, writer: fd, ..Pipe::new() };
        assert_eq!(pipe.read(&mut [0; 4]), Err(Errno::AGAIN));
        assert_eq!(pipe.write(&[1; 100_000]), Ok(65_536));
        assert_eq!((pipe.write(&[1]), pipe.writer_mask()), (Err(Errno::AGAIN), 0));
        assert_eq!(pipe.read(&mut [0; 4_095]), Ok(4_095));
        assert_eq!(pipe.write(&[1; 4_096]), Err(Errno::AGAIN));
        assert!(pipe.is_full());
        pipe.read(&mut [0; 1]).expect("bytes");
        assert!(!pipe.is_full());
        pipe.writer = None;
        assert_eq!(pipe.reader_mask(), mask::IN | mask::HUP);
        pipe.reader = None;
        assert_eq!(pipe.writer_mask(), mask::OUT | mask::ERR);
        assert_eq!(pipe.write(&[1]), Err(Errno::PIPE));
    }

    #[test]
    fn an_interval_counts_the_times_that_were_missed() {
        let mut timer = Timer { deadline_ns: Some(10), interval_ns: 5, ..Timer::default() };
        assert_eq!(timer.expire(9), 0);
        assert_eq!(timer.expire(21), 3);
        assert_eq!((timer.deadline_ns, timer.expired), (Some(25), 3));
        let mut once = Timer { deadline_ns: Some(10), ..Timer::default() };
        assert_eq!((once.expire(10), once.expire(11)), (1, 0));
    }
}
