//! The files of Unix sockets.

use std::{
    cell::Cell,
    fs, io,
    io::ErrorKind,
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

/// The file of a Unix socket. It is removed in the end, unless it is another server's.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The name of the socket, for a hand-over.
    pub(crate) name: String,
    is_own: Cell<bool>,
    /// Identifies the file on its device: while this server drains, its successor may replace the
    /// file.
    identity: Identity,
}

impl SocketFile {
    /// A file that this server has made.
    pub(crate) fn made_at(path: &Path, name: &str) -> io::Result<Self> {
        let (path, identity) = (path.to_owned(), identity(path)?);
        Ok(Self { path, name: name.to_owned(), is_own: Cell::new(true), identity })
    }

    /// A file that is another server's still.
    pub(crate) fn passed(path: &Path, name: &str) -> io::Result<Self> {
        let file = Self::made_at(path, name)?;
        file.set_own(false);
        Ok(file)
    }

    pub(crate) fn set_own(&self, is_own: bool) {
        self.is_own.set(is_own);
    }
}

impl SocketFile {
    /// Removes the file, if it is still this server's.
    pub(crate) fn remove(&self) {
        if self.is_own.get() && identity(&self.path).is_ok_and(|there| there == self.identity) {
            // The file may have been removed just now.
            let _ = fs::remove_file(&self.path);
        }
        self.set_own(false);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Device, inode number, and creation time if the file system has it: inode numbers are soon
/// reused.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> io::Result<Identity> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino(), file.created().ok()))
}

/// Listens at a path. A file left by a server that no longer listens is replaced.
pub(crate) fn replacing_abandoned<T, E>(
    path: &Path,
    listen: impl Fn() -> Result<T, E>,
    kind: impl Fn(&E) -> ErrorKind,
) -> Result<T, E> {
    match listen() {
        Err(error) if kind(&error) == ErrorKind::AddrInUse && is_abandoned(path) => {
            if fs::remove_file(path).is_err() {
                return Err(error);
            }
            listen()
        }
        outcome => outcome,
    }
}

/// Creates a non-blocking Unix socket.
pub(crate) fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Returns whether the path is a socket without a listener.
fn is_abandoned(path: &Path) -> bool {
    // The socket is non-blocking. If a listener does not accept and its backlog is full, connect(2)
    // returns `EAGAIN` instead of waiting.
    let connected = || rustix::net::connect(stream_socket()?, &SocketAddrUnix::new(path)?);
    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && connected() == Err(Errno::CONNREFUSED)
}
