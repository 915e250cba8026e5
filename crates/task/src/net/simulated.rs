//! How a simulated executor makes its sockets.

use std::{io, net::SocketAddr};

use rustix::io::Errno;
use windlass::sim::{Fd, Host, Kernel, SimAddr, SocketKind};

use crate::{io::Socket, simulation::host};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// A socket of the running executor, if that is simulated, which starts to connect. The result of
/// the call stands beside it.
pub(crate) fn connect<S>(
    kind: SocketKind,
    to: SimAddr,
) -> io::Result<Option<(Socket<S>, rustix::io::Result<()>)>> {
    let Some(host) = host() else { return Ok(None) };
    let kernel = host.kernel();
    let fd = kernel.socket(host.id(), kind)?;
    let socket = host.adopt(fd);
    let begun = kernel.connect(fd, &to).map_err(errno);
    // connect(2): it goes on.
    let begun = if begun == Err(Errno::INTR) { Err(Errno::INPROGRESS) } else { begun };
    Ok(Some((Socket::Simulated(socket), begun)))
}

/// A listener of the running executor, if that is simulated.
pub(crate) fn listen<S>(kind: SocketKind, address: SimAddr) -> Result<Option<Socket<S>>, Errno> {
    let bind = |host: &Host| {
        let kernel = host.kernel();
        let fd = kernel.socket(host.id(), kind)?;
        let socket = host.adopt(fd);
        kernel.bind(fd, &address)?;
        kernel.listen(fd, BACKLOG)?;
        Ok(Socket::Simulated(socket))
    };
    host().map(|host| bind(&host)).transpose().map_err(errno)
}

/// A datagram socket of the running executor, if that is simulated, at the first address that is
/// free.
pub(crate) fn datagrams<S>(addresses: &[SocketAddr]) -> io::Result<Option<Socket<S>>> {
    let Some(host) = host() else { return Ok(None) };
    let kernel = host.kernel();
    let fd = kernel.socket(host.id(), SocketKind::Udp)?;
    let socket = host.adopt(fd);
    let mut outcome = Err(Errno::INVAL.into());
    for address in addresses {
        outcome = kernel.bind(fd, &SimAddr::Inet(*address));
        if outcome.is_ok() {
            break;
        }
    }
    outcome.map(|()| Some(Socket::Simulated(socket)))
}

/// Two connected Unix streams of the running executor, if that is simulated.
pub(crate) fn socketpair<S>() -> io::Result<Option<(Socket<S>, Socket<S>)>> {
    let Some(host) = host() else { return Ok(None) };
    let (first, second) = host.kernel().socketpair(host.id())?;
    let own = |fd| Socket::Simulated(host.adopt(fd));
    Ok(Some((own(first), own(second))))
}

/// Becomes the owner of an accepted connection.
pub(crate) fn adopt<S>(kernel: &Kernel, fd: Fd) -> io::Result<Socket<S>> {
    match host() {
        Some(host) => Ok(Socket::Simulated(host.adopt(fd))),
        None => {
            // Accepted outside of the executor, which alone knows the simulation.
            kernel.close(fd)?;
            Err(crate::fd::source::no_executor())
        }
    }
}

/// An address of the internet.
pub(crate) fn inet(address: SimAddr) -> io::Result<SocketAddr> {
    address.inet().ok_or_else(|| Errno::AFNOSUPPORT.into())
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
