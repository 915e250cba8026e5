//! `--hand-over` and `--take-over`: the next server takes the listening sockets.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect,
        listen, recv, socket, sockopt,
    },
    process::{Signal, geteuid},
};
use windlass::fd_passing::send_all_with_fds;

use super::{notify::Manager, tls::Folder};
use crate::harness::{Running, Server, WAIT_MAX, windlass};

/// The options of a server that offers its sockets at a path of this folder.
fn offering<'a>(path: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["serve", "--listen", "127.0.0.1:0", "--hand-over", path, "--drain-timeout", "60"];
    [&all[..], more].concat()
}

/// The same for the next server.
fn taking<'a>(path: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&offering(path, more)[..], &["--take-over", path]].concat()
}

fn upgrade(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Opens a WebSocket and has a message echoed. A Close frame that asks to connect again is an
/// answer as well.
fn visit(address: SocketAddr) -> io::Result<()> {
    let mut client = TcpStream::connect_timeout(&address, WAIT_MAX)?;
    client.set_read_timeout(Some(WAIT_MAX))?;
    client.write_all(upgrade("/echo").as_bytes())?;
    let head = read_head(&mut client)?;
    if !head.starts_with("HTTP/1.1 101 ") {
        return Err(io::Error::other(head));
    }
    client.write_all(&[0x82, 0x82, 0, 0, 0, 0, b'h', b'i'])?;
    let mut frame = [0; 4];
    client.read_exact(&mut frame)?;
    match frame {
        [0x82, 2, b'h', b'i'] | [0x88, 2, 0x03, 0xe9] => Ok(()),
        other => Err(io::Error::other(format!("frame {other:?}"))),
    }
}

/// Asks the admin listener for its health.
fn ask(address: SocketAddr) -> io::Result<()> {
    let mut client = TcpStream::connect_timeout(&address, WAIT_MAX)?;
    client.set_read_timeout(Some(WAIT_MAX))?;
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client.write_all(head.as_bytes())?;
    let mut text = String::new();
    client.read_to_string(&mut text)?;
    if text.ends_with("alive\n") { Ok(()) } else { Err(io::Error::other(text)) }
}

/// Threads that make connections without pause.
struct Visitors {
    stops: Arc<AtomicBool>,
    visits: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Visitors {
    fn start(count: usize, visit: impl Fn() -> io::Result<()> + Clone + Send + 'static) -> Self {
        let (stops, visits) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let threads = (0..count).map(|_| {
            let (visit, stops, visits) = (visit.clone(), Arc::clone(&stops), Arc::clone(&visits));
            thread::spawn(move || {
                let mut failures = Vec::new();
                while !stops.load(Ordering::Relaxed) && failures.len() < 10 {
                    failures.extend(visit().err().map(|error| error.to_string()));
                    visits.fetch_add(1, Ordering::Relaxed);
                }
                failures
            })
        });
        Self { threads: threads.collect(), stops, visits }
    }

    /// Waits for so many further visits.
    fn wait_for_more(&self, count: u64) {
        let end = self.visits.load(Ordering::Relaxed) + count;
        while self.visits.load(Ordering::Relaxed) < end {
            // sleep: it looks again, and nothing depends on how often.
            thread::sleep(Duration::from_millis(1));
            assert!(self.threads.iter().any(|thread| !thread.is_finished()), "all have failed");
        }
    }

    fn stop(self) {
        self.stops.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert_eq!(thread.join().expect("it does not panic"), [] as [String; 0]);
        }
    }
}

fn admin_address(server: &Server) -> SocketAddr {
    let line = server.wait_for_error("admin listener");
    let (_, address) = line.split_once("address=http://").expect("the line has it");
    address.trim_end_matches('/').parse().expect("an address")
}

#[test]
fn clients_that_connect_without_pause_are_all_served() {
    for (before, after) in [("4", "2"), ("2", "4")] {
        let folder = Folder::new(&format!("hand-over-{before}"));
        let path = folder.path("socket");
        let admin = ["--admin", "127.0.0.1:0", "--workers"];
        let old = offering(&path, &[&admin[..], &[before]].concat());
        let old = Server::of_several(windlass(&old), 2);
        let address = old.address;
        let admin_at = admin_address(&old);
        let clients = Visitors::start(4, move || visit(address));
        let operators = Visitors::start(1, move || ask(admin_at));
        clients.wait_for_more(50);
        let new = taking(&path, &[&admin[..], &[after]].concat());
        let new = Server::of_several(windlass(&new), 2);
        assert_eq!((new.address, admin_address(&new)), (address, admin_at));
        let line = old.wait_for_error("handed over");
        let process = new.pid().as_raw_nonzero();
        assert!(line.contains(&format!("process={process}")), "{line}");
        clients.wait_for_more(50);
        let (status, line) = old.ended();
        assert!(status.success(), "{line}");
        assert!(line.starts_with(&format!("stopped by a hand-over to process {process}: ")));
        clients.wait_for_more(50);
        operators.wait_for_more(10);
        clients.stop();
        operators.stop();
        new.stop_cleanly();
    }
}

#[test]
fn a_request_that_the_old_server_has_begun_to_read_is_answered() {
    let folder = Folder::new("hand-over-half");
    let path = folder.path("socket");
    let old = Server::of(windlass(&offering(&path, &[])));
    let request = upgrade("/echo");
    let (first, rest) = request.split_at(30);
    let mut half = old.connect();
    half.write_all(first.as_bytes()).expect("it reads");
    // The one worker has accepted it before this one.
    visit(old.address).expect("it is served");
    let new = Server::of(windlass(&taking(&path, &[])));
    old.wait_for_error("handed over");
    half.write_all(rest.as_bytes()).expect("it reads");
    let head = read_head(&mut half).expect("it answers");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut close = [0; 4];
    half.read_exact(&mut close).expect("then it drains");
    assert_eq!(close, [0x88, 2, 0x03, 0xe9]);
    drop(half);
    assert!(old.ended().0.success());
    new.stop_cleanly();
}

/// The next one can take them as well, and in the end nothing is left.
#[test]
fn paths_and_the_claim_on_the_port_go_on_from_server_to_server() {
    let folder = Folder::new("hand-over-chain");
    let [path, unix, admin] = ["socket", "unix", "admin"].map(|name| folder.path(name));
    let more = ["--unix", &unix, "--admin", &admin];
    let mut server = Server::of_several(windlass(&offering(&path, &more)), 3);
    let address = server.address.to_string();
    for workers in ["3", "1", "2"] {
        let more = [&more[..], &["--workers", workers]].concat();
        let next = Server::of_several(windlass(&taking(&path, &more)), 3);
        let (status, line) = std::mem::replace(&mut server, next).ended();
        assert!(status.success() && line.contains("hand-over"), "{line}");
        UnixStream::connect(&unix).expect("it listens");
        UnixStream::connect(&admin).expect("it listens");
        visit(server.address).expect("it is served");
        let another = windlass(&["serve", "--listen", &address]).output().expect("it runs");
        let errors = String::from_utf8_lossy(&another.stderr);
        assert!(errors.contains("address already in use"), "{errors}");
    }
    server.stop_cleanly();
    for path in [path, unix, admin] {
        assert!(!fs::exists(&path).expect("the folder is there"), "{path} is removed");
    }
}

#[test]
fn a_socket_that_no_option_asks_for_is_named_and_goes_with_the_old_server() {
    let folder = Folder::new("hand-over-less");
    let [path, unix] = ["socket", "unix"].map(|name| folder.path(name));
    let old = Server::of_several(windlass(&offering(&path, &["--unix", &unix])), 2);
    // The new one offers nothing itself.
    let new = ["serve", "--listen", "127.0.0.1:0", "--take-over", &path];
    let new = Server::of(windlass(&new));
    assert_eq!(new.address, old.address);
    for name in ["hand-over ", "unix "] {
        let line = new.wait_for_error("a socket of the old server is closed");
        assert!(line.contains(&format!("name={name}")), "{line}");
    }
    assert!(old.ended().0.success());
    for path in [path, unix] {
        assert!(!fs::exists(&path).expect("the folder is there"), "{path} is removed");
    }
    new.stop_cleanly();
}

/// Connects as the next server would, and receives what is offered.
fn pretend(path: &str) -> OwnedFd {
    let taker = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a descriptor");
    let address = SocketAddrUnix::new(path).expect("a short path");
    connect(&taker, &address).expect("it is offered");
    sockopt::set_socket_timeout(&taker, sockopt::Timeout::Recv, Some(WAIT_MAX)).expect("it can be");
    let mut text = [0; 4096];
    let (len, _) = recv(&taker, &mut text[..], rustix::net::RecvFlags::empty()).expect("it comes");
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    assert!(text.contains("\"tcp 127.0.0.1:0 plain 0\"") && text.contains("is_last"), "{text}");
    taker
}

#[test]
fn if_the_next_server_fails_the_old_one_goes_on() {
    let folder = Folder::new("hand-over-fails");
    let path = folder.path("socket");
    let old = Server::of(windlass(&offering(&path, &["--hand-over-timeout", "1"])));
    // It ends before it is ready.
    drop(pretend(&path));
    let line = old.wait_for_error("hand-over failed; this server goes on");
    assert!(line.contains("WARN") && line.contains("has ended"), "{line}");
    visit(old.address).expect("it is served");
    // It is not ready in time.
    let silent = pretend(&path);
    let line = old.wait_for_error("hand-over failed; this server goes on");
    assert!(line.contains("--hand-over-timeout"), "{line}");
    drop(silent);
    // It says nonsense.
    let confused = pretend(&path);
    rustix::net::send(&confused, b"\"Granted\"", rustix::net::SendFlags::empty()).expect("room");
    old.wait_for_error("an unexpected answer");
    // It cannot start, after it has received the sockets.
    let broken = taking(&path, &["--unix", "/no/such/folder/socket"]);
    let output = windlass(&broken).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    old.wait_for_error("hand-over failed; this server goes on");
    visit(old.address).expect("it is served");
    assert!(fs::exists(&path).expect("the folder is there"));
    // A good one takes them in the end.
    let new = Server::of(windlass(&taking(&path, &[])));
    assert!(old.ended().0.success());
    visit(new.address).expect("it is served");
    new.stop_cleanly();
}

/// The old server goes on, so the new one ends, but its clients notice no more than at a drain.
#[test]
fn a_server_that_is_not_granted_the_sockets_drains_what_it_has_accepted() {
    let folder = Folder::new("hand-over-refused");
    let path = folder.path("socket");
    let offer = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a descriptor");
    bind(&offer, &SocketAddrUnix::new(&*path).expect("a short path")).expect("the path is free");
    listen(&offer, 1).expect("it is bound");
    sockopt::set_socket_timeout(&offer, sockopt::Timeout::Recv, Some(WAIT_MAX)).expect("it can be");
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--take-over", &path];
    let mut command = windlass(&arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut new = Running(command.spawn().expect("it runs"));

    let taker = accept(&offer).expect("it asks");
    let process = std::process::id();
    let names = "[\"tcp 127.0.0.1:0 plain 0\"]";
    let text =
        format!("{{\"Sockets\":{{\"process\":{process},\"names\":{names},\"is_last\":true}}}}");
    send_all_with_fds(&taker, text.as_bytes(), &[listener.as_fd()]).expect("it reads");
    sockopt::set_socket_timeout(&taker, sockopt::Timeout::Recv, Some(WAIT_MAX)).expect("it can be");
    let mut ready = [0; 4096];
    let (len, _) = recv(&taker, &mut ready[..], RecvFlags::empty()).expect("it is ready");
    assert!(String::from_utf8_lossy(&ready[..len]).contains("Ready"));

    let address = listener.local_addr().expect("it has one");
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    client.write_all(upgrade("/echo").as_bytes()).expect("it reads");
    read_head(&mut client).expect("it answers");
    rustix::net::send(&taker, b"\"no\"", SendFlags::empty()).expect("room");
    let mut close = [0; 4];
    client.read_exact(&mut close).expect("a Close frame");
    assert_eq!((close[0], u16::from_be_bytes([close[2], close[3]])), (0x88, 1001));
    drop(client);
    assert_eq!(new.wait().code(), Some(1));
}

#[test]
fn only_the_same_user_can_take_the_sockets() {
    let folder = Folder::new("hand-over-user");
    let path = folder.path("socket");
    let server = Server::of(windlass(&offering(&path, &[])));
    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    if !geteuid().is_root() {
        eprintln!("skipped here: another user needs root");
        return;
    }
    // Whoever changes the mode of the file gains nothing by it.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let other = UnixPeer::of_nobody(&path);
    let line = server.wait_for_error("hand-over failed");
    assert!(line.contains("the other process has user 65534"), "{line}");
    other.ended();
    server.stop_cleanly();
}

/// A process of another user that connects to a path.
struct UnixPeer(Running);

impl UnixPeer {
    fn of_nobody(path: &str) -> Self {
        // The connection is made by a socket that is passed, because the folder is not that user's.
        let program = format!(
            "use Socket; socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0); \
             $> = 65534; $< = 65534; connect($s, sockaddr_un('{path}')) or die $!; \
             sysread($s, my $b, 1);"
        );
        let mut command = Command::new("perl");
        command.args(["-e", &program]).stdin(Stdio::null()).process_group(0);
        Self(Running(command.spawn().expect("perl is part of the system")))
    }

    fn ended(mut self) {
        self.0.wait();
    }
}

#[test]
fn without_an_offer_there_is_nothing_to_take() {
    let folder = Folder::new("hand-over-none");
    let path = folder.path("socket");
    let refusal = |path: &str, more: &[&str]| {
        let output = windlass(&taking(path, more)).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let errors = refusal(&path, &[]);
    assert!(errors.contains("no server offers its sockets there"), "{errors}");
    let errors = refusal(&path, &["--mode", "raw"]);
    assert!(errors.contains("not available in mode raw"), "{errors}");
    // After a signal nothing is offered any more.
    let server = Server::of(windlass(&offering(&path, &[])));
    let mut open = server.connect();
    open.write_all(upgrade("/echo").as_bytes()).expect("it reads");
    read_head(&mut open).expect("it answers");
    rustix::process::kill_process(server.pid(), Signal::TERM).expect("it runs");
    server.wait_for_error("ending");
    open.read_exact(&mut [0; 4]).expect("a Close frame");
    // The port and the path are free, although the server still drains.
    let errors = refusal(&path, &[]);
    assert!(errors.contains("no server offers its sockets there"), "{errors}");
    TcpListener::bind(server.address).expect("the sockets are closed");
    Server::of(windlass(&offering(&path, &[]))).stop_cleanly();
    drop(open);
    assert!(server.ended().0.success());
}

#[test]
fn the_service_manager_hears_of_the_new_process_from_the_old_one() {
    let manager = Manager::new("hand-over-manager");
    let path = manager.folder.path("socket");
    let old = Server::of(manager.command(&offering(&path, &[])));
    assert_eq!(manager.next()[0], "READY=1");
    // The watchdog that the manager has asked the first process for.
    let mut command = manager.command(&taking(&path, &[]));
    command.env("WATCHDOG_USEC", "30000000").env("WATCHDOG_PID", old.pid().to_string());
    let new = Server::of(command);
    let process = new.pid().as_raw_nonzero();
    assert_eq!(manager.next(), [format!("MAINPID={process}")]);
    assert_eq!(manager.next()[0], "READY=1");
    // The old one stops without a word: the service goes on.
    assert!(old.ended().0.success());
    assert_eq!(manager.next(), ["WATCHDOG=1"]);
    new.stop_cleanly();
    let rest = std::iter::from_fn(|| Some(manager.next())).find(|lines| lines[0] != "WATCHDOG=1");
    assert_eq!(rest.expect("it stops")[0], "STOPPING=1");
}
