//! The listening sockets: TCP addresses, a Unix socket, sockets from the service manager.

use std::{
    fs, io,
    io::ErrorKind,
    net::SocketAddr,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use windlass::{
    Backend,
    stream::{Inherited, ListenOptions, Listener},
};

use super::{
    admin::AdminPlace,
    args::{Mode, ServeArgs},
};

/// Default address.
const ADDRESS_DEFAULT: &str = "127.0.0.1:9001";

/// How long a server on io_uring retries if its address is in use. When such a server is killed,
/// the kernel releases its ring 10 to 20 ms after the process has ended. Until then the ring keeps
/// the listening socket open.
const ADDRESS_RETRY_MAX: Duration = Duration::from_secs(1);
const ADDRESS_RETRY_STEP: Duration = Duration::from_millis(10);

/// The listening sockets of all workers. The server takes them out, so that they are closed when it
/// stops listening.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// The scheme in the addresses.
    scheme: &'static str,
    workers: usize,
    /// How long to retry if an address is in use.
    retry_max: Duration,
    /// One group for each worker, or one for all.
    groups: Vec<Vec<OwnedFd>>,
    /// The addresses, in a form for people.
    pub(crate) addresses: Vec<String>,
    /// The file of the Unix socket; it is removed when the server ends.
    file: Option<SocketFile>,
}

/// The file of a Unix socket, which the server creates and removes.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Identifies the file on its device: while this server drains, its successor may replace the
    /// file.
    identity: Identity,
}

impl SocketFile {
    fn made_at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            // The file may have been removed just now.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device, inode number, and creation time if the file system has it: inode numbers are soon
/// reused.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> io::Result<Identity> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino(), file.created().ok()))
}

impl Sockets {
    /// Opens the requested sockets. Sockets from the service manager come first. If nothing was
    /// requested, the default address is used.
    pub(crate) fn open(args: &ServeArgs, inherited: Vec<Inherited>) -> anyhow::Result<Self> {
        let scheme = match (args.mode, args.tls.is_on()) {
            (Mode::Raw, false) => "tcp",
            (Mode::Raw, true) => "tls",
            (_, false) => "http",
            (_, true) => "https",
        };
        let retry_max =
            if args.backend == Backend::Uring { ADDRESS_RETRY_MAX } else { Duration::ZERO };
        let sockets =
            Self { scheme, workers: usize::from(args.workers), retry_max, ..Self::default() };
        sockets.open_at(inherited, args.listen, args.unix.as_deref())
    }

    /// Opens the socket of the admin listener.
    pub(crate) fn open_admin(place: &AdminPlace, backend: Backend) -> anyhow::Result<Self> {
        let retry_max = if backend == Backend::Uring { ADDRESS_RETRY_MAX } else { Duration::ZERO };
        let sockets = Self { scheme: "http", workers: 1, retry_max, ..Self::default() };
        match place {
            AdminPlace::Tcp(address) => sockets.open_at(Vec::new(), Some(*address), None),
            AdminPlace::Unix(path) => sockets.open_at(Vec::new(), None, Some(path)),
        }
    }

    fn open_at(
        self,
        inherited: Vec<Inherited>,
        listen: Option<SocketAddr>,
        unix: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut sockets = self;
        let needs_default = inherited.is_empty() && unix.is_none();
        for inherited in inherited {
            let listener = ListenOptions::new().from_fd(inherited.socket);
            let listener = listener.context("cannot listen on the service manager's socket")?;
            sockets
                .take(vec![listener])
                .context("cannot listen on the service manager's socket")?;
        }
        if let Some(path) = unix {
            sockets.listen_at(path)?;
        }
        let default = || ADDRESS_DEFAULT.parse().expect("the default is an address");
        if let Some(address) = listen.or_else(|| needs_default.then(default)) {
            sockets.listen_on(address)?;
        }
        Ok(sockets)
    }

    /// Opens a socket for each worker: the kernel distributes the connections among them.
    fn listen_on(&mut self, address: SocketAddr) -> io::Result<()> {
        let group =
            self.retry_while_in_use(|| ListenOptions::new().tcp_group(address, self.workers))?;
        self.take(group)
    }

