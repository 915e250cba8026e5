//! Sockets between a virtual machine and its host (vsock(7)): addresses, and options of sockets.
//!
//! Streams have [`Listener::vsock`](crate::stream::Listener::vsock) and
//! [`Connector::vsock`](crate::stream::Connector::vsock).
//!
//! ```no_run
//! // Not run: many kernels lack vsock, or its loopback.
//! use windlass::{Reactor, stream::{Connector, Listener}, vsock::{self, VsockAddr}};
//! # use windlass::stream::{Input, Stream, StreamHandler};
//! # struct Echo;
//! # impl StreamHandler for Echo {
//! #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
//! #         let _ = stream.reply(input, ..);
//! #     }
//! # }
//!
//! # fn main() -> std::io::Result<()> {
//! let mut reactor = Reactor::new()?;
//! // On the host, for all its virtual machines.
//! let listener = Listener::vsock("any:1024".parse()?)?;
//! vsock::set_buffer_size(&listener, 1 << 20)?;
//! listener.with_handler(|_| Some(Echo)).register_into(&mut reactor)?;
//! // In a virtual machine.
//! let host = VsockAddr { cid: VsockAddr::CID_HOST, port: 1024 };
//! Connector::vsock(host).connect(Echo, &mut reactor)?;
//! # Ok(())
//! # }
//! ```
//!
//! # The protocol of this module
//!
//! 1. An address goes to the kernel as a `sockaddr_vm`, whose fields are numbers. Its layout is
//!    part of the kernel's interface (include/uapi/linux/vm_sockets.h).
//! 2. An option is one number of eight bytes, or two: a `timeval` of a 64-bit target.

#![allow(unsafe_code, reason = "the structures of addresses and options, which rustix lacks")]

use core::{fmt, str::FromStr};
use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
    time::Duration,
};

use rustix::net::{
    AddressFamily, SocketAddrAny,
    addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque},
};

use crate::error::{Errno, plain_error};

/// The address of a vsock socket: a context, which is a virtual machine or the host, and a port.
///
/// Its text is `CID:PORT`, such as `3:1024`. Either may be `any`.
///
/// ```
/// use windlass::vsock::VsockAddr;
///
/// let address: VsockAddr = "2:1024".parse().unwrap();
/// assert_eq!(address, VsockAddr { cid: VsockAddr::CID_HOST, port: 1024 });
/// assert_eq!("any:1024".parse(), Ok(VsockAddr { cid: VsockAddr::CID_ANY, port: 1024 }));
/// assert_eq!(address.to_string(), "2:1024");
/// ```
#[doc(alias = "sockaddr_vm")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VsockAddr {
    /// The context.
    pub cid: u32,
    /// The port. Those below 1024 need `CAP_NET_BIND_SERVICE`.
    pub port: u32,
}

impl VsockAddr {
    /// To listen: every context of this machine.
    #[doc(alias = "VMADDR_CID_ANY")]
    pub const CID_ANY: u32 = libc::VMADDR_CID_ANY;
    /// This machine, by the loopback (module `vsock_loopback` of the kernel).
    #[doc(alias = "VMADDR_CID_LOCAL")]
    pub const CID_LOCAL: u32 = libc::VMADDR_CID_LOCAL;
    /// The host, for a virtual machine.
    #[doc(alias = "VMADDR_CID_HOST")]
    pub const CID_HOST: u32 = libc::VMADDR_CID_HOST;
    /// To listen: a free port.
    #[doc(alias = "VMADDR_PORT_ANY")]
    pub const PORT_ANY: u32 = libc::VMADDR_PORT_ANY;
}

const ANY: &str = "any";

impl fmt::Display for VsockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cid {
            Self::CID_ANY => f.write_str(ANY),
            cid => cid.fmt(f),
        }?;
        match self.port {
            Self::PORT_ANY => write!(f, ":{ANY}"),
            port => write!(f, ":{port}"),
        }
    }
}

/// A text is no address of vsock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidVsockAddr;

plain_error!(
    InvalidVsockAddr,
    |_e| "an address of vsock is CID:PORT, two numbers or `any`",
    Err(io::ErrorKind::InvalidInput)
);

impl FromStr for VsockAddr {
    type Err = InvalidVsockAddr;

    fn from_str(text: &str) -> Result<Self, InvalidVsockAddr> {
        let (cid, port) = text.split_once(':').ok_or(InvalidVsockAddr)?;
        let number = |text: &str, any| match text {
            ANY => Ok(any),
            // `parse` also takes a sign.
            _ if !text.starts_with('+') => text.parse().map_err(|_| InvalidVsockAddr),
            _ => Err(InvalidVsockAddr),
        };
        Ok(Self { cid: number(cid, Self::CID_ANY)?, port: number(port, Self::PORT_ANY)? })
    }
}

const LEN: SocketAddrLen = size_of::<libc::sockaddr_vm>() as SocketAddrLen;

/// For bind(2), connect(2) and others of rustix.
// SAFETY: the closure gets the address and the length of a `sockaddr_vm` that lives until it has
// returned, and all of whose bytes are written (protocol 1).
unsafe impl SocketAddrArg for VsockAddr {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_vm {
            svm_family: libc::AF_VSOCK as libc::sa_family_t,
            svm_reserved1: 0,
            svm_port: self.port,
            svm_cid: self.cid,
            svm_zero: [0; 4],
        };
        f((&raw const address).cast(), LEN)
    }
}

