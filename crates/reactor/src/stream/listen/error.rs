//! Why a program cannot listen at an address.

use core::fmt;
use std::io;

use rustix::io::Errno;

use crate::stream::Address;

/// A program cannot listen at an address. Its text names the address and, where that is known, what
/// to do.
///
/// Functions that listen return it inside of an [`io::Error`] of the same
/// [`kind`](io::Error::kind). That has no `raw_os_error`; the kernel's number is found here:
///
/// ```
/// use std::io;
/// use windlass::{Errno, stream::{ListenError, Listener}};
///
/// # fn main() -> io::Result<()> {
/// let first = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
/// let address = first.local_addr()?;
/// let error = Listener::tcp(address.socket_addr().unwrap()).unwrap_err();
/// assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
/// let text = error.to_string();
/// assert!(text.starts_with(&format!("cannot listen on {address}: address already in use")));
///
/// let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ListenError>());
/// assert_eq!(inner.unwrap().errno, Errno::ADDRINUSE);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenError {
    /// The address that was asked for.
    pub address: Address,
    /// The error of socket(2), bind(2) or listen(2), or of the address itself.
    pub errno: Errno,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, errno } = self;
        write!(f, "cannot listen on {address}: ")?;
        f.write_str(match (address, *errno) {
            (Address::Ip(ip), Errno::ADDRINUSE) if ip.port() == 0 => {
                "no free port; all of net.ipv4.ip_local_port_range are in use"
            }
            (Address::Ip(_), Errno::ADDRINUSE) => {
                "address already in use; stop the program that uses it, or choose another port"
            }
            (Address::Unix(_), Errno::ADDRINUSE) => {
                "address already in use; remove the file if no program listens there"
            }
            (Address::Ip(_), Errno::ADDRNOTAVAIL) => {
                "address not available; no interface of this machine has it"
            }
            (Address::Ip(_), Errno::ACCESS) => {
                "permission denied; ports below net.ipv4.ip_unprivileged_port_start need \
                 CAP_NET_BIND_SERVICE"
            }
            (Address::Unix(_), Errno::ACCESS) => {
                "permission denied; its directory must be writable"
            }
            (Address::Unix(_), Errno::NOENT) => "its directory does not exist",
            (Address::Unix(_), Errno::NAMETOOLONG) => "the path is longer than 107 bytes",
            _ => return errno.fmt(f),
        })
    }
}

impl std::error::Error for ListenError {}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        Self::new(Self::from(error.errno).kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_address_and_what_to_do() {
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        let unix = Address::Unix(Some("/run/socket".into()));
        let too_many = Errno::MFILE.to_string();
        for (address, errno, hint) in [
            (ip("127.0.0.1:9001"), Errno::ADDRINUSE, "in use; stop the program that uses it"),
            (ip("127.0.0.1:0"), Errno::ADDRINUSE, "no free port"),
            (ip("[2001:db8::1]:80"), Errno::ADDRNOTAVAIL, "no interface of this machine has it"),
            (ip("0.0.0.0:80"), Errno::ACCESS, "CAP_NET_BIND_SERVICE"),
            (ip("0.0.0.0:80"), Errno::MFILE, &too_many),
            (unix.clone(), Errno::ADDRINUSE, "remove the file"),
            (unix.clone(), Errno::ACCESS, "its directory must be writable"),
            (unix.clone(), Errno::NOENT, "its directory does not exist"),
            (unix, Errno::NAMETOOLONG, "longer than 107 bytes"),
        ] {
            let text = format!("cannot listen on {address}: ");
            let error = io::Error::from(ListenError { address, errno });
            assert_eq!(error.kind(), io::Error::from(errno).kind());
            let error = error.to_string();
            assert!(error.starts_with(&text) && error.contains(hint), "{error}");
        }
    }
}
