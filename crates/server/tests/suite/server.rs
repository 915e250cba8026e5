//! A server with several workers.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::backend::chosen;
use windlass_server::{
    Admin, CloseCode, Connection, ConnectionId, Handler, Message, Options, RunningServer, Sender,
    Server, StartError,
    http::{Accept, Reject, UpgradeRequest},
};

/// A chat with one room. It records the IDs of its connections.
struct Chat {
    ids: Arc<Mutex<Vec<ConnectionId>>>,
}

impl Handler for Chat {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
        connection.subscribe("room").unwrap();
        self.ids.lock().unwrap().push(connection.id());
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        assert_ne!(message.as_str(), Some("panic"), "as asked");
        connection.publish_to_others("room", message.to_out());
    }
}

struct Site {
    running: RunningServer,
    ids: Arc<Mutex<Vec<ConnectionId>>>,
    panics: Arc<AtomicUsize>,
    address: SocketAddr,
}

fn site(workers: usize) -> Site {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let panics = Arc::new(AtomicUsize::new(0));
    let (shared, count) = (Arc::clone(&ids), Arc::clone(&panics));
    let running = Server::new(Options::new(), move |_| Chat { ids: Arc::clone(&shared) })
        .workers(workers)
        .backend(chosen())
        .on_panic(move |_, _| _ = count.fetch_add(1, Ordering::Relaxed))
        .listen("127.0.0.1:0".parse().unwrap())
        .start()
        .unwrap();
    let address = running.addresses()[0].socket_addr().unwrap();
    Site { running, ids, panics, address }
}

/// A client with blocking reads.
struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
            .write_all(
                b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                Connection: Upgrade\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            )
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        Self(socket)
    }

    fn send(&mut self, text: &str) {
        let mut frame = vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(text.as_bytes());
        self.0.write_all(&frame).unwrap();
    }

    /// Returns the first byte and the payload of the next frame, which must be short.
    fn next(&mut self) -> (u8, String) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let mut payload = vec![0; head[1].into()];
        self.0.read_exact(&mut payload).unwrap();
        (head[0], String::from_utf8_lossy(&payload).into_owned())
    }
}

/// Connects clients until each worker has one.
fn one_on_each(site: &Site, workers: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    let begin = Instant::now();
    loop {
        clients.push(Client::new(site.address));
        // The upper bits of an ID are the worker.
        let ids = site.ids.lock().unwrap();
        let mut seen: Vec<u64> = ids.iter().map(|id| id.to_bits() >> 54).collect();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() == workers && ids.len() == clients.len() {
            return clients;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "the kernel gives all to one");
    }
}

fn wait_until(mut there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !there() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it did not come in time");
        std::thread::yield_now();
    }
}

#[test]
fn publications_reach_the_connections_of_all_workers() {
    let site = site(3);
    let mut clients = one_on_each(&site, 3);
    clients[0].send("one");
    clients[0].send("two");
    for client in &mut clients[1..] {
        assert_eq!([client.next(), client.next()], [(0x81, "one".into()), (0x81, "two".into())]);
    }
    let sender: Sender = site.running.sender();
    sender.publish("room", "from outside").unwrap();
    for client in &mut clients {
        assert_eq!(client.next(), (0x81, "from outside".into()));
    }
    let ids = site.ids.lock().unwrap().clone();
    for id in &ids {
        sender.send(*id, "for you").unwrap();
        sender.close(*id, CloseCode::NORMAL, "").unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.next(), (0x81, "for you".into()));
        assert_eq!(client.next().0, 0x88);
    }
    let counts = site.running.stats_handle();
    drop(clients);
    site.running.drain(Duration::from_secs(20));
    site.running.join().unwrap();
    let stats = counts.stats();
    assert_eq!(
        (stats.opened, stats.closed, stats.connections),
        (ids.len() as u64, ids.len() as u64, 0)
    );
    assert_eq!(stats.lost_between_workers, 0);
}

#[test]
fn a_panic_costs_one_connection() {
    let site = site(2);
    let mut clients = one_on_each(&site, 2);
    let mut victim = Client::new(site.address);
    victim.send("panic");
    assert!(victim.0.read_exact(&mut [0]).is_err(), "it is reset");
    wait_until(|| site.panics.load(Ordering::Relaxed) == 1);
    clients[0].send("still there?");
    for client in &mut clients[1..] {
        assert_eq!(client.next(), (0x81, "still there?".into()));
    }
    site.running.stop();
    site.running.join().unwrap();
}

#[test]
fn a_drain_waits_for_the_workers_that_have_connections() {
    let site = site(2);
    let mut client = Client::new(site.address);
    wait_until(|| !site.ids.lock().unwrap().is_empty());
    site.running.drainer().drain(Duration::from_secs(20));
    assert_eq!(client.next(), (0x88, "\u{3}\u{fffd}".into()), "1001");
    // The worker without connections has ended. This connection is still served.
    client.0.write_all(&[0x88, 0x82, 0, 0, 0, 0, 3, 0xe9]).unwrap();
    assert_eq!(client.0.read(&mut [0; 8]).unwrap(), 0, "an orderly end");
    drop(client);
    site.running.join().unwrap();
    assert!(TcpStream::connect(site.address).is_err());
}

#[test]
fn it_listens_on_paths_and_on_sockets_of_others() {
    let path = std::env::temp_dir().join(format!("windlass-server-{}", std::process::id()));
    let inherited = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = inherited.local_addr().unwrap();
    let ids = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&ids);
    let running = Server::new(Options::new(), move |_| Chat { ids: Arc::clone(&shared) })
        .workers(2)
        .backend(chosen())
        .listen_unix(&path)
        .listen_on(inherited)
        .start()
        .unwrap();
    assert_eq!(running.addresses()[0].path(), Some(&*path));
    assert_eq!(running.addresses()[1].socket_addr(), Some(there));
    let _client = Client::new(there);
    let mut unix = std::os::unix::net::UnixStream::connect(&path).unwrap();
    unix.write_all(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )
    .unwrap();
    let mut answer = [0; 12];
    unix.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"HTTP/1.1 101");
    wait_until(|| ids.lock().unwrap().len() == 2);
    std::fs::remove_file(path).unwrap();
    drop(running);
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ids = Arc::default();
    let server =
        Server::new(Options::new(), move |_| Chat { ids: Arc::clone(&ids) }).listen(address);
    let error = server.start().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().starts_with(&format!("cannot listen on {address}: ")), "{error}");
    let error = Admin::listen(address).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {address}: ")), "{error}");
}

#[test]
fn a_server_without_a_listener_is_an_error() {
    let server = || Server::new(Options::new(), |_| Chat { ids: Arc::default() }).workers(2);
    for server in [server(), server().listen_on_each(vec![Vec::new(), Vec::new()])] {
        let error = server.start().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let error = error.get_ref().and_then(|error| error.downcast_ref::<StartError>());
        assert_eq!(error, Some(&StartError::NoListener));
    }
}

#[test]
fn a_second_server_cannot_listen_where_one_does() {
    let first = site(2);
    let second =
        Server::new(Options::new(), |_| Chat { ids: Arc::default() }).workers(2).backend(chosen());
    let refused = second.listen(first.address).start().expect_err("the address is taken");
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
}
