//! The system calls, as methods of the kernel.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;

use rustix::io::Errno;

use crate::ids::{ActorId, Fd, HostId, SimAddr, SocketKind};
use crate::kernel::{Kernel, PollSet, Ring};
use crate::object::Kind;

impl Kernel {
    // Sockets.

    /// socket(2), non-blocking.
    ///
    /// # Errors
    ///
    /// `EMFILE` and `ENOBUFS` as faults.
    pub fn socket(&self, host: HostId, kind: SocketKind) -> io::Result<Fd> {
        Ok(self.state().socket(host, kind)?)
    }

    /// socketpair(2) of Unix streams.
    ///
    /// # Errors
    ///
    /// `EMFILE` as a fault.
    pub fn socketpair(&self, host: HostId) -> io::Result<(Fd, Fd)> {
        Ok(self.state().socketpair(host)?)
    }

    /// bind(2). Port 0 gets a free one. The path of a Unix socket is free again when it is closed.
    ///
    /// # Errors
    ///
    /// Those of bind(2).
    pub fn bind(&self, fd: Fd, addr: &SimAddr) -> io::Result<()> {
        Ok(self.state().bind(fd, addr)?)
    }

    /// listen(2).
    ///
    /// # Errors
    ///
    /// Those of listen(2).
    pub fn listen(&self, fd: Fd, backlog: u32) -> io::Result<()> {
        Ok(self.state().listen(fd, backlog)?)
    }

    /// accept4(2), with the peer's address.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, and as faults `EINTR`, `EMFILE` and `ECONNABORTED`.
    pub fn accept(&self, fd: Fd) -> io::Result<(Fd, SimAddr)> {
        Ok(self.call(|state| state.accept(fd))?)
    }

    /// connect(2). TCP is always in progress; then `OUT` or an error is reported.
    ///
    /// # Errors
    ///
    /// Those of connect(2), first of all `EINPROGRESS`.
    pub fn connect(&self, fd: Fd, addr: &SimAddr) -> io::Result<()> {
        Ok(self.call(|state| state.connect(fd, addr))?)
    }

    /// shutdown(2).
    ///
    /// # Errors
    ///
    /// `ENOTCONN` and `ENOTSOCK`.
    pub fn shutdown(&self, fd: Fd, how: Shutdown) -> io::Result<()> {
        Ok(self.call(|state| state.shutdown(fd, how))?)
    }

    /// close(2). TCP resets the connection if input was not read; else the peer gets the output
    /// and a FIN.
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub fn close(&self, fd: Fd) -> io::Result<()> {
        Ok(self.call(|state| state.close(fd))?)
    }

    /// The descriptor that has a slot now.
    #[must_use]
    pub fn fd_at(&self, slot: u32) -> Option<Fd> {
        let state = self.state();
        let fd = Fd::from_raw(state.objects.key_at(slot)?);
        state.object(fd).ok().map(|_| fd)
    }

    /// Whether close(2) resets the connection: SO_LINGER with a time of zero. Accepted connections
    /// have the setting of their listener.
    ///
    /// # Errors
    ///
    /// `EBADF` and `ENOTSOCK`.
    pub fn set_reset_on_close(&self, fd: Fd, resets: bool) -> io::Result<()> {
        match &mut self.state().object_mut(fd)?.kind {
            Kind::Socket(socket) => socket.reset_on_close = resets,
            Kind::Conn { reset_on_close, .. } => *reset_on_close = resets,
            _ => return Err(Errno::NOTSOCK.into()),
        }
        Ok(())
    }

    /// The setting of [`set_reset_on_close`](Self::set_reset_on_close).
    ///
    /// # Errors
    ///
    /// `EBADF` and `ENOTSOCK`.
    pub fn resets_on_close(&self, fd: Fd) -> io::Result<bool> {
        match self.state().object(fd)?.kind {
            Kind::Socket(ref socket) => Ok(socket.reset_on_close),
            Kind::Conn { reset_on_close, .. } => Ok(reset_on_close),
            _ => Err(Errno::NOTSOCK.into()),
        }
    }

