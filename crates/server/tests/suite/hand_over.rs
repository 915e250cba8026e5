//! Changes of a running server: its settings, and the hand-over of its listening sockets.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tungstenite::{Message, WebSocket, protocol::frame::coding::CloseCode};
use windlass_server::{
    Options, OptionsError, Rate, RateLimits, RunningServer, Server, handler_fn,
    http::{Hosts, Networks, Origins},
};

use crate::backend::chosen;

/// Maximum time of any wait, after which the test fails.
const WAIT_MAX: Duration = Duration::from_secs(20);

const MINUTE: Duration = Duration::from_secs(60);

fn start(options: Options, workers: usize, socket: &TcpListener) -> RunningServer {
    let echo = |_| handler_fn(|connection, message| _ = connection.reply_in_place(message));
    Server::new(options, echo)
        .workers(workers)
        .backend(chosen())
        .listen_on(socket.try_clone().unwrap())
        .start()
        .unwrap()
}

fn listener() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

fn open(address: SocketAddr) -> WebSocket<TcpStream> {
    tungstenite::client(format!("ws://{address}/"), connect(address)).unwrap().0
}

fn echo(client: &mut WebSocket<TcpStream>, text: &str) {
    client.send(Message::text(text)).unwrap();
    assert_eq!(client.read().unwrap(), Message::text(text));
}

/// The status of the answer to an upgrade with these lines.
fn status(address: SocketAddr, lines: &str) -> String {
    let mut client = connect(address);
    client.write_all(upgrade(lines).as_bytes()).unwrap();
    let mut start = [0; 12];
    client.read_exact(&mut start).unwrap();
    String::from_utf8_lossy(&start[9..]).into_owned()
}

fn upgrade(lines: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\n{lines}Upgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

#[test]
fn other_settings_count_for_what_begins_afterwards() {
    let (socket, address) = listener();
    let mut options = Options::new();
    options.connections_max = 2;
    let running = start(options.clone(), 2, &socket);
    let mut old = open(address);
    let own = "Host: localhost\r\nOrigin: http://localhost\r\n";
    let shop = "Host: shop.localhost\r\nOrigin: https://shop.example\r\n";
    assert_eq!([status(address, own), status(address, shop)], ["101", "421"]);

    options.origins = Origins::parse(&["https://shop.example"]).unwrap();
    options.hosts = Hosts::parse(&["shop.localhost", "localhost"]).unwrap();
    options.limits.message_max = 3;
    options.limits.frame_max = 3;
    options.connections_max = 100;
    running.reconfigurer().reconfigure(&options).unwrap();
    assert_eq!([status(address, own), status(address, shop)], ["403", "101"]);
    let mut clients: Vec<_> = (0..20).map(|_| open(address)).collect();
    clients.iter_mut().for_each(|client| echo(client, "abc"));
    clients[0].send(Message::text("abcd")).unwrap();
    let Message::Close(Some(close)) = clients[0].read().unwrap() else { panic!("it closes") };
    assert_eq!(close.code, CloseCode::Size);
    echo(&mut old, "abcd");

    options.connections_per_address_max = Some(1);
    running.reconfigurer().reconfigure(&options).unwrap();
    // Connections from before do not count, because addresses had no limit.
    let mut only = open(address);
    echo(&mut only, "abc");
    let mut second = connect(address);
    assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0, "it is closed");
    running.stop();
    running.join().unwrap();
}

