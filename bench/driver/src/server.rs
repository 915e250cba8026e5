//! The frame of all server programs of the suites that measure servers: the command line, the
//! announcement and the end. A program has the loop of its server alone ([`run`]).
//!
//! The arguments are `echo` or `broadcast`, then optionally `--deflate`, `--tls`, `--work-us N`,
//! `--workers N`, `--traffic NAME`, `--owned`, `--nodes N`, `--ordered`, `--cpu N` and `--first`.
//! The program listens on a free port of 127.0.0.1, prints one line of JSON, [`ServerInfo`], and
//! serves until it is killed. With `broadcast` a connection to [`PUBLISHER`] publishes its
//! messages, and all others receive them.
#![allow(unsafe_code, reason = "prctl, getrlimit and setrlimit")]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use crate::measured::Error;
use crate::protocol::ServerInfo;
use crate::{affinity, alloc};

/// The path of connections that publish. Connections on other paths receive.
pub const PUBLISHER: &str = "/pub";

/// Topic, channel or room of the receivers.
pub const TOPIC: &str = "all";

/// The address for listen(2); the kernel chooses the port.
pub const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Maximum length of a message that a server must accept.
pub const MESSAGE_MAX: usize = 16 << 20;

/// What a server does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sends them back.
    Echo,
    /// Sends those of publishers to all receivers.
    Broadcast,
}

/// The traffic that a server may choose its settings for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// Of any kind.
    #[default]
    Any,
    /// Each connection has one message in flight.
    Single,
    /// The same, of 16 KiB or more.
    Large,
    /// Each connection has several messages in flight.
    Pipelined,
    /// The connections are idle.
    Idle,
    /// Of any kind, for a server with the defaults of its library.
    Untuned,
}

impl FromStr for Traffic {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "single" => Self::Single,
            "large" => Self::Large,
            "pipelined" => Self::Pipelined,
            "idle" => Self::Idle,
            "untuned" => Self::Untuned,
            _ => return Err(format!("no such traffic: {name}").into()),
        })
    }
}

/// The settings of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What to do with messages.
    pub mode: Mode,
    /// Agree to permessage-deflate without context takeover.
    pub deflate: bool,
    /// Speak TLS, with the certificate of [`tls`](crate::tls).
    pub tls: bool,
    /// How long the server works on a message before it echoes it. Only servers with the part
    /// `echo/work` get a time other than zero.
    pub work: Duration,
    /// Number of threads that serve; `None` for the usual single one.
    pub workers: Option<usize>,
    /// The traffic to come.
    pub traffic: Traffic,
    /// The server takes messages that own their payload, where its library also lends them.
    pub owned: bool,
    /// The name of the backend, for a server with several.
    backend: Option<String>,
    /// Number of nodes of a cluster, for the servers of the suite `cluster`.
    pub nodes: usize,
    /// The topic has one order on all workers.
    pub ordered: bool,
    cpu: Option<usize>,
    first: bool,
}

/// Runs a server with the settings of the command line, and reports its error.
pub fn run(serve: impl FnOnce(Settings) -> Result<(), Error>) -> ExitCode {
    Settings::take()
        .and_then(serve)
        .inspect_err(|error| eprintln!("{error}"))
        .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

impl Settings {
    /// Reads the command line of this process and prepares the process: pins it, gives it a
    /// real-time priority, ends it with its parent, and raises its limit of open files.
    ///
    /// # Errors
    ///
    /// If the command line is invalid, or if the process may not be pinned.
    fn take() -> Result<Self, Error> {
        let settings = Self::read(std::env::args().skip(1))?;
        end_with_parent();
        raise_open_files();
        if settings.cpu.is_some_and(|cpu| !affinity::pin(cpu)) {
            return Err("not allowed to pin".into());
        }
        if settings.first && !affinity::raise_priority() {
            return Err("not allowed to come first".into());
        }
        Ok(settings)
    }

    /// Checks the mode, for a server that has only one.
    ///
    /// # Errors
    ///
    /// If another mode is wanted.
    pub fn require(&self, mode: Mode) -> Result<(), Error> {
        if self.mode == mode { Ok(()) } else { Err(format!("the only mode is {mode:?}").into()) }
    }

    /// Returns the backend that the command line names, or the other one if it names none.
    ///
    /// # Errors
    ///
    /// If no backend has this name.
    pub fn backend_or<B: FromStr>(&self, other: B) -> Result<B, B::Err> {
        self.backend.as_ref().map_or(Ok(other), |name| name.parse())
    }

    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Error> {
        let mode = match arguments.next().as_deref() {
            Some("echo") => Mode::Echo,
            Some("broadcast") => Mode::Broadcast,
            _ => return Err("`echo` or `broadcast` must come first".into()),
        };
        let mut settings = Self {
            mode,
            deflate: false,
            tls: false,
            work: Duration::ZERO,
            workers: None,
            traffic: Traffic::Any,
            owned: false,
            backend: None,
            nodes: 0,
            ordered: false,
            cpu: None,
            first: false,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--deflate" => settings.deflate = true,
                "--tls" => settings.tls = true,
                "--backend" => {
                    settings.backend = Some(arguments.next().ok_or("no backend is named")?)
                }
                "--work-us" => {
                    let time_us = arguments.next().ok_or("no working time is named")?.parse()?;
                    settings.work = Duration::from_micros(time_us);
                }
                "--workers" => {
                    let number = arguments.next().ok_or("no number of workers")?.parse()?;
                    settings.workers = Some(number);
                }
                "--traffic" => {
                    settings.traffic = arguments.next().ok_or("no traffic is named")?.parse()?
                }
                "--owned" => settings.owned = true,
                "--first" => settings.first = true,
                "--ordered" => settings.ordered = true,
                "--nodes" => {
                    settings.nodes = arguments.next().ok_or("no number of nodes")?.parse()?
                }
                "--cpu" => {
                    settings.cpu = Some(arguments.next().ok_or("no processor is named")?.parse()?)
                }
                _ => return Err(format!("no such argument: {argument}").into()),
            }
        }
        Ok(settings)
    }
}

