//! Event counters, pipes, timers and signals, and reads and writes of every kind.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;

use crate::faults::Fault;
use crate::ids::{Fd, HostId, mask};
use crate::kernel::state::State;
use crate::object::Kind;
use crate::object::files::{EventCount, Pipe, Timer};
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

/// The size of `struct signalfd_siginfo`.
const SIGNAL_BYTES: usize = 128;

impl State {
    pub(super) fn eventfd(
        &mut self,
        host: HostId,
        count: u64,
        is_semaphore: bool,
    ) -> Result<Fd, Errno> {
        self.open(host, Kind::EventCount(EventCount { count, is_semaphore }))
    }

    pub(super) fn pipe(&mut self, host: HostId) -> Result<(Fd, Fd), Errno> {
        self.fail(Fault::TooManyFiles, None, Errno::MFILE)?;
        let key = self.pipes.insert(Pipe::new());
        let reader = self.open_surely(host, Kind::PipeReader(key));
        let writer = self.open_surely(host, Kind::PipeWriter(key));
        if let Some(pipe) = self.pipes.get_mut(key) {
            (pipe.reader, pipe.writer) = (Some(reader), Some(writer));
        }
        Ok((reader, writer))
    }

    /// An end of a pipe is closed: the other learns of it.
    pub(super) fn close_pipe(&mut self, fd: Fd, key: Key) {
        let Some(pipe) = self.pipes.get_mut(key) else { return };
        for end in [&mut pipe.reader, &mut pipe.writer] {
            *end = end.filter(|end| *end != fd);
        }
        match pipe.reader.or(pipe.writer) {
            None => {
                self.pipes.remove(key);
            }
            other => self.wake(other, mask::IN | mask::OUT | mask::ERR | mask::HUP),
        }
    }

    pub(super) fn timerfd(&mut self, host: HostId) -> Result<Fd, Errno> {
        self.open(host, Kind::Timer(Timer::default()))
    }

    /// Sets a timer to a time of the virtual clock. Expirations that were not read are forgotten.
    pub(super) fn set_timer(
        &mut self,
        fd: Fd,
        deadline_ns: Option<u64>,
        interval_ns: u64,
    ) -> Result<(), Errno> {
        let Kind::Timer(timer) = &mut self.object_mut(fd)?.kind else { return Err(Errno::INVAL) };
        timer.expired = 0;
        timer.deadline_ns = deadline_ns;
        timer.interval_ns = interval_ns;
        self.arm(fd);
        Ok(())
    }

    /// Makes sure that the scheduler comes in time for a timer.
    fn arm(&mut self, fd: Fd) {
        let Some(object) = self.objects.get_mut(fd.as_raw()) else { return };
        let Kind::Timer(timer) = &mut object.kind else { return };
        let Some(deadline_ns) = timer.deadline_ns else { return };
        if timer.armed_ns.is_none_or(|armed_ns| deadline_ns < armed_ns) {
            timer.armed_ns = Some(deadline_ns);
            self.schedule.at(deadline_ns, Task::Timer(fd.as_raw()));
        }
    }

    /// The scheduler has come for a timer.
    pub(super) fn expire(&mut self, fd: Fd) {
        let now_ns = self.now_ns();
        let Some(object) = self.objects.get_mut(fd.as_raw()) else { return };
        let Kind::Timer(timer) = &mut object.kind else { return };
        if timer.armed_ns.is_some_and(|armed_ns| armed_ns > now_ns) {
            return;
        }
        timer.armed_ns = None;
        let times = timer.expire(now_ns);
        self.arm(fd);
        if times > 0 {
            self.record(What::Expire, Some(fd), i64::try_from(times).unwrap_or(i64::MAX));
            self.wake(Some(fd), mask::IN);
        }
    }

    pub(super) fn signalfd(&mut self, host: HostId, signals: u64) -> Result<Fd, Errno> {
        let fd = self.open(host, Kind::Signals(signals))?;
        self.network.add_signals(host, fd);
        Ok(fd)
    }

