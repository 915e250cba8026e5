//! Listening sockets that the service manager has opened for this process (socket activation,
//! sd_listen_fds(3)).

#![allow(
    unsafe_code,
    reason = "descriptors that come with the process are numbers, and one call must take \
              them over"
)]

use core::fmt;
use std::{
    env, io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    process,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
    net::sockopt::socket_acceptconn,
};

/// The first descriptor that a service manager passes, `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;

/// A larger count is taken for a mistake in the environment.
const INHERITED_MAX: usize = 1024;

/// A socket passed to this process by the service manager.
///
/// ```
/// use std::io;
/// use windlass::stream::{Inherited, ListenOptions, Listener};
///
/// fn listeners(sockets: Vec<Inherited>) -> io::Result<Vec<(String, Listener)>> {
///     sockets
///         .into_iter()
///         .map(|inherited| Ok((inherited.name, ListenOptions::new().from_fd(inherited.socket)?)))
///         .collect()
/// }
/// # fn main() -> io::Result<()> {
/// # let socket = std::net::TcpListener::bind("127.0.0.1:0")?.into();
/// # assert_eq!(listeners(vec![Inherited { socket, name: "http".into() }])?[0].0, "http");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Inherited {
    /// The listening socket. It is non-blocking and close-on-exec.
    pub socket: OwnedFd,
    /// Its name in the service manager's configuration (`FileDescriptorName=`), or `unknown`.
    pub name: String,
}

/// Why inherited sockets could not be taken over. None of them was taken.
///
/// ```
/// use windlass::stream::InheritedError;
///
/// let error = InheritedError::NotOpen(5);
/// assert_eq!(error.to_string(), "descriptor 5 of LISTEN_FDS is not open");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum InheritedError {
    /// `LISTEN_FDS` is not a number, or is more than 1024.
    BadCount,
    /// The descriptor of this number is not open.
    NotOpen(RawFd),
    /// The descriptor of this number has `FD_CLOEXEC` set. Such a descriptor cannot have come
    /// through execve(2): this process opened it.
    CloseOnExec(RawFd),
    /// The descriptor of this number is not a listening socket.
    NotListening(RawFd),
}

impl fmt::Display for InheritedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadCount => f.write_str("LISTEN_FDS is not a number from 0 to 1024"),
            Self::NotOpen(number) => write!(f, "descriptor {number} of LISTEN_FDS is not open"),
            Self::CloseOnExec(number) => write!(
                f,
                "descriptor {number} of LISTEN_FDS has FD_CLOEXEC set, so this process has \
                 opened it; \
                 take inherited sockets first thing in main"
            ),
            Self::NotListening(number) => {
                write!(f, "descriptor {number} of LISTEN_FDS is no listening socket")
            }
        }
    }
}

impl std::error::Error for InheritedError {}

impl From<InheritedError> for io::Error {
    fn from(error: InheritedError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Takes over the listening sockets that the service manager has passed (`LISTEN_PID`,
/// `LISTEN_FDS`, `LISTEN_FDNAMES`).
///
/// The sockets are returned once. Later calls return none, nor does a call in a process that is not
/// the one named by `LISTEN_PID`. The variables are not changed; child processes ignore them
/// because of `LISTEN_PID`.
///
/// ```no_run
/// fn main() -> std::io::Result<()> {
///     // SAFETY: this is the first statement of `main`. No descriptor was opened and no thread was
///     // started before.
///     let inherited = unsafe { windlass::stream::inherited_sockets() }?;
///     println!("{} sockets from the service manager", inherited.len());
///     Ok(())
/// }
/// ```
///
/// # Safety
/// The descriptors from 3 on, as many as `LISTEN_FDS` says, must have no owner in this process:
/// each becomes an [`OwnedFd`]. The variables do not prove that, since safe code can set them
/// before an `exec`. Call this first in `main`, before anything opens a descriptor or starts a
/// thread. Code that runs before `main` must not have used these numbers either.
///
/// # Errors
/// No socket is taken over if one of them is rejected.
///
/// - [`BadCount`](InheritedError::BadCount): `LISTEN_FDS` is not a number, or is more than 1024.
/// - [`NotOpen`](InheritedError::NotOpen): a descriptor is not open.
/// - [`CloseOnExec`](InheritedError::CloseOnExec): a descriptor has `FD_CLOEXEC` set, so this
///   process opened it.
/// - [`NotListening`](InheritedError::NotListening): a descriptor is not a listening socket.
#[doc(alias("sd_listen_fds", "LISTEN_FDS"))]
pub unsafe fn inherited_sockets() -> Result<Vec<Inherited>, InheritedError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| env::var(name).ok();
    let is_meant = variable("LISTEN_PID").and_then(|pid| pid.parse().ok()) == Some(process::id());
    if !is_meant || TAKEN.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let count = count(variable("LISTEN_FDS").as_deref())?;
    let last = FIRST + RawFd::try_from(count).map_err(|_| InheritedError::BadCount)?;
    for number in FIRST..last {
        // SAFETY: The number is not -1. If it is closed, the kernel reports that, and `check` does
        // nothing else with it.
        check(unsafe { BorrowedFd::borrow_raw(number) })?;
    }
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let sockets = (FIRST..last).map(|number| {
        // SAFETY: `check` has verified that it is open. The caller guarantees that it has no other
        // owner. It is taken only once, because `TAKEN` was not set.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        prepare(&socket);
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or("unknown");
        Inherited { socket, name: name.to_owned() }
    });
    Ok(sockets.collect())
}

/// Checks that the service manager may have passed this descriptor.
fn check(socket: BorrowedFd<'_>) -> Result<(), InheritedError> {
    let number = socket.as_raw_fd();
    let flags = fcntl_getfd(socket).map_err(|_| InheritedError::NotOpen(number))?;
    if flags.contains(FdFlags::CLOEXEC) {
        Err(InheritedError::CloseOnExec(number))
    } else if !socket_acceptconn(socket).unwrap_or(false) {
        Err(InheritedError::NotListening(number))
    } else {
        Ok(())
    }
}

fn count(value: Option<&str>) -> Result<usize, InheritedError> {
    let count = value.unwrap_or("0").parse().map_err(|_| InheritedError::BadCount)?;
    if count <= INHERITED_MAX { Ok(count) } else { Err(InheritedError::BadCount) }
}

/// Neither call fails on an open descriptor with these arguments (fcntl(2)).
fn prepare(socket: &OwnedFd) {
    let _ = fcntl_setfd(socket.as_fd(), FdFlags::CLOEXEC);
    if let Ok(flags) = fcntl_getfl(socket.as_fd()) {
        let _ = fcntl_setfl(socket.as_fd(), flags | OFlags::NONBLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count(None).unwrap(), 0);
        assert_eq!(count(Some("2")).unwrap(), 2);
        for nonsense in ["", "-1", "two", "1025", "99999999999999999999"] {
            assert!(count(Some(nonsense)).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn without_the_variables_there_is_nothing() {
        // SAFETY: no variable means this process, so no descriptor is taken.
        assert!(unsafe { inherited_sockets() }.unwrap().is_empty());
    }
}