    /// Several sockets may have one port: SO_REUSEPORT, before bind(2).
    ///
    /// # Errors
    ///
    /// `EBADF` and `ENOTSOCK`.
    pub fn set_reuse_port(&self, fd: Fd, reuses: bool) -> io::Result<()> {
        let mut state = self.state();
        let Kind::Socket(socket) = &mut state.object_mut(fd)?.kind else {
            return Err(Errno::NOTSOCK.into());
        };
        socket.reuse_port = reuses;
        Ok(())
    }

    /// The bytes that each direction of a stream holds between its ends.
    ///
    /// # Errors
    ///
    /// `EBADF` and `ENOTSOCK`.
    pub fn set_buffers(&self, fd: Fd, bytes: usize) -> io::Result<()> {
        let mut state = self.state();
        let key = match &mut state.object_mut(fd)?.kind {
            Kind::Socket(socket) => {
                socket.buffers = Some(bytes.max(1));
                return Ok(());
            }
            Kind::Conn { conn, .. } => *conn,
            _ => return Err(Errno::NOTSOCK.into()),
        };
        if let Some(conn) = state.conns.get_mut(key) {
            conn.flows.iter_mut().for_each(|flow| flow.set_capacity(bytes.max(1)));
        }
        Ok(())
    }

    /// getsockname(2).
    ///
    /// # Errors
    ///
    /// `EBADF` and `ENOTSOCK`.
    pub fn local_addr(&self, fd: Fd) -> io::Result<SimAddr> {
        Ok(self.state().local_addr(fd)?)
    }

    /// getpeername(2).
    ///
    /// # Errors
    ///
    /// `EBADF`, `ENOTSOCK` and `ENOTCONN`.
    pub fn peer_addr(&self, fd: Fd) -> io::Result<SimAddr> {
        Ok(self.state().peer_addr(fd)?)
    }

    /// Takes the pending error of a socket: SO_ERROR.
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub fn take_error(&self, fd: Fd) -> io::Result<Option<io::Error>> {
        let mut state = self.state();
        let Kind::Conn { conn, side, .. } = state.object(fd)?.kind else { return Ok(None) };
        let conn = state.conns.get_mut(conn);
        let error = conn.and_then(|conn| conn.ends[usize::from(side)].error.take());
        Ok(error.map(io::Error::from))
    }

    /// The bytes that can be read: FIONREAD.
    ///
    /// # Errors
    ///
    /// `EBADF`, `ENOTSOCK` and `ENOTCONN`.
    pub fn unread(&self, fd: Fd) -> io::Result<usize> {
        let state = self.state();
        if let Kind::PipeReader(pipe) = state.object(fd)?.kind {
            return Ok(state.pipes.get(pipe).map_or(0, |pipe| pipe.unread()));
        }
        let (key, side) = state.conn_of(fd)?;
        Ok(state.conns.get(key).map_or(0, |conn| conn.flows[side].arrived()))
    }

    /// The bytes that were written and have not arrived: SIOCOUTQ.
    ///
    /// # Errors
    ///
    /// `EBADF`, `ENOTSOCK` and `ENOTCONN`.
    pub fn unsent(&self, fd: Fd) -> io::Result<usize> {
        let state = self.state();
        let (key, side) = state.conn_of(fd)?;
        Ok(state.conns.get(key).map_or(0, |conn| conn.flows[1 - side].in_flight()))
    }

    // Input and output.