#[test]
fn a_memory_limit_changes_and_nonsense_is_rejected() {
    let (socket, address) = listener();
    let mut options = Options::new();
    options.memory_max = Some(1 << 20);
    options.limits.message_max = 100;
    options.rates.message_bytes = Some(Rate::per_second(100));
    let running = start(options.clone(), 1, &socket);
    let limit = |running: &RunningServer| {
        let text = running.stats_handle().prometheus();
        let line = text
            .lines()
            .find(|line| line.starts_with("windlass_memory_budget_bytes{use=\"limit\"} "));
        line.expect("it is there").rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(limit(&running), 1 << 20);
    options.memory_max = Some(5 << 20);
    running.reconfigurer().reconfigure(&options).unwrap();
    assert_eq!(limit(&running), 5 << 20);
    // The buffer of the running server is what counts, and it does not change.
    options.receiver_buffer_max = 64 << 20;
    options.limits.message_max = 32 << 20;
    options.memory_max = Some(7 << 20);
    let rejected = running.reconfigurer().reconfigure(&options);
    assert!(matches!(rejected, Err(OptionsError::BufferTooSmall { .. })), "{rejected:?}");
    // The rate of bytes is the new one.
    options.limits.message_max = 101;
    let rejected = running.reconfigurer().reconfigure(&options);
    assert!(matches!(rejected, Err(OptionsError::BurstTooSmall { .. })), "{rejected:?}");
    options.rates.message_bytes = Some(Rate::per_second(101));
    assert_eq!(running.reconfigurer().check(&options), Ok(()));
    options.rates.message_bytes = Some(Rate::per_second(1));
    let rejected = running.reconfigurer().reconfigure(&options);
    assert!(matches!(rejected, Err(OptionsError::BurstTooSmall { .. })), "{rejected:?}");
    assert_eq!(limit(&running), 5 << 20);
    echo(&mut open(address), "still here");
    running.stop();
    running.join().unwrap();
}

/// The time of a bucket that does not fill in a test.
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn rates_change_and_the_same_ones_keep_their_buckets() {
    let (socket, address) = listener();
    let mut options = Options::new();
    let running = start(options.clone(), 2, &socket);
    let host = "Host: localhost\r\n";
    let mut old = open(address);
    options.rates.messages = Some(Rate::new(1, HOUR));
    options.rates.requests_per_address = Some(Rate::new(2, HOUR));
    running.reconfigurer().reconfigure(&options).unwrap();
    (0..9).for_each(|_| echo(&mut old, "it has opened without a rate"));
    let mut limited = open(address);
    echo(&mut limited, "one");
    limited.send(Message::text("two")).unwrap();
    let Message::Close(Some(close)) = limited.read().unwrap() else { panic!("it closes") };
    assert_eq!(close.code, CloseCode::Policy);
    assert_eq!([status(address, host), status(address, host)], ["101", "429"]);
    running.reconfigurer().reconfigure(&options).unwrap();
    assert_eq!(status(address, host), "429", "the bucket is as it was");

    options.rates.messages = Some(Rate::new(9, HOUR));
    options.rates.requests_per_address = Some(Rate::new(3, HOUR));
    running.reconfigurer().reconfigure(&options).unwrap();
    let mut limited = open(address);
    (0..9).for_each(|_| echo(&mut limited, "nine"));
    assert_eq!([(); 3].map(|()| status(address, host)), ["101", "101", "429"]);
    options.rates = RateLimits::default();
    running.reconfigurer().reconfigure(&options).unwrap();
    echo(&mut limited, "it had a rate, and there is none now");
    assert_eq!([(); 9].map(|()| status(address, host)), ["101"; 9]);
    running.stop();
    running.join().unwrap();
}

#[test]
fn the_networks_of_proxies_change() {
    let (socket, address) = listener();
    let mut options = Options::new();
    let running = start(options.clone(), 2, &socket);
    let host = "Host: localhost\r\n";
    let answer = |before: &str| {
        let mut client = connect(address);
        client.write_all((before.to_owned() + &upgrade(host)).as_bytes()).unwrap();
        let mut start = [0; 12];
        // A connection that is closed with unread bytes is reset.
        client.read_exact(&mut start).map(|()| String::from_utf8_lossy(&start[9..]).into_owned())
    };
    let header = "PROXY TCP4 192.0.2.7 127.0.0.1 1000 80\r\n";
    assert_eq!([answer("").unwrap(), answer(header).unwrap()], ["101", "400"]);
    options.proxies.proxy_protocol = Networks::parse(&["127.0.0.0/8"]).unwrap();
    running.reconfigurer().reconfigure(&options).unwrap();
    assert!(answer("").is_err(), "it is closed");
    assert_eq!(answer(header).unwrap(), "101");
    options.proxies.proxy_protocol = Networks::default();
    running.reconfigurer().reconfigure(&options).unwrap();
    assert_eq!([answer("").unwrap(), answer(header).unwrap()], ["101", "400"]);
    running.stop();
    running.join().unwrap();
}

#[test]
fn a_hand_over_answers_what_it_has_accepted_and_leaves_the_rest() {
    let (socket, address) = listener();
    let running = start(Options::new(), 2, &socket);
    let mut opened = open(address);
    let request = upgrade("Host: localhost\r\n");
    let (first, rest) = request.split_at(20);
    let mut half = connect(address);
    half.write_all(first.as_bytes()).unwrap();
    // The server has accepted it before this one.
    let stats = running.stats_handle();
    while stats.fresh_stats().connections < 2 {}

    running.drainer().hand_over(MINUTE);
    // All workers have stopped accepting when they have answered.
    let _ = stats.fresh_stats();
    let _waits: Vec<_> = (0..20).map(|_| connect(address)).collect();
    for _ in 0..20 {
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        let patience = Timespec::try_from(WAIT_MAX).unwrap();
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "the other process gets it");
        socket.accept().unwrap();
    }
    echo(&mut opened, "it is not closed before the request is answered");
    half.write_all(rest.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        half.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    // Then the drain begins.
    let mut start = [0; 4];
    half.read_exact(&mut start).unwrap();
    assert_eq!(start, [0x88, 2, 0x03, 0xe9], "a Close frame with code 1001");
    let Message::Close(Some(close)) = opened.read().unwrap() else { panic!("it closes") };
    assert_eq!(close.code, CloseCode::Away);
    drop((half, opened));
    running.join().unwrap();
}

/// A client that never sends its request does not hold the old server up for ever.
#[test]
fn a_hand_over_waits_no_longer_than_a_handshake_may_last() {
    let (socket, address) = listener();
    let mut options = Options::new();
    options.handshake_timeout = Duration::from_millis(300);
    let running = start(options, 1, &socket);
    let silent: Vec<_> = (0..3).map(|_| connect(address)).collect();
    running.drainer().hand_over(MINUTE);
    running.join().unwrap();
    drop(silent);
}
