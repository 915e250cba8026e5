//! Reads and writes of connected streams.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;

use crate::choices::Track;
use crate::faults::Fault;
use crate::ids::{Fd, SocketKind};
use crate::kernel::state::State;
use crate::object::Kind;
use crate::object::flow::Segment;
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

impl State {
    /// The error of a send whose descriptor is no connection, for which there is a general one.
    pub(super) fn send_error(&self, fd: Fd, error: Errno) -> Errno {
        match self.objects.get(fd.as_raw()).map(|object| &object.kind) {
            // sk_stream_wait_connect()
            Some(Kind::Socket(socket)) if socket.kind == SocketKind::Tcp => Errno::PIPE,
            _ => error,
        }
    }

    /// The same for a receive.
    pub(super) fn recv_error(&self, fd: Fd, error: Errno) -> Errno {
        match self.objects.get(fd.as_raw()).map(|object| &object.kind) {
            // unix_stream_read_generic()
            Some(Kind::Socket(socket)) if socket.kind == SocketKind::Unix => Errno::INVAL,
            _ => error,
        }
    }

    /// writev(2) of a connected stream.
    pub(super) fn send(&mut self, fd: Fd, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let (key, side) = self.conn_of(fd).map_err(|error| self.send_error(fd, error))?;
        let result = self.send_to_conn(fd, key, side, parts);
        self.outcome(What::Send, fd, result)
    }

    /// The same, also for a descriptor that only a request holds.
    pub(super) fn send_to_conn(
        &mut self,
        fd: Fd,
        key: Key,
        side: usize,
        parts: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        conn.check_write(side)?;
        let is_tcp = !conn.is_unix;
        self.fail(Fault::Interrupted, Some(fd), Errno::INTR)?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total == 0 {
            return Ok(0);
        }
        if is_tcp && self.fault(Fault::HalfClose, Some(fd)) {
            if let Some(conn) = self.conns.get_mut(key) {
                conn.ends[side].send_shut = true;
            }
            self.wake(Some(fd), 0);
            self.transmit(key, side, Segment::Fin);
            return Err(Errno::PIPE);
        }
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        let room = if conn.ends[side].is_blocked { 0 } else { conn.flows[1 - side].room() };
        if room == 0 {
            conn.ends[side].wants_room = true;
            return Err(Errno::AGAIN);
        }
        if self.fault(Fault::WouldBlock, Some(fd)) {
            self.block(key, side);
            return Err(Errno::AGAIN);
        }
        let mut count = total.min(room);
        if count > 1 && self.fault(Fault::ShortWrite, Some(fd)) {
            // The simplest choice is the longest write.
            count -= 1 + self.choices.below(Track::Time, count as u64 - 1) as usize;
            self.block(key, side);
        }
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        conn.ends[side].wants_room |= count < total;
        let mut left = count;
        for part in parts {
            let taken = left.min(part.len());
            conn.flows[1 - side].push(&part[..taken]);
            left -= taken;
        }
        self.transmit(key, side, Segment::Data(count));
        Ok(count)
    }

    /// No write goes through until a short delay has passed; then room is reported.
    fn block(&mut self, key: Key, side: usize) {
        let at_ns = self.after_delay();
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.ends[side].is_blocked = true;
        self.schedule.at(at_ns, Task::Unblock(key, side as u8));
    }

    /// readv(2) of a connected stream.
    pub(super) fn recv(&mut self, fd: Fd, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let (key, side) = self.conn_of(fd).map_err(|error| self.recv_error(fd, error))?;
        let result = self.recv_from_conn(fd, key, side, parts);
        self.outcome(What::Receive, fd, result)
    }

    /// The same, also for a descriptor that only a request holds.
    pub(super) fn recv_from_conn(
        &mut self,
        fd: Fd,
        key: Key,
        side: usize,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        self.fail(Fault::Interrupted, Some(fd), Errno::INTR)?;
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let arrived = conn.flows[side].arrived();
        if arrived == 0 {
            return conn.read_nothing(side);
        }
        // A Unix stream gives all that it has. Of TCP a part may be taken as not arrived yet.
        let is_elastic = !conn.is_unix && !conn.ends[side].is_dead;
        let seen = arrived - if is_elastic { conn.flows[side].withdrawable() } else { 0 };
        let mut count = total.min(arrived);
        if seen == 0 && count > 0 && self.fault(Fault::WouldBlock, Some(fd)) {
            self.withdraw(key, side, arrived);
            return Err(Errno::AGAIN);
        }
        let least = seen.max(1);
        if count > least && is_elastic && self.fault(Fault::ShortRead, Some(fd)) {
            // The simplest choice is the longest read.
            count -= 1 + self.choices.below(Track::Time, (count - least) as u64) as usize;
            self.withdraw(key, side, arrived - count);
        }
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        let (mut left, mut is_whole) = (count, false);
        for part in parts {
            let wanted = left.min(part.len());
            let (taken, whole) = conn.flows[side].take(&mut part[..wanted]);
            is_whole |= whole;
            left -= taken;
        }
        self.room_is_free(key, side, is_whole);
        Ok(count)
    }

    /// The last bytes that have arrived arrive again after a short delay.
    fn withdraw(&mut self, key: Key, side: usize, bytes: usize) {
        let at_ns = self.after_delay();
        if let Some(conn) = self.conns.get_mut(key) {
            conn.flows[side].withdraw(bytes, at_ns);
        }
        self.schedule_flow(key, side);
    }

    /// Copies input without taking it, as MSG_PEEK does.
    pub(super) fn peek(&mut self, fd: Fd, out: &mut [u8]) -> Result<usize, Errno> {
        let (key, side) = self.conn_of(fd).map_err(|error| self.recv_error(fd, error))?;
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        let result = if conn.flows[side].arrived() > 0 {
            Ok(conn.flows[side].peek(out))
        } else {
            conn.read_nothing(side)
        };
        self.outcome(What::Receive, fd, result)
    }
}
