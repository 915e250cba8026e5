//! Where the server listens: TCP addresses, a Unix socket, sockets from the service manager.

use std::{
    fs, io,
    net::SocketAddr,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::FileTypeExt as _,
    },
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use windlass::stream::{ListenOptions, Listener, inherited_sockets};

/// Where to listen if nobody says.
const ADDRESS_DEFAULT: &str = "127.0.0.1:9001";

/// The sockets of all workers.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// What each worker listens on.
    pub(crate) workers: Vec<Vec<Listener>>,
    /// Where that is, for people.
    pub(crate) places: Vec<String>,
    /// The file of the Unix socket; it goes when the server does.
    file: Option<SocketFile>,
}

/// A Unix socket's file, which the server has made and removes.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = fs::remove_file(&self.0);
    }
}

impl Sockets {
    /// Opens what was asked for. Sockets from the service manager come first; without any of these it is the default address.
    pub(crate) fn open(
        listen: Option<SocketAddr>,
        unix: Option<&Path>,
        workers: usize,
        options: ListenOptions,
    ) -> anyhow::Result<Self> {
        let mut sockets = Self { workers: (0..workers).map(|_| Vec::new()).collect(), ..Self::default() };
        let inherited = inherited_sockets().context("cannot take over the service manager's sockets")?;
        let needs_default = inherited.is_empty() && unix.is_none();
        for inherited in inherited {
            sockets.share(inherited.socket, options).context("cannot listen on the service manager's socket")?;
        }
        if let Some(path) = unix {
            sockets.listen_at(path, options).with_context(|| format!("cannot listen on {}", path.display()))?;
        }
        let default = || ADDRESS_DEFAULT.parse().expect("the default is an address");
        if let Some(address) = listen.or_else(|| needs_default.then(default)) {
            sockets.listen_on(address, options).with_context(|| format!("cannot listen on {address}"))?;
        }
        Ok(sockets)
    }

    /// A socket of its own for each worker: the kernel spreads the connections over them.
    fn listen_on(&mut self, address: SocketAddr, options: ListenOptions) -> io::Result<()> {
        let group = options.tcp_group(address, self.workers.len())?;
        self.places.push(group[0].local_addr()?.to_string());
        for (worker, listener) in self.workers.iter_mut().zip(group) {
            worker.push(listener);
        }
        Ok(())
    }

    /// Makes the file. One that a server has left behind, and on which nobody listens, is replaced.
    fn listen_at(&mut self, path: &Path, options: ListenOptions) -> io::Result<()> {
        let listener = match options.unix(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path)?;
                options.unix(path)?
            }
            listener => listener?,
        };
        self.file = Some(SocketFile(path.to_owned()));
        self.share(listener.as_fd().try_clone_to_owned()?, options)
    }

    /// One socket for all workers: whoever comes first takes the connection.
    fn share(&mut self, socket: OwnedFd, options: ListenOptions) -> io::Result<()> {
        for worker in &mut self.workers {
            worker.push(options.from_fd(socket.try_clone()?)?);
        }
        self.places.push(options.from_fd(socket)?.local_addr()?.to_string());
        Ok(())
    }
}

/// A Unix socket that does not block.
fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Whether the path is a socket on which nobody listens.
fn is_abandoned(path: &Path) -> bool {
    // Without waiting: who listens and accepts nobody makes connect(2) say `EAGAIN` when his backlog is full.
    let connected = || rustix::net::connect(stream_socket()?, &SocketAddrUnix::new(path)?);
    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) && connected() == Err(Errno::CONNREFUSED)
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

    #[test]
    fn each_worker_has_a_listener_of_every_place() {
        let folder = folder("places");
        let path = folder.join("socket");
        let any = "127.0.0.1:0".parse().ok();
        let sockets = Sockets::open(any, Some(&path), 3, ListenOptions::new()).expect("nothing is taken");
        assert_eq!(sockets.workers.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2]);
        assert_eq!(sockets.places[0], format!("unix:{}", path.display()));
        assert!(sockets.places[1].starts_with("127.0.0.1:"));
        drop(sockets);
        assert!(!path.exists(), "the file goes with the server");
        fs::remove_dir(folder).expect("it is empty");
    }

    #[test]
    fn what_a_dead_server_has_left_is_replaced_and_a_living_one_is_not() {
        let folder = folder("abandoned");
        let path = folder.join("socket");
        drop(UnixListener::bind(&path).expect("nobody is there"));
        let open = || Sockets::open(None, Some(&path), 1, ListenOptions::new());
        let first = open().expect("the old file is replaced");
        let error = open().expect_err("somebody listens");
        assert!(format!("{error:#}").contains("Address already in use"), "{error:#}");
        assert!(path.exists(), "who fails removes nothing of another's");
        drop(first);
        fs::write(&path, "no socket").expect("it can be written");
        open().expect_err("another's file is not removed");
        assert!(path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    /// To ask whether somebody listens was to connect, and waited for as long as he accepted nobody.
    #[test]
    fn a_living_server_that_accepts_nobody_is_not_waited_for() {
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
        let error = Sockets::open(None, Some(&path), 1, ListenOptions::new()).expect_err("somebody listens");
        assert!(format!("{error:#}").contains("Address already in use"), "{error:#}");
        assert!(path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }
}
