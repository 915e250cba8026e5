//! Regressions: each test holds a promise of the documentation that was once broken.

use std::{
    cell::Cell,
    io::{self, Read, Write},
    net::TcpStream,
    rc::Rc,
    time::Duration,
};

use windlass_server::{
    CloseCode, Options, Server, SlowConsumerPolicy,
    http::{Accept, Page, Reject, Routes, UpgradeRequest},
};

use windlass_testkit::own_process::is_own_process;

use crate::backend::chosen;
use crate::fixture::{Client, ClientEvent, ConnData, Fixture, TestHandler, text};

/// Runs turns with short real pauses between them, so that the kernel can do its part.
fn run(fixture: &mut Fixture, turns: usize) {
    for _ in 0..turns {
        fixture.turn();
        // sleep: loopback needs a moment, and no event reports that it is done.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the service has received this many messages.
#[track_caller]
fn until_messages(fixture: &mut Fixture, count: u64) {
    fixture.until(|fixture| (fixture.service.stats().messages_received == count).then_some(()));
}

fn small_window(fixture: &Fixture) -> TcpStream {
    let socket = TcpStream::connect(fixture.address).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Writes as much as the kernel takes, with turns of the server in between.
fn push(fixture: &mut Fixture, socket: &mut TcpStream, mut bytes: &[u8]) {
    socket.set_nonblocking(true).unwrap();
    let mut idle = 0;
    while !bytes.is_empty() && idle < 50 {
        match socket.write(bytes) {
            Ok(count) => {
                bytes = &bytes[count..];
                idle = 0;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => idle += 1,
            Err(error) => panic!("{error}"),
        }
        run(fixture, 1);
    }
}

const UPGRADE: &[u8] =
    b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A client requests pages without reading them, and then upgrades. Its output is above the high
/// watermark when it opens. The server must stop reading from it as from any other.
#[test]
fn an_upgrade_behind_unread_pages_is_not_read_from() {
    const MAX: usize = 64 << 10;
    let waiting = Rc::new(Cell::new(0));
    let seen = Rc::clone(&waiting);
    let handler = TestHandler::echo().on_open(move |connection, _| seen.set(connection.buffered()));
    let mut fixture = Fixture::with(handler, |options| {
        options.receiver_buffer_max = MAX;
        options.routes = Routes::everywhere().page("/", Page::html(vec![b'x'; 100_000]));
    });
    let mut socket;
    let mut pages = 1;
    loop {
        socket = small_window(&fixture);
        for _ in 0..pages {
            push(&mut fixture, &mut socket, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        let opened = fixture.ids().len();
        push(&mut fixture, &mut socket, UPGRADE);
        fixture.until(|fixture| (fixture.ids().len() > opened).then_some(()));
        if waiting.get() > MAX / 2 {
            break;
        }
        drop(socket);
        pages += 1;
        assert!(pages < 95);
    }
    let id = *fixture.ids().last().unwrap();
    let mut frame = vec![0x82, 0xfe, 0x40, 0, 0, 0, 0, 0];
    frame.resize(8 + 0x4000, 7);
    let all = frame.repeat(2000);
    push(&mut fixture, &mut socket, &all);
    let buffered = fixture.with_hub(move |hub| hub.buffered(id));
    assert!(
        buffered < 1 << 20,
        "{buffered} bytes wait for one who does not read, of {} sent",
        all.len()
    );
}

/// `close` waits for the peer's Close frame. The frame must be read although the application has
/// paused the connection.
#[test]
fn a_paused_connection_receives_the_answer_to_its_close() {
    for by_hub in [true, false] {
        let handler = TestHandler::on_message(move |connection, _, _| {
            connection.pause();
            if !by_hub {
                connection.close(CloseCode::NORMAL, "").unwrap();
            }
        });
        let mut fixture = Fixture::new(handler);
        let mut client = fixture.connect("/");
        let id = fixture.ids()[0];
        client.send("pause");
        until_messages(&mut fixture, 1);
        if by_hub {
            fixture.with_hub(move |hub| hub.close(id, CloseCode::NORMAL, "")).unwrap();
        }
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1000), String::new()));
        // The client has answered.
        assert_eq!(
            fixture.next_event(&mut client),
            ClientEvent::End(None),
            "by the hub: {by_hub}; notes: {:?}",
            fixture.events()
        );
    }
}

/// The same for the default `on_drain`.
#[test]
fn a_paused_connection_does_not_hold_a_drain_up() {
    let mut fixture = Fixture::new(TestHandler::on_message(|connection, _, _| connection.pause()));
    let mut client = fixture.connect("/");
    client.send("pause");
    until_messages(&mut fixture, 1);
    let over = Rc::new(Cell::new(false));
    let (then, service) = (Rc::clone(&over), fixture.service.clone());
    fixture.with_hub(move |hub| {
        service.drain(Duration::from_secs(60), &mut hub.turn(), move |_| then.set(true))
    });
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1001), String::new()));
    // The client has answered.
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    drop(client);
    fixture.until(|_| over.get().then_some(()));
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A message is encoded once for all receivers, even if it fills the whole buffer.
#[test]
fn a_message_as_long_as_the_buffer_is_shared_by_its_receivers() {
    // The memory is that of the process.
    if !is_own_process("regressions::a_message_as_long_as_the_buffer_is_shared_by_its_receivers") {
        return;
    }
    let handler =
        TestHandler::echo().on_open(|connection, _| assert!(connection.subscribe("t").unwrap()));
    let mut fixture =
        Fixture::with(handler, |options| options.receiver_buffer_max = (16 << 20) + 10);
    let clients: Vec<Client> = (0..64).map(|_| fixture.connect("/")).collect();
    let before = resident();
    fixture.with_hub(|hub| assert_eq!(hub.publish("t", &vec![7; 16 << 20][..]), 64));
    fixture.settle();
    let more = resident().saturating_sub(before) >> 20;
    drop(clients);
    assert!(more < 400, "{more} MiB for a message of 16 MiB");
}

/// Output that the socket would accept does not count as waiting.
#[test]
fn a_burst_to_a_reading_client_is_not_dropped() {
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::Evict] {
        let mut fixture = Fixture::with(TestHandler::echo(), |options| {
            options.receiver_buffer_max = 64 << 10;
            options.slow = slow;
        });
        let mut client = fixture.connect("/");
        let id = fixture.ids()[0];
        // More than the buffer holds. Every socket accepts the rest at once.
        fixture.with_hub(move |hub| {
            for number in 0..10_u8 {
                let _ = hub.send(id, &[number; 8 << 10][..]);
            }
        });
        let stats = fixture.service.stats();
        assert_eq!((stats.dropped, stats.evicted), (0, 0), "{slow:?}: nothing was slow");
        for number in 0..10_u8 {
            assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![number; 8 << 10]));
        }
    }
}

