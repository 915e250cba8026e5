//! Addresses of Unix sockets, for the calls of the kernel.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
};

use rustix::net::SocketAddrUnix;
#[cfg(feature = "sim")]
use windlass::sim::SimAddr;

use crate::io::{Socket, either};

pub(super) fn to_kernel(address: &SocketAddr) -> io::Result<SocketAddrUnix> {
    if let Some(path) = address.as_pathname() {
        return Ok(SocketAddrUnix::new(path)?);
    }
    if let Some(name) = address.as_abstract_name() {
        return Ok(SocketAddrUnix::new_abstract_name(name)?);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the address of the Unix socket has no name"))
}

/// The address of a socket's peer.
pub(super) fn peer_of(socket: &Socket<UnixStream>) -> io::Result<SocketAddr> {
    either!(socket, |socket| socket.peer_addr(), |kernel, fd| {
        from_simulation(&kernel.peer_addr(fd)?)
    })
}

/// In a simulation, an abstract name is a path that begins with a zero.
#[cfg(feature = "sim")]
pub(super) fn to_simulation(address: &SocketAddr) -> rustix::io::Result<SimAddr> {
    let text = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.to_str().map(Into::into),
        (None, Some(name)) => core::str::from_utf8(name).ok().map(|name| format!("\0{name}")),
        (None, None) => None,
    };
    Ok(SimAddr::Unix(Some(text.ok_or(rustix::io::Errno::INVAL)?.into())))
}

/// See [`to_simulation`].
#[cfg(feature = "sim")]
pub(super) fn from_simulation(address: &SimAddr) -> io::Result<SocketAddr> {
    let SimAddr::Unix(path) = address else { return Err(io::ErrorKind::InvalidData.into()) };
    let path = path.as_deref().unwrap_or("");
    match path.strip_prefix('\0') {
        Some(name) => SocketAddr::from_abstract_name(name),
        // Unnamed, if it is empty.
        None => SocketAddr::from_pathname(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no Unix sockets")]
    fn paths_and_abstract_names_are_converted() {
        let path = SocketAddr::from_pathname("/tmp/a socket").unwrap();
        assert_eq!(to_kernel(&path).unwrap().path_bytes(), Some(&b"/tmp/a socket"[..]));
        let name = SocketAddr::from_abstract_name(b"a name\0with a zero").unwrap();
        let name = to_kernel(&name).unwrap();
        assert_eq!(name.abstract_name(), Some(&b"a name\0with a zero"[..]));
        let unnamed = std::os::unix::net::UnixDatagram::unbound().unwrap().local_addr().unwrap();
        assert_eq!(to_kernel(&unnamed).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
