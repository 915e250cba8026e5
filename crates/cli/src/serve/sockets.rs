//! The listening sockets: TCP addresses, a Unix socket, sockets from the service manager.

use std::{
    io,
    io::ErrorKind,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rustix::net::sockopt;
use windlass::{
    Backend,
    stream::{Inherited, ListenOptions, Listener},
};

use super::{
    admin::AdminPlace,
    args::{Mode, ServeArgs},
    hand_over::Passed,
    socket_file::{SocketFile, UnixMode, listen_with_mode, replacing_abandoned},
};

/// Default address.
const ADDRESS_DEFAULT: &str = "127.0.0.1:9001";

/// How long a server on io_uring retries if its address is in use. When such a server is killed,
/// the kernel releases its ring some time after the process has ended. Until then the ring keeps
/// the listening socket open.
const ADDRESS_RETRY_MAX: Duration = Duration::from_secs(1);
const ADDRESS_RETRY_STEP: Duration = Duration::from_millis(10);

/// The listening sockets of all workers. The server takes them out, so that they are closed when it
/// stops listening.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    mode: Mode,
    workers: usize,
    /// How long to retry if an address is in use.
    retry_max: Duration,
    groups: Vec<Group>,
    /// The addresses, in a form for people.
    pub(crate) addresses: Vec<String>,
    /// The files of Unix sockets, which are removed when the server ends.
    files: Vec<SocketFile>,
}

/// The sockets of one place: one for each worker, or one for all.
#[derive(Debug)]
struct Group {
    name: String,
    has_tls: bool,
    sockets: Vec<OwnedFd>,
}

impl Sockets {
    /// Checks the options of the listeners.
    pub(crate) fn check(args: &ServeArgs) -> anyhow::Result<()> {
        for place in &args.listen {
            ensure!(
                args.tls.is_on() || place.tls != Some(true),
                "--listen {place} needs a certificate: add --tls-cert and --tls-key, or \
                 --tls-self-signed"
            );
        }
        Ok(())
    }

    /// Opens the requested sockets, except those that another server has passed. Sockets from the
    /// service manager come first. If nothing was requested, the default address is used.
    pub(crate) fn open(
        args: &ServeArgs,
        inherited: Vec<Inherited>,
        passed: &mut Passed,
    ) -> anyhow::Result<Self> {
        Self::check(args)?;
        let workers = usize::from(args.workers);
        let mut sockets = Self::new(args.mode, workers, args.backend);
        let (unix, has_tls) = (args.unix.as_deref(), args.tls.is_on());
        let is_default = args.listen.is_empty() && unix.is_none() && inherited.is_empty();
        for (index, Inherited { socket, name }) in inherited.into_iter().enumerate() {
            let listener = ListenOptions::new().from_fd(socket);
            let taken = listener.and_then(|listener| {
                sockets.take(format!("{INHERITED}{index} {name}"), has_tls, vec![listener])
            });
            taken.context("cannot listen on the service manager's socket")?;
        }
        // Those that the service manager has passed to the other server.
        let mut has_passed = false;
        while let Some((name, group)) = passed.take_first(INHERITED) {
            has_passed = true;
            sockets.take_passed(name, has_tls, group, None)?;
        }
        if let Some(path) = unix {
            sockets.listen_at(path, has_tls, args.unix_mode, "", passed)?;
        }
        for place in &args.listen {
            let place_tls = place.tls.unwrap_or(has_tls);
            let addresses = place.resolve().with_context(|| format!("--listen {place}"))?;
            sockets.listen_on_all(&addresses, place_tls, passed)?;
        }
        if is_default && !has_passed {
            let address = ADDRESS_DEFAULT.parse().expect("the default is an address");
            sockets.listen_on(address, has_tls, "", passed)?;
        }
        Ok(sockets)
    }

    /// Opens the socket of the admin listener.
    pub(crate) fn open_admin(
        place: &AdminPlace,
        backend: Backend,
        passed: &mut Passed,
    ) -> anyhow::Result<Self> {
        let mut sockets = Self::new(Mode::Chat, 1, backend);
        match place {
            AdminPlace::Tcp(address) => sockets.listen_on(*address, false, ADMIN, passed)?,
            AdminPlace::Tls(address) => sockets.listen_on(*address, true, ADMIN, passed)?,
            AdminPlace::Unix(path) => sockets.listen_at(path, false, None, ADMIN, passed)?,
        }
        Ok(sockets)
    }

