//! Addresses of Unix sockets, for the calls of the kernel.

use std::{
    io,
    os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr},
};

use rustix::net::SocketAddrUnix;

pub(super) fn to_kernel(address: &SocketAddr) -> io::Result<SocketAddrUnix> {
    if let Some(path) = address.as_pathname() {
        return Ok(SocketAddrUnix::new(path)?);
    }
    if let Some(name) = address.as_abstract_name() {
        return Ok(SocketAddrUnix::new_abstract_name(name)?);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the address of the Unix socket has no name"))
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
