//! The files of Unix sockets.

use std::{
    cell::Cell,
    fs, io,
    io::ErrorKind,
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    str::FromStr,
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

/// The permissions of the file of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnixMode(u32);

impl FromStr for UnixMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or("it is no octal mode from 000 to 777, such as 660")
    }
}

/// Listens at a path with these permissions, whatever the umask is. Nobody can connect before the
/// file has them.
pub(crate) fn listen_with_mode(path: &Path, mode: UnixMode) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listens = fs::set_permissions(path, fs::Permissions::from_mode(mode.0))
        .and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?));
    if let Err(error) = listens {
        // The file was made just now.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// The length of the backlog, which the kernel caps at its own limit.
const BACKLOG: i32 = 4096;

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

#[cfg(test)]
mod tests {
    use super::UnixMode;

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(
            ["600", "0660", "777"].map(str::parse),
            [0o600, 0o660, 0o777].map(UnixMode).map(Ok)
        );
        for nonsense in ["", "7", "66", "1777", "678", "0o600", "+600", "rw-", "00600"] {
            assert!(nonsense.parse::<UnixMode>().is_err(), "{nonsense}");
        }
    }
}
