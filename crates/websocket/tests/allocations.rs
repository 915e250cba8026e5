//! What sockets allocate, and what they hold.

#[allow(dead_code, reason = "the other test programs use the rest")]
#[path = "suite/bed.rs"]
mod bed;

use std::{
    hint::black_box,
    mem::size_of,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bed::{Manner, Stream, both, connected, pair, poll_once, run, sockets};
use futures_core::Stream as _;
use windlass_testkit::{
    alloc::{Counting, bytes_of_thread, calls_of_thread, peak_of_thread},
    frames::{BINARY, PING, masked},
};
use windlass_websocket::{Config, Message, Prepared, Role, WebSocket};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations in 100 rounds, after some in which the buffers grow.
fn allocations(mut round: impl FnMut()) -> usize {
    (0..10).for_each(|_| round());
    let before = calls_of_thread();
    (0..100).for_each(|_| round());
    calls_of_thread() - before
}

const LENS: [usize; 6] = [0, 20, 1024, 16 << 10, 64 << 10, 200 << 10];

/// Receives what there is, and sends it back.
fn echo(socket: &mut WebSocket<Stream>) {
    let echoing = async {
        while let Some(message) = socket.recv().await.expect("the peer is good") {
            message.reply().expect("the connection is open");
        }
    };
    assert!(poll_once(echoing).is_pending());
}

#[test]
fn a_lent_echo_and_a_borrowed_message_allocate_nothing() {
    // A message that is longer than the buffer for reading has one of its own.
    for len in LENS.into_iter().filter(|len| *len < 64 << 10) {
        let (bytes, text) = (vec![7; len], "x".repeat(len));
        for is_client in [false, true] {
            let (server, client) = sockets(Manner::SMOOTH, &Config::new());
            let (mut echoing, mut asking) =
                if is_client { (client, server) } else { (server, client) };
            let count = allocations(|| {
                run(asking.send(&bytes[..])).expect("it is open");
                run(asking.send(&text[..])).expect("it is open");
                echo(&mut echoing);
                for _ in 0..2 {
                    let message = run(asking.recv()).expect("it is good").expect("an echo");
                    assert_eq!(message.as_bytes().len(), len);
                }
            });
            assert_eq!(count, 0, "{len} bytes, the client echoes: {is_client}");
        }
    }
}

#[test]
fn several_messages_under_one_flush_allocate_nothing() {
    for len in [0, 20, 1000] {
        for is_client in [false, true] {
            let (server, client) = sockets(Manner::SMOOTH, &Config::new());
            let (mut sending, mut receiving) =
                if is_client { (client, server) } else { (server, client) };
            let bytes = vec![7; len];
            let count = allocations(|| {
                for _ in 0..16 {
                    run(sending.feed(&bytes[..])).expect("it is open");
                }
                run(sending.ping(b"ping")).expect("it is open");
                for _ in 0..16 {
                    assert!(run(receiving.recv()).expect("it is good").is_some());
                }
                assert!(poll_once(receiving.recv()).is_pending());
                assert!(poll_once(sending.recv()).is_pending());
            });
            assert_eq!(count, 0, "{len} bytes, the client sends: {is_client}");
        }
    }
}

#[test]
fn an_owned_message_is_one_allocation() {
    for len in LENS {
        let (mut server, mut client) = sockets(Manner::SMOOTH, &Config::new());
        let bytes = vec![7; len];
        let count = allocations(|| {
            run(client.send(&bytes[..])).expect("it is open");
            let next = Pin::new(&mut server).poll_next(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Some(Ok(message))) = next else { panic!("{next:?}") };
            assert_eq!(black_box(message).as_bytes().len(), len);
        });
        assert_eq!(count, if len == 0 { 0 } else { 100 }, "{len} bytes");
    }
}

#[test]
fn the_halves_allocate_no_more() {
    let (server, mut client) = sockets(Manner::SMOOTH, &Config::new());
    let (mut reader, mut writer) = server.split();
    let count = allocations(|| {
        run(client.send("to the reader")).expect("it is open");
        let message = run(reader.recv()).expect("it is good").expect("a message");
        message.reply().expect("it is open");
        run(writer.send("from the writer")).expect("it is open");
        for _ in 0..2 {
            assert!(run(client.recv()).expect("it is good").is_some());
        }
        assert!(poll_once(reader.recv()).is_pending());
    });
    assert_eq!(count, 0);
}

/// The bytes that one of `count` sockets holds beside its stream.
fn held(config: &Config, use_it: impl Fn(&mut WebSocket<Stream>, &mut WebSocket<Stream>)) -> usize {
    const COUNT: usize = 50;
    let make = || connected(Manner::SMOOTH, config, config);
    // The thread's own buffers grow first.
    let mut first = make();
    use_it(&mut first.0, &mut first.1);
    drop(first);

    let mut pairs = Vec::with_capacity(COUNT);
    let mut bytes = 0;
    for _ in 0..COUNT {
        let (mut server, mut client) = make();
        use_it(&mut server, &mut client);
        // The heap of the server is what is freed with it, less what is freed with its stream.
        let before = bytes_of_thread();
        let (stream, rest) = server.into_inner();
        assert!(rest.is_empty());
        bytes += (before - bytes_of_thread()) as usize;
        pairs.push((stream, client));
    }
    bytes / COUNT + size_of::<WebSocket<Stream>>() - size_of::<Stream>()
}

fn idle(server: &mut WebSocket<Stream>, _: &mut WebSocket<Stream>) {
    assert!(poll_once(server.recv()).is_pending());
}

fn busy(server: &mut WebSocket<Stream>, client: &mut WebSocket<Stream>) {
    for len in LENS {
        let text = "compressible ".repeat(len / 13 + 1);
        let ask = async {
            client.send(&text[..]).await.expect("it is open");
            client.feed(Message::from(&text[..])).await.expect("it is open");
            client.ping(b"ping").await.expect("it is open");
            for _ in 0..2 {
                assert!(client.recv().await.expect("it is good").is_some());
            }
        };
        let answer = async {
            for _ in 0..2 {
                let message = server.recv().await.expect("it is good").expect("a message");
                message.reply().expect("it is open");
            }
            server.flush().await.expect("it is open");
        };
        both(answer, ask);
        idle(server, client);
    }
}

#[test]
fn an_idle_socket_holds_at_most_600_bytes() {
    let plain = Config::new();
    assert!(held(&plain, idle) <= 600, "{} bytes when it is new", held(&plain, idle));
    assert!(held(&plain, busy) <= 600, "{} bytes after work", held(&plain, busy));
}

#[cfg(feature = "deflate")]
#[test]
fn an_idle_socket_with_compression_holds_little_more() {
    use windlass_websocket::DeflateConfig;
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    assert!(held(&config, idle) <= 400, "{} bytes when it is new", held(&config, idle));
    assert!(held(&config, busy) <= 400, "{} bytes after work", held(&config, busy));
}

#[cfg(feature = "deflate")]
#[test]
fn a_long_compressed_message_in_pieces_is_never_held() {
    use windlass_websocket::DeflateConfig;
    const LEN: usize = 8 << 20;
    let config = Config::new().deflate(DeflateConfig::DEFAULT).message_max(LEN).frame_max(LEN);
    let (mut server, mut client) = connected(Manner::SMOOTH, &config, &config);
    let text: String = (0..).map(|line| format!("line {line}\n")).take(LEN / 16).collect();
    run(client.send(&text[..])).expect("it is open");
    let (before, mut held_max, mut at) = (bytes_of_thread(), 0, 0);
    loop {
        let piece = run(server.recv_piece()).expect("it is good").expect("a piece");
        let bytes = piece.as_bytes();
        assert!(piece.is_text() && bytes.len() <= 64 << 10);
        assert_eq!(&text.as_bytes()[at..at + bytes.len()], bytes);
        at += bytes.len();
        held_max = held_max.max(bytes_of_thread() - before);
        if piece.is_last() {
            break;
        }
    }
    assert_eq!(at, text.len());
    // The buffers of the read and of a piece, the decompressor, and its window.
    assert!(held_max <= 256 << 10, "{held_max} bytes");
    assert!(poll_once(server.recv_piece()).is_pending());
    assert!(bytes_of_thread() - before <= 256 << 10, "a part is kept for later messages");
}

#[test]
fn a_broadcast_of_a_prepared_message_copies_nothing() {
    const LEN: usize = 100 << 10;
    let config = Config::new();
    let news = Prepared::new(vec![7; LEN], &config);
    let mut sockets: Vec<_> = (0..100)
        .map(|_| {
            // The peer does not read, so each socket holds the whole message.
            let (stream, peer) = pair(Manner { capacity: 0, ..Manner::SMOOTH });
            (WebSocket::from_upgraded(stream, &[], Role::Server, &config), peer)
        })
        .collect();
    let before = bytes_of_thread();
    for (socket, _) in &mut sockets {
        run(socket.feed(news.clone())).expect("it is open");
        assert!(poll_once(socket.flush()).is_pending());
        assert!(socket.buffered() > LEN);
    }
    let bytes = bytes_of_thread() - before;
    assert!(bytes < LEN as isize, "{bytes} bytes for 100 sockets");
}

/// What a server with the default limits allocates at most while a peer sends these bytes, and
/// reads nothing.
fn peak_under(name: &str, config: &Config, bytes: &[u8]) -> usize {
    let (mut server, client) =
        connected(Manner { capacity: 4096, ..Manner::SMOOTH }, config, config);
    let (to_server, _) = client.into_inner();
    to_server.give(bytes);
    let mut messages = 0;
    let peak = peak_of_thread(|| {
        // Until the end, or until it waits for the peer to read or to send.
        while let Poll::Ready(Ok(Some(message))) = poll_once(server.recv()) {
            message.reply().expect("the connection is open");
            messages += 1;
        }
    });
    println!("{name}: {peak} bytes after {messages} messages, {} left", to_server.unread());
    peak
}

/// The output of a server that has stopped reading, or its message.
#[test]
fn a_server_under_attack_holds_little() {
    const KIB: usize = 1 << 10;
    let config = Config::new().controls_per_second_max(u16::MAX);
    let byte_by_byte: Vec<u8> = (0..200_000)
        .flat_map(|number| masked(if number == 0 { 0x02 } else { 0x00 }, b"x"))
        .collect();
    assert!(peak_under("fragments of one byte", &config, &byte_by_byte) <= 512 * KIB);
    let frames = masked(BINARY, b"x").repeat(1_000_000);
    assert!(peak_under("frames of one byte, echoed", &config, &frames) <= 128 * KIB);
    let pings = masked(PING, &[7; 125]).repeat(20_000);
    assert!(peak_under("pings", &config, &pings) <= 512 * KIB);
}

#[cfg(feature = "deflate")]
#[test]
fn a_server_under_a_bomb_holds_one_message() {
    use windlass_websocket::DeflateConfig;
    const LEN: usize = 64 << 20;
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let large = config.clone().message_max(2 * LEN).frame_max(2 * LEN);
    let (server, mut bomber) = connected(Manner::SMOOTH, &config, &large);
    run(bomber.send(&vec![0; LEN][..])).expect("it is open");
    let bomb = server.into_inner().0.take_received();
    assert!(bomb.len() < LEN / 500);
    let peak = peak_under("a bomb of 64 MiB", &config, &bomb);
    assert!(peak <= 5 << 18, "{peak} bytes");
}
