//! Connections and listeners of the test itself. Their calls wait in virtual time, and the programs
//! of the simulation run meanwhile.

use core::fmt;
use std::{
    io::{self, IoSlice, Read, Write},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use windlass_sim::{ActorId, Fd, PollSet, SimAddr, mask};

use crate::{
    Errno,
    world::{Host, SimObject},
};

/// What the test waits with: an actor of its own.
pub(super) struct Waiter {
    host: Host,
    actor: ActorId,
    set: PollSet,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").finish_non_exhaustive()
    }
}

/// Takes the object out of the set again, also if a program panics.
struct Watched<'w> {
    set: &'w PollSet,
    fd: Fd,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        // An object that was closed is out already.
        let _ = self.set.delete(self.fd);
    }
}

impl Waiter {
    pub(super) fn new(host: &Host) -> Self {
        let kernel = host.world().kernel();
        let actor = kernel.actor(host.id(), "test");
        kernel.suspend(actor);
        let set = kernel.poll_set(actor);
        Self { host: host.clone(), actor, set }
    }

    /// Waits until the object is ready in one of these ways, or has failed.
    fn wait_for(&self, object: &SimObject, mask: u32) -> io::Result<()> {
        let fd = object.id().fd_in(self.host.world()).ok_or(Errno::BADF)?;
        self.set.add(fd, mask, 0)?;
        let _watched = Watched { set: &self.set, fd };
        Ok(self.host.world().wait(&self.host, self.actor, None)?)
    }

    pub(super) fn sleep(&self, span: Duration) -> io::Result<()> {
        let world = self.host.world();
        let until = world.after(span);
        while world.kernel().now_ns() < until {
            world.wait(&self.host, self.actor, Some(until))?;
        }
        Ok(())
    }

    /// Repeats a call that would block until it does not.
    fn repeat<T>(
        &self,
        object: &SimObject,
        mask: u32,
        mut call: impl FnMut(&SimObject) -> Result<T, Errno>,
    ) -> io::Result<T> {
        loop {
            match call(object) {
                Err(Errno::AGAIN) => self.wait_for(object, mask)?,
                Err(Errno::INTR) => {}
                outcome => return Ok(outcome?),
            }
        }
    }
}

/// The test's end of a simulated connection. It reads and writes as a blocking socket, in virtual
/// time. Dropping it closes the connection.
///
/// Only the test may use it: in a program of the simulation a call that must wait fails with
/// `EDEADLK`.
#[derive(Debug)]
pub struct SimStream {
    socket: SimObject,
    waiter: Rc<Waiter>,
}

impl SimStream {
    pub(super) fn connect(waiter: &Rc<Waiter>, to: &SimAddr) -> io::Result<Self> {
        let (socket, begun) = SimObject::connect(&waiter.host, to)?;
        match begun {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                while !socket.is_writable() {
                    waiter.wait_for(&socket, mask::OUT)?;
                }
                socket.take_error()?;
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self { socket, waiter: Rc::clone(waiter) })
    }

    /// Closes the writing half.
    ///
    /// # Errors
    /// Those of shutdown(2).
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(self.socket.shutdown_write()?)
    }

    /// Lets the end of the connection send a RST.
    pub fn reset_on_drop(&self) {
        self.socket.reset_at_close();
    }

    /// Reads what is there, without a wait.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is, and those of recv(2).
    pub fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        Ok(self.socket.recv(room)?)
    }

    /// Writes what the socket accepts, without a wait.
    ///
    /// # Errors
    /// `WouldBlock` if it is full, and those of send(2).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.socket.send_vectored(&[IoSlice::new(bytes)])?)
    }

    /// The address of this end.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        inet(self.socket.local_addr()?)
    }
}

impl Read for SimStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.waiter.repeat(&self.socket, mask::IN | mask::RDHUP, |socket| socket.recv(room))
    }
}

impl Write for SimStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = [IoSlice::new(bytes)];
        self.waiter.repeat(&self.socket, mask::OUT, |socket| socket.send_vectored(&bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listener of the test itself.
#[derive(Debug)]
pub struct SimListener {
    socket: SimObject,
    waiter: Rc<Waiter>,
}

impl SimListener {
    /// The backlog.
    const BACKLOG: i32 = 1024;

    pub(super) fn listen(waiter: &Rc<Waiter>, address: &SimAddr) -> io::Result<Self> {
        let socket = waiter.host.world().listen(address, Self::BACKLOG, false)?;
        Ok(Self { socket, waiter: Rc::clone(waiter) })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of accept(2), and `EDEADLK` if none will come.
    pub fn accept(&self) -> io::Result<SimStream> {
        let (socket, _) = self.waiter.repeat(&self.socket, mask::IN, SimObject::accept)?;
        Ok(SimStream { socket, waiter: Rc::clone(&self.waiter) })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        inet(self.socket.local_addr()?)
    }
}

fn inet(address: SimAddr) -> io::Result<SocketAddr> {
    match address {
        SimAddr::Inet(address) => Ok(address),
        SimAddr::Unix(_) => Err(Errno::AFNOSUPPORT.into()),
    }
}