    fn new(mode: Mode, workers: usize, backend: Backend) -> Self {
        let may_be_ring = matches!(backend, Backend::Uring | Backend::UringOrEpoll);
        let retry_max = if may_be_ring { ADDRESS_RETRY_MAX } else { Duration::ZERO };
        Self { mode, workers, retry_max, ..Self::default() }
    }

    /// Listens at all addresses of a name. Those of a family that this machine does not have are
    /// left out, if there are others.
    fn listen_on_all(
        &mut self,
        addresses: &[SocketAddr],
        has_tls: bool,
        passed: &mut Passed,
    ) -> io::Result<()> {
        let mut failed = Err(io::Error::new(ErrorKind::NotFound, "the name has no address"));
        for address in addresses {
            match self.listen_on(*address, has_tls, "", passed) {
                Ok(()) if failed.is_err() => failed = Ok(()),
                Ok(()) => {}
                Err(error) if error.kind() != ErrorKind::AddrNotAvailable => return Err(error),
                Err(error) => failed = failed.map_err(|_| error),
            }
        }
        failed
    }

    /// Opens a socket for each worker: the kernel distributes the connections among them. `role`
    /// begins the name.
    fn listen_on(
        &mut self,
        address: SocketAddr,
        has_tls: bool,
        role: &str,
        passed: &mut Passed,
    ) -> io::Result<()> {
        let mut name = format!("{role}tcp {address}");
        if address.port() == 0 {
            // Another place may ask for any port of this address too.
            name.push_str(if has_tls { " TLS " } else { " plain " });
            let same = self.groups.iter().filter(|group| group.name.starts_with(&name));
            name = format!("{name}{}", same.count());
        }
        if let Some(group) = passed.take(&name) {
            return self.take_passed(name, has_tls, group, None);
        }
        let group =
            self.retry_while_in_use(|| ListenOptions::new().tcp_group(address, self.workers))?;
        self.take(name, has_tls, group)
    }