    /// send(2).
    ///
    /// # Errors
    ///
    /// Those of send(2).
    pub fn send(&self, fd: Fd, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.call(|state| state.send(fd, &[IoSlice::new(bytes)]))?)
    }

    /// writev(2) of a stream.
    ///
    /// # Errors
    ///
    /// Those of send(2).
    pub fn send_vectored(&self, fd: Fd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.call(|state| state.send(fd, parts))?)
    }

    /// recv(2).
    ///
    /// # Errors
    ///
    /// Those of recv(2).
    pub fn recv(&self, fd: Fd, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.call(|state| state.recv(fd, &mut [IoSliceMut::new(bytes)]))?)
    }

    /// readv(2) of a stream.
    ///
    /// # Errors
    ///
    /// Those of recv(2).
    pub fn recv_vectored(&self, fd: Fd, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.call(|state| state.recv(fd, parts))?)
    }

    /// recv(2) with MSG_PEEK.
    ///
    /// # Errors
    ///
    /// Those of recv(2).
    pub fn peek(&self, fd: Fd, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.call(|state| state.peek(fd, bytes))?)
    }

    /// sendto(2) of a UDP socket.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`, `EHOSTUNREACH`, and `ENOBUFS` as a fault.
    pub fn send_to(&self, fd: Fd, bytes: &[u8], to: &SimAddr) -> io::Result<usize> {
        Ok(self.call(|state| state.send_to(fd, bytes, to))?)
    }

    /// recvfrom(2) of a UDP socket. What does not fit is lost.
    ///
    /// # Errors
    ///
    /// `EAGAIN`.
    pub fn recv_from(&self, fd: Fd, bytes: &mut [u8]) -> io::Result<(usize, SimAddr)> {
        Ok(self.call(|state| state.recv_from(fd, bytes))?)
    }

    /// read(2) of any descriptor.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn read(&self, fd: Fd, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.call(|state| state.read(fd, bytes))?)
    }

    /// write(2) of any descriptor. A broken pipe raises no signal.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn write(&self, fd: Fd, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.call(|state| state.write(fd, bytes))?)
    }

    // Other descriptors.

    /// eventfd(2).
    ///
    /// # Errors
    ///
    /// `EMFILE` as a fault.
    pub fn eventfd(&self, host: HostId, count: u64, is_semaphore: bool) -> io::Result<Fd> {
        Ok(self.state().eventfd(host, count, is_semaphore)?)
    }

    /// pipe(2): the end to read from, and the end to write to.
    ///
    /// # Errors
    ///
    /// `EMFILE` as a fault.
    pub fn pipe(&self, host: HostId) -> io::Result<(Fd, Fd)> {
        Ok(self.state().pipe(host)?)
    }

    /// timerfd_create(2).
    ///
    /// # Errors
    ///
    /// `EMFILE` as a fault.
    pub fn timerfd(&self, host: HostId) -> io::Result<Fd> {
        Ok(self.state().timerfd(host)?)
    }

    /// timerfd_settime(2) with an absolute virtual time; `None` disarms. An interval of 0 is none.
    ///
    /// # Errors
    ///
    /// `EBADF`, and `EINVAL` if it is no timer.
    pub fn set_timer(&self, fd: Fd, at_ns: Option<u64>, interval_ns: u64) -> io::Result<()> {
        Ok(self.state().set_timer(fd, at_ns, interval_ns)?)
    }

    /// signalfd(2). Bit 0 of the mask is signal 1. A read returns as many `signalfd_siginfo` as
    /// there are and fit, of which only the number is set.
    ///
    /// # Errors
    ///
    /// `EMFILE` as a fault.
    pub fn signalfd(&self, host: HostId, mask: u64) -> io::Result<Fd> {
        Ok(self.state().signalfd(host, mask)?)
    }

    /// Sends a signal, 1 to 64, to the process of a host. Equal ones merge until they are read.
    ///
    /// # Panics
    ///
    /// If there is no such signal.
    pub fn raise(&self, host: HostId, signal: u32) {
        assert!((1..=64).contains(&signal), "signals are 1 to 64");
        self.call(|state| state.raise(host, signal));
    }

    /// The readiness of a descriptor, in bits of [`mask`](crate::mask).
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub fn poll(&self, fd: Fd) -> io::Result<u32> {
        let mut state = self.state();
        state.object(fd)?;
        Ok(state.mask(fd))
    }

    /// A set of watched descriptors for an actor.
    #[must_use]
    pub fn poll_set(&self, actor: ActorId) -> PollSet {
        PollSet::new(self, actor)
    }

    /// A ring for an actor, with room for so many completions.
    #[must_use]
    pub fn ring(&self, actor: ActorId, completions_max: usize) -> Ring {
        Ring::new(self, actor, completions_max)
    }
}