/// The same for messages that a connection sends in its own callback.
#[test]
fn a_reading_client_is_not_evicted_for_output_of_its_own_callback() {
    let handler = TestHandler::echo().on_open(|connection, _| {
        for number in 0..32_u8 {
            let _ = connection.send(&[number; 8 << 10][..]);
        }
    });
    let mut fixture = Fixture::with(handler, |options| {
        options.receiver_buffer_max = 64 << 10;
        options.slow = SlowConsumerPolicy::Evict;
    });
    let _client = fixture.connect("/");
    run(&mut fixture, 5);
    assert_eq!(fixture.service.stats().evicted, 0, "{:?}", fixture.events());
}

/// Documented: "at most one `on_drain`".
#[test]
fn a_second_drain_does_not_call_on_drain_again() {
    let mut fixture = Fixture::new(TestHandler::echo().on_drain(|_, _| {}));
    let _client = fixture.connect("/");
    for _ in 0..2 {
        let service = fixture.service.clone();
        fixture
            .with_hub(move |hub| service.drain(Duration::from_secs(60), &mut hub.turn(), |_| {}));
        run(&mut fixture, 5);
    }
    assert_eq!(
        fixture.events().iter().filter(|note| *note == "drain").count(),
        1,
        "{:?}",
        fixture.events()
    );
}

