//! The owner of a simulated object. Its drop closes the object, unless that is lent.
//!
//! It names its world by a number, which only that world's thread resolves. So listeners stay
//! `Send` with the feature `sim`. On another thread, and once the world is gone, calls are `EBADF`.

use std::{
    any::Any,
    io::{self, IoSlice},
    net::{Shutdown, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
};

use rustix::io::Errno;
use windlass_flow::SimBell;
use windlass_sim::{Fd, Kernel, SimAddr, SocketKind, mask};

use super::{Host, World};

/// The name of a simulated object, in any simulation of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimId {
    world: u64,
    fd: Fd,
}

impl SimId {
    /// The object, if it belongs to this world.
    pub(crate) fn fd_in(self, world: &World) -> Option<Fd> {
        (self.world == world.id()).then_some(self.fd)
    }
}

#[derive(Debug)]
pub(crate) struct SimObject {
    world: u64,
    fd: Fd,
    /// Its owner, which closes it, is another value.
    is_lent: bool,
}

impl SimObject {
    pub(super) fn new(world: &World, fd: Fd) -> Self {
        Self { world: world.id(), fd, is_lent: false }
    }

    /// An object that its owner keeps open while this value is used.
    pub(crate) const fn lent(id: SimId) -> Self {
        Self { world: id.world, fd: id.fd, is_lent: true }
    }

    pub(crate) const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Starts to connect. The result of the call stands beside the socket.
    pub(crate) fn connect(host: &Host, to: &SimAddr) -> Result<(Self, Result<(), Errno>), Errno> {
        let kind = match to {
            SimAddr::Inet(_) => SocketKind::Tcp,
            SimAddr::Unix(_) => SocketKind::Unix,
        };
        let (world, kernel) = (host.world(), host.world().kernel());
        let socket = Self::new(world, kernel.socket(host.id(), kind).map_err(errno)?);
        let begun = kernel.connect(socket.fd, to).map_err(errno);
        Ok((socket, begun))
    }

    pub(crate) fn id(&self) -> SimId {
        SimId { world: self.world, fd: self.fd }
    }

    fn with<T>(&self, call: impl FnOnce(&Kernel, Fd) -> io::Result<T>) -> Result<T, Errno> {
        let world = World::find(self.world).ok_or(Errno::BADF)?;
        call(world.kernel(), self.fd).map_err(errno)
    }

    pub(crate) fn recv(&self, room: &mut [u8]) -> Result<usize, Errno> {
        self.with(|kernel, fd| kernel.recv(fd, room))
    }

    pub(crate) fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.with(|kernel, fd| kernel.send_vectored(fd, slices))
    }

    pub(crate) fn accept(&self) -> Result<(Self, SimAddr), Errno> {
        let (fd, address) = self.with(|kernel, fd| kernel.accept(fd))?;
        Ok((Self { world: self.world, fd, is_lent: false }, address))
    }

    pub(crate) fn shutdown_write(&self) -> Result<(), Errno> {
        self.with(|kernel, fd| kernel.shutdown(fd, Shutdown::Write))
    }

    pub(crate) fn take_error(&self) -> Result<(), Errno> {
        match self.with(|kernel, fd| kernel.take_error(fd)) {
            Ok(Some(error)) => Err(errno(error)),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.with(|kernel, fd| kernel.poll(fd)).is_ok_and(|ready| ready & mask::OUT != 0)
    }

    pub(crate) fn has_input(&self) -> bool {
        self.with(|kernel, fd| kernel.unread(fd)).is_ok_and(|bytes| bytes > 0)
    }

    pub(crate) fn set_reuse_port(&self) -> Result<(), Errno> {
        self.with(|kernel, fd| kernel.set_reuse_port(fd, true))
    }

    pub(crate) fn reset_at_close(&self) {
        let _ = self.with(|kernel, fd| kernel.set_reset_on_close(fd, true));
    }

    pub(crate) fn local_addr(&self) -> Result<SimAddr, Errno> {
        self.with(|kernel, fd| kernel.local_addr(fd))
    }

    pub(crate) fn peer_addr(&self) -> Result<SimAddr, Errno> {
        self.with(|kernel, fd| kernel.peer_addr(fd))
    }
}

impl Drop for SimObject {
    fn drop(&mut self) {
        if !self.is_lent {
            let _ = self.with(|kernel, fd| kernel.close(fd));
        }
    }
}

/// The eventfd of a latch whose owner is a handler.
impl SimBell for SimObject {
    /// Without effect on another thread, as every call.
    fn ring(&self) {
        // A write that does not block is not interrupted, but for the fault.
        while self.with(|kernel, fd| kernel.write(fd, &1u64.to_ne_bytes())) == Err(Errno::INTR) {}
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A simulated descriptor: an eventfd, an end of a pipe, a datagram socket, a timerfd or a
/// signalfd. [`Sim`](crate::sim::Sim) makes it.
///
/// A simulated reactor takes it wherever a reactor takes a descriptor:
/// `interest().read().with_fd(..)`. Its clones are one object, which the last of them closes. No
/// call blocks.
#[derive(Clone, Debug)]
pub struct SimFd(Rc<SimObject>);

impl SimFd {
    pub(crate) fn new(world: &World, fd: Fd) -> Self {
        Self(Rc::new(SimObject::new(world, fd)))
    }

    /// Its name, for [`Subscriber::sim_id`](crate::Subscriber).
    #[doc(hidden)]
    #[must_use]
    pub fn id(&self) -> SimId {
        self.0.id()
    }

    /// Makes a call of the simulated kernel with the object, for calls that are not methods here.
    ///
    /// # Errors
    /// That of the call. `EBADF` on another thread, and once the simulation is gone.
    pub fn call<T>(&self, call: impl FnOnce(&Kernel, Fd) -> io::Result<T>) -> io::Result<T> {
        Ok(self.0.with(call)?)
    }

    pub(crate) fn try_read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        self.0.with(|kernel, fd| kernel.read(fd, room))
    }

    /// Reads as read(2) does: 8 bytes of an eventfd or timerfd, 128 bytes for each signal.
    ///
    /// # Errors
    /// Those of read(2), among them `WouldBlock`, and the faults of the simulation.
    pub fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        Ok(self.try_read(room)?)
    }

    /// Writes as write(2) does.
    ///
    /// # Errors
    /// Those of write(2), among them `WouldBlock`, and the faults of the simulation.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.with(|kernel, fd| kernel.write(fd, bytes))?)
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        Ok(self.0.with(|kernel, fd| kernel.send_to(fd, bytes, &SimAddr::Inet(to)))?)
    }

    /// Receives a datagram and the address of its sender.
    ///
    /// # Errors
    /// Those of recvfrom(2), among them `WouldBlock`.
    pub fn recv_from(&self, room: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        match self.0.with(|kernel, fd| kernel.recv_from(fd, room))? {
            (count, SimAddr::Inet(from)) => Ok((count, from)),
            (_, SimAddr::Unix(_)) => Err(Errno::AFNOSUPPORT.into()),
        }
    }

    /// The address of a datagram socket.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self.0.local_addr()? {
            SimAddr::Inet(address) => Ok(address),
            SimAddr::Unix(_) => Err(Errno::AFNOSUPPORT.into()),
        }
    }
}

impl AsFd for SimFd {
    /// For the interfaces of the reactor, which ask for the simulated descriptor instead.
    ///
    /// # Panics
    /// Always: it has no descriptor of the kernel.
    fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("a simulated descriptor has no descriptor of the kernel")
    }
}

/// The number of an error of the simulation.
pub(crate) fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