    /// Creates the socket file. A file left by a server that no longer listens is replaced.
    fn listen_at(&mut self, path: &Path) -> io::Result<()> {
        let options = ListenOptions::new();
        let listener = self.retry_while_in_use(|| match options.unix(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path).map_err(|_| error)?;
                options.unix(path)
            }
            listener => listener,
        })?;
        self.file = Some(SocketFile::made_at(path)?);
        self.take(vec![listener])
    }

    /// Tries to listen, and retries while the address is in use, for at most `retry_max`.
    fn retry_while_in_use<T>(&self, mut listen: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let end = Instant::now() + self.retry_max;
        loop {
            match listen() {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                    // sleep: no event tells when the kernel has released the address.
                    thread::sleep(ADDRESS_RETRY_STEP);
                }
                outcome => return outcome,
            }
        }
    }

    fn take(&mut self, group: Vec<Listener>) -> io::Result<()> {
        let address = group[0].local_addr()?;
        self.addresses.push(match (address.socket_addr(), self.scheme) {
            (Some(address), scheme @ ("http" | "https")) => format!("{scheme}://{address}/"),
            (Some(address), scheme) => format!("{scheme}://{address}"),
            (None, _) => address.to_string(),
        });
        let sockets = group.iter().map(|listener| listener.as_fd().try_clone_to_owned());
        self.groups.push(sockets.collect::<io::Result<_>>()?);
        Ok(())
    }

    /// Takes the sockets of each worker out. If there is one for all, the first worker to accept
    /// gets the connection.
    pub(crate) fn take_per_worker(&mut self) -> io::Result<Vec<Vec<OwnedFd>>> {
        let groups = std::mem::take(&mut self.groups);
        let of = |worker: usize| {
            groups.iter().map(move |group| group[worker % group.len()].try_clone()).collect()
        };
        (0..self.workers).map(of).collect()
    }
}

/// Creates a non-blocking Unix socket.
fn stream_socket() -> Result<OwnedFd, Errno> {
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
    use super::*;
    use std::os::unix::net::UnixListener;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        folder
    }

    fn of(workers: usize) -> Sockets {
        Sockets { scheme: "http", workers, ..Sockets::default() }
    }

    #[test]
    fn each_worker_has_a_listener_of_every_place() {
        let folder = folder("places");
        let path = folder.join("socket");
        let any = "127.0.0.1:0".parse().ok();
        let mut sockets = of(3).open_at(Vec::new(), any, Some(&path)).expect("nothing is taken");
        let of_each = sockets.take_per_worker().expect("there are descriptors");
        assert_eq!(of_each.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2]);
        assert_eq!(sockets.addresses[0], format!("unix:{}", path.display()));
        assert!(
            sockets.addresses[1].starts_with("http://127.0.0.1:")
                && sockets.addresses[1].ends_with('/')
        );
        drop(sockets);
        assert!(!path.exists(), "the file goes with the server");
        fs::remove_dir(folder).expect("it is empty");
    }

    #[test]
    fn what_a_dead_server_has_left_is_replaced_and_a_living_one_is_not() {
        let folder = folder("abandoned");
        let path = folder.join("socket");
        drop(UnixListener::bind(&path).expect("nobody is there"));
        let open = || of(1).open_at(Vec::new(), None, Some(&path));
        let first = open().expect("the old file is replaced");
        let error = open().expect_err("somebody listens");
        assert!(format!("{error:#}").contains("address already in use"), "{error:#}");
        assert!(path.exists(), "who fails removes nothing of another's");
        drop(first);
        fs::write(&path, "no socket").expect("it can be written");
        open().expect_err("another's file is not removed");
        assert!(path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    /// A draining server listens no more, and its successor takes its address. The file then
    /// belongs to the successor.
    #[test]
    fn a_server_that_ends_leaves_its_successors_file() {
        let folder = folder("successor");
        let path = folder.join("socket");
        let open = || of(1).open_at(Vec::new(), None, Some(&path)).expect("nobody listens");
        let mut first = open();
        drop(first.take_per_worker().expect("there are descriptors"));
        let second = open();
        drop(first);
        assert!(path.exists(), "it is the second one's");
        drop(second);
        assert!(!path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    /// The check for a listener connects. A blocking connect would wait while the listener does not
    /// accept.
    #[test]
    fn a_living_server_that_does_not_accept_is_not_waited_for() {
        let folder = folder("busy");
        let path = folder.join("socket");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        let living = stream_socket().expect("a socket");
        rustix::net::bind(&living, &address).expect("nobody is there");
        rustix::net::listen(&living, 0).expect("it is bound");
        let mut clients = Vec::new();
        loop {
            let client = stream_socket().expect("a socket");
            match rustix::net::connect(&client, &address) {
                Ok(()) => clients.push(client),
                Err(errno) => break assert_eq!(errno, Errno::AGAIN),
            }
        }
        let error = of(1).open_at(Vec::new(), None, Some(&path)).expect_err("somebody listens");
        assert!(format!("{error:#}").contains("address already in use"), "{error:#}");
        assert!(path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }
}