/// Documented: connections "that are still open after `deadline` are reset". That includes those
/// that were ending already.
#[test]
fn a_drains_deadline_applies_to_lingering_connections() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.close_timeout = Duration::from_secs(600)
    });
    let mut client = fixture.connect("/");
    client.is_mute = true;
    // The frame is not masked.
    client.write(&[0x81, 1, b'x']);
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1002), String::new()));
    let over = Rc::new(Cell::new(false));
    let (then, service) = (Rc::clone(&over), fixture.service.clone());
    fixture.with_hub(move |hub| {
        service.drain(Duration::from_secs(1), &mut hub.turn(), move |_| then.set(true))
    });
    fixture.advance_time(Duration::from_secs(3));
    assert!(
        over.get(),
        "3 s after a drain of 1 s there are {} connections",
        fixture.service.stats().connections
    );
}

/// Timeouts never expire early. A loop that was blocked for a long time does not make a peer idle.
#[test]
fn input_received_while_the_loop_was_blocked_is_no_silence() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.idle_timeout = Some(Duration::from_secs(10));
        options.ping_interval = None;
    });
    let mut client = fixture.connect("/");
    let mut other = fixture.connect("/");
    fixture.advance_time(Duration::from_secs(1));
    client.send("still here");
    other.send("I too");
    // The clock jumps, as if a handler had computed or the process had been stopped.
    fixture.jump_clock(Duration::from_secs(11));
    fixture.settle();
    assert_eq!(
        [fixture.next_event(&mut client), fixture.next_event(&mut other)],
        [text("still here"), text("I too")]
    );
    run(&mut fixture, 5);
    assert_eq!((client.poll(), other.poll()), (None, None), "{:?}", fixture.events());
}

/// A connection that is not read from cannot be idle.
#[test]
fn a_paused_connection_is_not_idle() {
    let mut fixture =
        Fixture::with(TestHandler::on_message(|connection, _, _| connection.pause()), |options| {
            options.idle_timeout = Some(Duration::from_secs(10));
        });
    let mut client = fixture.connect("/");
    client.send("pause");
    until_messages(&mut fixture, 1);
    for _ in 0..12 {
        client.send("I am here");
        fixture.advance_time(Duration::from_secs(1));
    }
    assert_eq!(client.poll(), None, "{:?}", fixture.events());
}

/// Documented: "Messages leave in the order of the calls, including publications to topics that
/// this connection is subscribed to."
#[test]
fn a_ping_does_not_overtake_earlier_messages() {
    let mut fixture = Fixture::new(
        TestHandler::on_message(|connection, _, _| {
            connection.publish("t", "one");
            connection.ping(b"two").unwrap();
        })
        .on_open(|connection, _| assert!(connection.subscribe("t").unwrap())),
    );
    let mut client = fixture.connect("/");
    client.send("x");
    assert_eq!(
        [fixture.next_event(&mut client), fixture.next_event(&mut client)],
        [text("one"), ClientEvent::Ping(b"two".to_vec())]
    );
}

/// A browser's connection that got its page does not count as a handshake timeout.
#[test]
fn a_served_page_is_no_handshake_timeout() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.routes = Routes::new().page("/", Page::html("hello"))
    });
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    fixture.until(|fixture| (fixture.service.stats().requests == 1).then_some(()));
    fixture.advance_time(Duration::from_secs(15));
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(fixture.service.stats().handshake_timeouts, 0);
}

/// The limit covers the bytes that wait when a message is added, including that message.
#[test]
fn publications_count_the_receivers_own_waiting_output() {
    const MAX: usize = 256 << 10;
    let handler =
        TestHandler::echo().on_open(|connection, _| assert!(connection.subscribe("t").unwrap()));
    let mut fixture = Fixture::with(handler, |options| {
        options.receiver_buffer_max = MAX;
        options.limits.message_max = MAX / 4;
    });
    let mut socket = small_window(&fixture);
    push(&mut fixture, &mut socket, UPGRADE);
    fixture.until(|fixture| (!fixture.ids().is_empty()).then_some(()));
    let id = fixture.ids()[0];
    let mut frame = vec![0x82, 0xfe, 0x40, 0, 0, 0, 0, 0];
    frame.resize(8 + 0x4000, 7);
    // Until the server stops reading from it.
    push(&mut fixture, &mut socket, &frame.repeat(2000));
    let own = fixture.with_hub(move |hub| hub.buffered(id));
    assert!(own > MAX / 8, "{own}");
    fixture.with_hub(move |hub| hub.publish("t", &vec![1; MAX - 100][..]));
    fixture.settle();
    let all = fixture.with_hub(move |hub| hub.buffered(id));
    assert!(all <= MAX.max(own), "{all} bytes wait where {own} did and {MAX} may");
}