    /// Creates the socket file. A file left by a server that no longer listens is replaced.
    fn listen_at(
        &mut self,
        path: &Path,
        has_tls: bool,
        mode: Option<UnixMode>,
        role: &str,
        passed: &mut Passed,
    ) -> io::Result<()> {
        let name = format!("{role}unix {}", path.display());
        if let Some(group) = passed.take(&name) {
            let file = SocketFile::passed(path, &name)?;
            return self.take_passed(name, has_tls, group, Some(file));
        }
        let options = ListenOptions::new();
        let listener = self.retry_while_in_use(|| {
            let listen = || match mode {
                Some(mode) => options.from_fd(listen_with_mode(path, mode)?),
                None => options.unix(path),
            };
            replacing_abandoned(path, listen, |error| error.kind())
        })?;
        self.files.push(SocketFile::made_at(path, &name)?);
        self.take(name, has_tls, vec![listener])
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

    /// Takes the sockets that another server has passed. All of them are kept, because closing one
    /// of an `SO_REUSEPORT` group resets its backlog. Workers beyond their number get further ones.
    fn take_passed(
        &mut self,
        name: String,
        has_tls: bool,
        group: Vec<OwnedFd>,
        file: Option<SocketFile>,
    ) -> io::Result<()> {
        self.files.extend(file);
        let listeners = group.into_iter().map(|socket| ListenOptions::new().from_fd(socket));
        let mut listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let Some(first) = listeners.first() else { return Err(ErrorKind::InvalidData.into()) };
        let is_inherited = name.starts_with(INHERITED);
        if let (Some(address), false) = (first.local_addr()?.socket_addr(), is_inherited) {
            let shares = listeners.len() < self.workers;
            for listener in listeners.iter().filter(|_| shares) {
                sockopt::set_socket_reuseport(listener, true)?;
            }
            while listeners.len() < self.workers {
                listeners.push(ListenOptions::new().reuse_port(true).tcp(address)?);
            }
        }
        self.take(name, has_tls, listeners)
    }

    fn take(&mut self, name: String, has_tls: bool, group: Vec<Listener>) -> io::Result<()> {
        let scheme = match (self.mode, has_tls) {
            (Mode::Raw, false) => "tcp",
            (Mode::Raw, true) => "tls",
            (_, false) => "http",
            (_, true) => "https",
        };
        let address = group[0].local_addr()?;
        self.addresses.push(match (address.socket_addr(), scheme) {
            (Some(address), scheme @ ("http" | "https")) => format!("{scheme}://{address}/"),
            (Some(address), scheme) => format!("{scheme}://{address}"),
            (None, _) => address.to_string(),
        });
        let sockets = group.iter().map(|listener| listener.as_fd().try_clone_to_owned());
        self.groups.push(Group { name, has_tls, sockets: sockets.collect::<io::Result<_>>()? });
        Ok(())
    }

    /// Takes out the sockets of each worker, with or without TLS. If there is one for all, the
    /// first worker to accept gets the connection.
    pub(crate) fn take_per_worker(&mut self, has_tls: bool) -> io::Result<Vec<Vec<OwnedFd>>> {
        let groups = std::mem::take(&mut self.groups).into_iter();
        let (groups, others) = groups.partition::<Vec<_>, _>(|group| group.has_tls == has_tls);
        self.groups = others;
        let mut sets: Vec<Vec<OwnedFd>> = (0..self.workers).map(|_| Vec::new()).collect();
        for Group { sockets, .. } in groups {
            for worker in sockets.len()..self.workers {
                sets[worker].push(sockets[worker % sockets.len()].try_clone()?);
            }
            for (index, socket) in sockets.into_iter().enumerate() {
                sets[index % self.workers].push(socket);
            }
        }
        Ok(sets)
    }

    /// Returns copies of the sockets that were not taken out, with their names.
    pub(crate) fn copies(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let all = self.groups.iter().flat_map(|Group { name, sockets, .. }| {
            sockets
                .iter()
                .map(move |socket| -> io::Result<_> { Ok((name.clone(), socket.try_clone()?)) })
        });
        all.collect()
    }

    /// The files of sockets that another server has passed are this one's from now on.
    pub(crate) fn own_files(&self) {
        self.files.iter().for_each(|file| file.set_own(true));
    }

    /// The files of these sockets are another server's from now on.
    pub(crate) fn leave_files(&self, names: &[String]) {
        let left = self.files.iter().filter(|file| names.contains(&file.name));
        left.for_each(|file| file.set_own(false));
    }
}

/// The beginning of the names of the socket for `--admin`.
const ADMIN: &str = "admin ";

/// The beginning of the names of sockets from the service manager.
const INHERITED: &str = "inherited ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::socket_file::stream_socket;
    use clap::{Args as _, Command, FromArgMatches as _};
    use rustix::{
        io::Errno,
        net::{SocketAddrUnix, sockopt::socket_reuseport},
    };
    use std::{
        fs,
        os::unix::{fs::PermissionsExt as _, net::UnixListener},
        path::PathBuf,
    };

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        folder
    }

    fn args(arguments: &[&str]) -> ServeArgs {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let matches = command.get_matches_from([&["serve"], arguments].concat());
        ServeArgs::from_arg_matches(&matches).expect("they are valid")
    }

    fn open(arguments: &[&str]) -> anyhow::Result<Sockets> {
        Sockets::open(&args(arguments), Vec::new(), &mut Passed::default())
    }

    fn open_at(path: &Path) -> anyhow::Result<Sockets> {
        open(&["--unix", path.to_str().expect("it is text")])
    }

    fn lens(sets: &[Vec<OwnedFd>]) -> Vec<usize> {
        sets.iter().map(Vec::len).collect()
    }

    #[test]
    fn each_worker_has_a_listener_of_every_place() {
        let folder = folder("places");
        let path = folder.join("socket");
        let unix = path.to_str().expect("it is text");
        let places = ["--listen", "127.0.0.1:0", "--listen", "http://localhost:0"];
        let all = [&["--workers", "3", "--unix", unix, "--tls-self-signed"], &places[..]].concat();
        let mut sockets = open(&all).expect("nothing is taken");
        let [plain, tls] =
            [false, true].map(|tls| sockets.take_per_worker(tls).expect("there are"));
        assert_eq!(lens(&tls), [2, 2, 2], "the path, and the address without a scheme");
        assert!(lens(&plain).iter().all(|len| *len == lens(&plain)[0] && *len > 0), "{plain:?}");
        assert_eq!(sockets.addresses[0], format!("unix:{}", path.display()));
        let with = |scheme: &str, address: &str| {
            address.starts_with(&format!("{scheme}://")) && address.ends_with('/')
        };
        assert!(with("https", &sockets.addresses[1]) && with("http", &sockets.addresses[2]));
        drop(sockets);
        assert!(!path.exists(), "the file goes with the server");
        fs::remove_dir(folder).expect("it is empty");
    }

    #[test]
    fn a_socket_file_has_its_mode() {
        let folder = folder("mode");
        let path = folder.join("socket");
        for mode in ["600", "666", "0770"] {
            let unix = path.to_str().expect("it is text");
            let sockets = open(&["--unix", unix, "--unix-mode", mode]).expect("nobody listens");
            let bits = u32::from_str_radix(mode, 8).expect("it is octal");
            let metadata = fs::metadata(&path).expect("it is there");
            assert_eq!(metadata.permissions().mode() & 0o7777, bits);
            std::os::unix::net::UnixStream::connect(&path).expect("it listens");
            drop(sockets);
        }
        fs::remove_dir(folder).expect("it is empty");
    }

    #[test]
    fn tls_without_a_certificate_is_an_error() {
        let error = open(&["--listen", "https://127.0.0.1:0"]).expect_err("there is none");
        assert!(error.to_string().contains("--listen https://127.0.0.1:0 needs a certificate"));
    }

    /// All of the sockets that another server has passed are listened on, by every number of
    /// workers.
    #[test]
    fn passed_sockets_are_shared_out_to_other_numbers_of_workers() {
        for (before, after, expected) in
            [(4, 2, &[2, 2][..]), (2, 4, &[1, 1, 1, 1]), (1, 3, &[1, 1, 1]), (3, 3, &[1, 1, 1])]
        {
            let (before, after) = (before.to_string(), after.to_string());
            let listen = ["--listen", "127.0.0.1:0", "--workers"];
            let old = open(&[&listen[..], &[&before]].concat()).expect("a free port");
            let mut passed = Passed::of(old.copies().expect("there are descriptors"));
            let args = args(&[&listen[..], &[&after]].concat());
            let mut new = Sockets::open(&args, Vec::new(), &mut passed).expect("they are passed");
            assert!(passed.is_empty());
            assert_eq!(new.addresses, old.addresses);
            let sets = new.take_per_worker(false).expect("there are descriptors");
            assert_eq!(lens(&sets), expected, "{before} to {after}");
            let is_shared = |socket: &OwnedFd| socket_reuseport(socket).expect("it is a socket");
            assert!(after == "1" || sets.iter().flatten().all(is_shared) || before == after);
        }
    }

    /// Places that ask for any port of one address keep their sockets, also in another order.
    #[test]
    fn passed_sockets_of_any_port_go_to_places_of_their_own_kind() {
        let (tls, plain) = ("127.0.0.1:0", "http://127.0.0.1:0");
        let open = |places: [&str; 3], passed: &mut Passed| {
            let listen = places.map(|place| ["--listen", place]);
            let args = args(&[&listen.concat()[..], &["--tls-self-signed"]].concat());
            Sockets::open(&args, Vec::new(), passed).expect("they are passed, or ports are free")
        };
        let old = open([tls, plain, plain], &mut Passed::default());
        let mut passed = Passed::of(old.copies().expect("there are descriptors"));
        let new = open([plain, tls, plain], &mut passed);
        assert!(passed.is_empty(), "{passed:?}");
        let [first, second, third] = &old.addresses[..] else { panic!("three places") };
        assert_eq!(new.addresses, [second, first, third].map(String::clone));
    }

    #[test]
    fn what_a_dead_server_has_left_is_replaced_and_a_living_one_is_not() {
        let folder = folder("abandoned");
        let path = folder.join("socket");
        drop(UnixListener::bind(&path).expect("nobody is there"));
        let first = open_at(&path).expect("the old file is replaced");
        let error = open_at(&path).expect_err("somebody listens");
        assert!(format!("{error:#}").contains("address already in use"), "{error:#}");
        assert!(path.exists(), "who fails removes nothing of another's");
        drop(first);
        fs::write(&path, "no socket").expect("it can be written");
        open_at(&path).expect_err("another's file is not removed");
        assert!(path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    /// A draining server listens no more, and its successor takes its address. The file then
    /// belongs to the successor.
    #[test]
    fn a_server_that_ends_leaves_its_successors_file() {
        let folder = folder("successor");
        let path = folder.join("socket");
        let mut first = open_at(&path).expect("nobody listens");
        drop(first.take_per_worker(false).expect("there are descriptors"));
        let second = open_at(&path).expect("nobody listens");
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
        let error = open_at(&path).expect_err("somebody listens");
        assert!(format!("{error:#}").contains("address already in use"), "{error:#}");
        assert!(path.exists());
        fs::remove_dir_all(folder).expect("it can be removed");
    }
}