impl TryFrom<SocketAddrAny> for VsockAddr {
    type Error = Errno;

    /// `EAFNOSUPPORT` if it is another kind of address.
    fn try_from(any: SocketAddrAny) -> Result<Self, Errno> {
        if any.address_family() != AddressFamily::VSOCK || any.addr_len() < LEN {
            return Err(Errno::AFNOSUPPORT);
        }
        // SAFETY: `addr_len` bytes are initialized, which are enough. Any bytes are values of its
        // fields, and the read needs no alignment.
        let address = unsafe { any.as_ptr().cast::<libc::sockaddr_vm>().read_unaligned() };
        Ok(Self { cid: address.svm_cid, port: address.svm_port })
    }
}

// include/uapi/linux/vm_sockets.h. Their level is `AF_VSOCK`.
const BUFFER_SIZE: i32 = 0;
const BUFFER_MAX_SIZE: i32 = 2;
const CONNECT_TIMEOUT: i32 = 6;

/// The size of the buffer of received bytes, which the peer may fill.
///
/// # Errors
/// Those of getsockopt(2): `ENOPROTOOPT` or `EOPNOTSUPP` if it is no vsock socket.
#[doc(alias = "SO_VM_SOCKETS_BUFFER_SIZE")]
pub fn buffer_size(socket: impl AsFd) -> io::Result<u64> {
    get(socket, BUFFER_SIZE).map(|[bytes]| bytes)
}

/// Sets the size of the buffer of received bytes, and raises its maximum if that is less. Without
/// it, the size is 256 KiB. Connections inherit it from a listening socket.
///
/// # Errors
/// Those of setsockopt(2): `ENOPROTOOPT` or `EOPNOTSUPP` if it is no vsock socket.
#[doc(alias = "SO_VM_SOCKETS_BUFFER_SIZE")]
pub fn set_buffer_size(socket: impl AsFd, bytes: u64) -> io::Result<()> {
    let [max] = get(&socket, BUFFER_MAX_SIZE)?;
    if max < bytes {
        set(&socket, BUFFER_MAX_SIZE, [bytes])?;
    }
    set(socket, BUFFER_SIZE, [bytes])
}

/// The time after which the kernel gives up to connect (`ETIMEDOUT`).
///
/// # Errors
/// Those of getsockopt(2): `ENOPROTOOPT` or `EOPNOTSUPP` if it is no vsock socket.
#[doc(alias = "SO_VM_SOCKETS_CONNECT_TIMEOUT")]
pub fn connect_timeout(socket: impl AsFd) -> io::Result<Duration> {
    let [seconds, micros] = get(socket, CONNECT_TIMEOUT)?;
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// Sets the time after which the kernel gives up to connect (`ETIMEDOUT`). Without it, that are two
/// seconds. Zero is that default. The kernel rounds it up to a tick. [`Connector::timeout`] does it
/// for the streams of a reactor.
///
/// [`Connector::timeout`]: crate::stream::Connector::timeout
///
/// # Errors
/// Those of setsockopt(2): `ENOPROTOOPT` or `EOPNOTSUPP` if it is no vsock socket, `ERANGE` if the
/// time is too long.
#[doc(alias = "SO_VM_SOCKETS_CONNECT_TIMEOUT")]
pub fn set_connect_timeout(socket: impl AsFd, longest: Duration) -> io::Result<()> {
    set(socket, CONNECT_TIMEOUT, [longest.as_secs(), longest.subsec_micros().into()])
}

fn get<const N: usize>(socket: impl AsFd, option: i32) -> io::Result<[u64; N]> {
    let mut value = [0; N];
    let mut len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, which has as many, and the length
    // to `len` (getsockopt(2)). Both live until the call returns. Any bytes are values of `u64`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::AF_VSOCK,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn set<const N: usize>(socket: impl AsFd, option: i32, value: [u64; N]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as `value` has, during the call (setsockopt(2)).
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::AF_VSOCK,
            option,
            value.as_ptr().cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_addresses_are_converted_both_ways() {
        for (text, cid, port) in [
            ("0:0", 0, 0),
            ("1:1024", VsockAddr::CID_LOCAL, 1024),
            ("2:4294967294", VsockAddr::CID_HOST, 4_294_967_294),
            ("any:9", VsockAddr::CID_ANY, 9),
            ("3:any", 3, VsockAddr::PORT_ANY),
        ] {
            let address = VsockAddr { cid, port };
            assert_eq!(text.parse(), Ok(address));
            assert_eq!(address.to_string(), text);
        }
        for text in
            ["", ":", "3", "3:", ":3", "+3:4", "3:+4", "-1:4", "3:4:5", "3:4294967296", "a:4"]
        {
            assert_eq!(text.parse::<VsockAddr>(), Err(InvalidVsockAddr), "{text:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "rustix has another backend there")]
    fn the_kernels_form_has_every_field() {
        let address = VsockAddr { cid: 0x0102_0304, port: 0x0506_0708 };
        assert_eq!(VsockAddr::try_from(address.as_any()), Ok(address));
        let ip = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
        assert_eq!(VsockAddr::try_from(ip.as_any()), Err(Errno::AFNOSUPPORT));
    }
}