/// Messages that others send to a connection during its pass count as its own output. So a pass
/// cannot send without bound.
#[test]
fn a_pass_that_publishes_to_itself_is_bounded() {
    let handler = TestHandler::on_message(|connection, _, _| {
        connection.publish("t", &[7; 60 << 10][..]);
    })
    .on_open(|connection, _| assert!(connection.subscribe("t").unwrap()));
    let mut fixture = Fixture::with(handler, |options| options.receiver_buffer_max = 64 << 10);
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    let frame = client.frame("x");
    client.write(&frame.repeat(5000));
    fixture.until(|fixture| (fixture.service.stats().messages_received > 0).then_some(()));
    let buffered = fixture.with_hub(move |hub| hub.buffered(id)) >> 20;
    assert!(buffered < 20, "{buffered} MiB wait for one who does not read");
}

/// `connections_most` counts adopted connections too.
#[test]
fn adopted_connections_count_among_the_most() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let service = fixture.service.clone();
    service
        .adopt(
            ours,
            Vec::new(),
            windlass_server::Upgraded::new(ConnData::default()),
            &mut fixture.reactor,
        )
        .unwrap();
    fixture.settle();
    let stats = fixture.service.stats();
    assert_eq!((stats.connections, stats.connections_most), (1, 1));
}

/// The longest message that a connection may send also reaches the other workers.
#[test]
fn the_longest_message_goes_from_worker_to_worker() {
    struct Room;
    impl windlass_server::Handler for Room {
        type Data = ();
        fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
            Ok(Accept::new(()))
        }
        fn on_message(
            &self,
            connection: &mut windlass_server::Connection<'_>,
            _: &mut (),
            message: windlass_server::Message<'_>,
        ) {
            connection.publish_to_others("t", message.to_out());
        }
    }
    let options = Options::new();
    let longest = options.limits.message_max;
    let running = Server::new(options, |_| Room)
        .workers(2)
        .backend(chosen())
        .listen("127.0.0.1:0".parse().unwrap())
        .start()
        .unwrap();
    let address = running.addresses()[0].socket_addr().unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(UPGRADE).unwrap();
    let mut head = vec![0; 4096];
    let count = socket.read(&mut head).unwrap();
    assert!(head[..count].starts_with(b"HTTP/1.1 101 "));
    let mut frame = vec![0x82, 0xff];
    frame.extend_from_slice(&(longest as u64).to_be_bytes());
    frame.resize(14 + longest, 0);
    // The pong to a ping behind the message shows that it was processed.
    frame.extend_from_slice(&[0x89, 0x80, 0, 0, 0, 0]);
    socket.write_all(&frame).unwrap();
    let mut pong = [0; 2];
    socket.read_exact(&mut pong).unwrap();
    assert_eq!(pong, [0x8a, 0]);
    // The second pong comes from a later turn. So the turn of the message has ended, and the
    // message is with the other worker.
    socket.write_all(&[0x89, 0x80, 0, 0, 0, 0]).unwrap();
    socket.read_exact(&mut pong).unwrap();
    drop(socket);
    running.drain(Duration::from_secs(10));
    let counts = running.stats_handle();
    running.join().unwrap();
    assert_eq!(counts.stats().published, 1);
    assert_eq!(counts.stats().lost_between_workers, 0);
}

/// A publication counts once, not once for each worker.
#[test]
fn a_publication_of_another_thread_is_one_publication() {
    let make = |_| TestHandler::echo();
    let running = Server::new(Options::new(), make)
        .workers(3)
        .backend(chosen())
        .listen("127.0.0.1:0".parse().unwrap())
        .start()
        .unwrap();
    running.sender().publish("t", "x").unwrap();
    running.drain(Duration::from_secs(10));
    let counts = running.stats_handle();
    running.join().unwrap();
    assert_eq!(counts.stats().published, 1);
}