    /// read(2) of any object.
    pub(super) fn read(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        if let Kind::Conn { .. } | Kind::Socket(_) = self.object(fd)?.kind {
            return self.recv(fd, &mut [IoSliceMut::new(out)]);
        }
        let result = self.read_file(fd, out);
        self.outcome(What::Receive, fd, result)
    }

    fn read_file(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        self.fail(Fault::Interrupted, Some(fd), Errno::INTR)?;
        let object = self.objects.get_mut(fd.as_raw()).ok_or(Errno::BADF)?;
        let host = object.host;
        match &mut object.kind {
            Kind::EventCount(count) => {
                let out = out.first_chunk_mut().ok_or(Errno::INVAL)?;
                *out = count.read()?.to_ne_bytes();
                self.wake(Some(fd), mask::OUT);
                Ok(8)
            }
            Kind::Timer(timer) => {
                let out = out.first_chunk_mut().ok_or(Errno::INVAL)?;
                let expired = std::mem::take(&mut timer.expired);
                *out = expired.to_ne_bytes();
                if expired == 0 { Err(Errno::AGAIN) } else { Ok(8) }
            }
            Kind::Signals(signals) => {
                let signals = *signals;
                if out.len() < SIGNAL_BYTES {
                    return Err(Errno::INVAL);
                }
                let mut count = 0;
                for info in out.chunks_exact_mut(SIGNAL_BYTES) {
                    let Some(signal) = self.network.take_signal(host, signals) else { break };
                    info.fill(0);
                    info[..4].copy_from_slice(&signal.to_ne_bytes());
                    count += SIGNAL_BYTES;
                }
                if count == 0 { Err(Errno::AGAIN) } else { Ok(count) }
            }
            Kind::PipeReader(key) => {
                let pipe = self.pipes.get_mut(*key).ok_or(Errno::BADF)?;
                let was_full = pipe.is_full();
                let count = pipe.read(out)?;
                // pipe_read() wakes the writer when it has emptied a page of a full pipe.
                let (writer, is_full) = (pipe.writer, pipe.is_full());
                if was_full && !is_full {
                    self.wake(writer, mask::OUT);
                }
                Ok(count)
            }
            Kind::PipeWriter(_) => Err(Errno::BADF),
            Kind::Udp(_) => self.recv_from(fd, out).map(|(count, _)| count),
            Kind::Conn { .. } | Kind::Socket(_) => Err(Errno::NOTCONN),
        }
    }

    /// write(2) of any object.
    pub(super) fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        if let Kind::Conn { .. } | Kind::Socket(_) = self.object(fd)?.kind {
            return self.send(fd, &[IoSlice::new(bytes)]);
        }
        let result = self.write_file(fd, bytes);
        self.outcome(What::Send, fd, result)
    }

    fn write_file(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        self.fail(Fault::Interrupted, Some(fd), Errno::INTR)?;
        match &mut self.object_mut(fd)?.kind {
            Kind::EventCount(count) => {
                let value = bytes.first_chunk().ok_or(Errno::INVAL)?;
                count.write(u64::from_ne_bytes(*value))?;
                self.wake(Some(fd), mask::IN);
                Ok(8)
            }
            Kind::PipeWriter(key) => {
                let key = *key;
                let pipe = self.pipes.get_mut(key).ok_or(Errno::BADF)?;
                let count = pipe.write(bytes)?;
                let reader = pipe.reader;
                if count > 0 {
                    self.wake(reader, mask::IN);
                }
                Ok(count)
            }
            Kind::Udp(udp) => {
                let peer = udp.peer.clone().ok_or(Errno::DESTADDRREQ)?;
                self.send_to(fd, bytes, &peer)
            }
            Kind::PipeReader(_) => Err(Errno::BADF),
            Kind::Timer(_) | Kind::Signals(_) => Err(Errno::INVAL),
            Kind::Conn { .. } | Kind::Socket(_) => Err(Errno::NOTCONN),
        }
    }
}