/// Prints the announcement of this server.
pub fn announce(address: SocketAddr, version: &str) {
    announce_as(&this(address, version));
}

/// Returns the announcement of a server that is this process, with one thread.
pub fn this(address: SocketAddr, version: &str) -> ServerInfo {
    ServerInfo { allocations_at: alloc::address(), ..ServerInfo::new(address, version) }
}

/// Prints the announcement of a server that is more than this process, or has several threads.
pub fn announce_as(server: &ServerInfo) {
    println!("{}", serde_json::to_string(server).expect("plain data"));
}

/// Makes the kernel kill this process when its parent ends, so that an interrupted run leaves no
/// servers behind.
fn end_with_parent() {
    // SAFETY: this option takes a number (prctl(2)).
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Raises the soft limit of open files to the hard one. If this fails, a failed accept is reported.
pub(crate) fn raise_open_files() {
    let limit = open_files();
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the limit is readable for the length of the call.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
}

/// Returns the limit of open files.
pub(crate) fn files_max() -> u64 {
    open_files().rlim_cur
}

fn open_files() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is writable for the length of the call, which fails for no valid resource.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// Returns how many sockets of this network namespace listen on an address, as several do that
/// share a port by `SO_REUSEPORT` (socket(7)).
///
/// # Errors
///
/// If `/proc/net/tcp` cannot be read (proc_net(5)).
pub fn listeners(address: SocketAddr) -> std::io::Result<usize> {
    Ok(listeners_in(&std::fs::read_to_string("/proc/net/tcp")?, address))
}

fn listeners_in(table: &str, address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { return 0 };
    // The address in the byte order of the machine, and the port, in hexadecimal.
    let ip = u32::from_ne_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let listens = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        columns.next() == Some(&*local) && columns.nth(1) == Some(LISTEN)
    };
    table.lines().filter(listens).count()
}

/// TCP_LISTEN of `include/net/tcp_states.h`.
const LISTEN: &str = "0A";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Settings, Error> {
        Settings::read(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn sockets_that_share_a_port_are_counted() {
        let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let connection = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(listeners(address).unwrap(), 1);
        assert_eq!(listeners(connection.local_addr().unwrap()).unwrap(), 0);
        let line =
            |state| format!("  0: 0100007F:2329 00000000:0000 {state} 00000000:00000000 0\n");
        let table = [line("0A"), line("01"), line("0A")].concat();
        assert_eq!(listeners_in(&table, "127.0.0.1:9001".parse().unwrap()), 2);
        assert_eq!(listeners_in(&table, "127.0.0.1:9002".parse().unwrap()), 0);
    }

    #[test]
    fn a_command_line_says_mode_compression_and_processor() {
        let settings =
            read(&["broadcast", "--cpu", "1", "--deflate", "--backend", "epoll"]).unwrap();
        let backend = Some("epoll".to_owned());
        assert_eq!(
            settings,
            Settings {
                mode: Mode::Broadcast,
                deflate: true,
                tls: false,
                work: Duration::ZERO,
                workers: None,
                traffic: Traffic::Any,
                owned: false,
                backend,
                nodes: 0,
                ordered: false,
                cpu: Some(1),
                first: false
            }
        );
        assert!(read(&["echo", "--first"]).unwrap().first);
        assert!(read(&["echo", "--tls"]).unwrap().tls);
        assert!(read(&["echo", "--owned"]).unwrap().owned);
        assert_eq!(read(&["echo", "--traffic", "idle"]).unwrap().traffic, Traffic::Idle);
        assert_eq!(read(&["echo", "--workers", "4"]).unwrap().workers, Some(4));
        assert!(read(&["broadcast", "--ordered"]).unwrap().ordered);
        assert_eq!(read(&["broadcast", "--nodes", "2"]).unwrap().nodes, 2);
        assert_eq!(read(&["echo", "--work-us", "200"]).unwrap().work, Duration::from_micros(200));
        for wrong in [
            &[][..],
            &["chat"],
            &["echo", "--cpu"],
            &["echo", "--backend"],
            &["echo", "--traffic", "x"],
            &["echo", "--work-us"],
            &["echo", "--workers", "x"],
            &["echo", "--work-us", "-1"],
            &["echo", "--cpu", "x"],
            &["echo", "--x"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
