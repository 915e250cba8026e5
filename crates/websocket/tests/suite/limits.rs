//! Limits, and the memory that a peer can make a socket hold.

use std::task::Poll;

use windlass_websocket::{Config, Message, RecvError, Role, Violation};

use crate::{
    bed::{Manner, poll_once, run},
    clock::Clock,
    peer::{
        BINARY, CLOSE, Frame, PING, PONG, Receiving, TEXT, close_payload, receive_all,
        socket_and_peer,
    },
};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// The peer reads nothing at first.
const FULL: Manner = Manner { capacity: 0, ..Manner::SMOOTH };

/// A pipe of some capacity, with reads of at most 200 bytes.
const NARROW: Manner = Manner { chunk: 200, capacity: 10, ..Manner::SMOOTH };

#[test]
fn feed_and_send_wait_above_the_high_watermark_and_accept_one_message_more() {
    for role in ROLES {
        let (mut socket, _peer) = socket_and_peer(FULL, role, &Config::new().high_watermark(1000));
        let mut count = 0;
        while poll_once(socket.feed(&[7; 94][..])).is_ready() {
            count += 1;
        }
        let frame_len = if role == Role::Server { 96 } else { 100 };
        assert_eq!(count, 1000 / frame_len + 1);
        assert_eq!(socket.buffered(), count * frame_len);
        assert!(poll_once(socket.send("more")).is_pending());
        assert!(poll_once(socket.ping(b"more")).is_pending());
        assert_eq!(socket.buffered(), count * frame_len, "nothing more was queued");

        let (mut socket, _peer) = socket_and_peer(FULL, role, &Config::new().high_watermark(0));
        assert!(poll_once(socket.feed(&[7; 100_000][..])).is_ready());
        assert!(poll_once(socket.feed("")).is_pending());
        assert!(socket.buffered() > 100_000);
    }
}

#[test]
fn a_writer_of_a_peer_that_never_reads_holds_no_more_than_the_high_watermark() {
    for message in [Message::from(&[7; 10][..]), Message::from(&[7; 5000][..])] {
        let config = Config::new().high_watermark(10_000);
        let (socket, _peer) = socket_and_peer(NARROW, Role::Server, &config);
        let (mut reader, mut writer) = socket.split();
        for _ in 0..2000 {
            let _ = poll_once(writer.feed(message.clone()));
            let _ = poll_once(writer.send(&message));
            let _ = poll_once(writer.ping(b"ping"));
            assert!(poll_once(reader.recv()).is_pending());
        }
        let socket = reader.reunite(writer).expect("they are of one socket");
        assert!(socket.buffered() <= 10_000 + 5010, "{}", socket.buffered());
    }
}

#[test]
fn a_flood_of_pings_is_not_read_while_the_answers_wait_and_all_are_answered() {
    for role in ROLES {
        let config = Config::new().answers_max(1000).controls_per_second_max(u16::MAX);
        let (mut socket, mut peer) = socket_and_peer(NARROW, role, &config);
        let count = 2000_u32;
        for number in 0..count {
            peer.send(PING, number.to_be_bytes());
        }
        for _ in 0..1000 {
            assert!(poll_once(socket.recv()).is_pending());
        }
        assert!(socket.buffered() <= 1000 + 600, "{} bytes wait", socket.buffered());
        assert!(peer.stream.unread() > 10_000, "reading has stopped");
        for _ in 0..100_000 {
            peer.read();
            assert!(poll_once(socket.recv()).is_pending());
            assert!(socket.buffered() <= 1000 + 600, "{} bytes wait", socket.buffered());
        }
        let expected = (0..count).map(|number| Frame::new(PONG, number.to_be_bytes()));
        assert!(peer.frames().into_iter().eq(expected), "each ping has its pong, in order");
    }
}

/// What a peer that reads nothing can send in many rounds, to make a server that echoes hold more.
#[test]
fn replies_and_answers_together_are_bounded() {
    let rounds: [(&str, &[(u8, usize)]); 7] = [
        ("messages", &[(BINARY, 50)]),
        ("message, ping", &[(BINARY, 50), (PING, 10)]),
        ("ping, message", &[(PING, 10), (BINARY, 50)]),
        ("texts and pings", &[(TEXT, 20), (PING, 0), (TEXT, 120), (PING, 125)]),
        ("fragments", &[(0x02, 50), (PING, 0), (0x80, 50)]),
        ("fragments in one", &[(0x02, 50), (0x00, 0), (0x80, 50)]),
        ("empty messages", &[(BINARY, 0), (PING, 0)]),
    ];
    for role in ROLES {
        for (name, round) in rounds {
            for (per_write, is_split) in [(1, false), (30, false), (1, true), (30, true)] {
                let config = Config::new().answers_max(1000).controls_per_second_max(u16::MAX);
                let manner = Manner { chunk: usize::MAX, ..NARROW };
                let (mut socket, peer) = socket_and_peer(manner, role, &config);
                let bytes: Vec<u8> = round
                    .iter()
                    .flat_map(|(first, len)| peer.frame(*first, vec![b'x'; *len]))
                    .collect();
                let bytes = bytes.repeat(per_write);
                let limit = 1000 + bytes.len() * 3;
                let mut halves = None;
                if is_split {
                    let (reader, writer) = socket.split();
                    halves = Some((reader, writer));
                    socket = socket_and_peer(manner, role, &config).0;
                }
                for _ in 0..500 {
                    // As if one write arrived with each read.
                    if peer.stream.unread() == 0 {
                        peer.stream.give(&bytes);
                    }
                    match &mut halves {
                        Some((reader, _)) => while poll_once(reader.reply_to_next()).is_ready() {},
                        None => while poll_once(socket.reply_to_next()).is_ready() {},
                    }
                }
                if let Some((reader, writer)) = halves {
                    socket = reader.reunite(writer).expect("they are of one socket");
                }
                let buffered = socket.buffered();
                assert!(buffered <= limit, "{role:?} {name} {is_split}: {buffered} > {limit}");
            }
        }
    }
}

/// A configuration, the first bytes and lengths of frames, and what they give.
type Case<'a> = (Config, &'a [(u8, usize)], Violation, u16);

#[test]
fn each_limit_gives_the_error_that_names_it_and_its_close_code() {
    let config = || Config::new();
    for role in ROLES {
        let cases: [Case<'_>; 6] = [
            (config().frame_max(50), &[(BINARY, 51)], Violation::FrameTooBig, 1009),
            (config().message_max(100), &[(BINARY, 101)], Violation::MessageTooBig, 1009),
            (
                config().message_max(100),
                &[(0x01, 50), (0x00, 50), (0x80, 1)],
                Violation::MessageTooBig,
                1009,
            ),
            (
                config().fragments_max(3),
                &[(0x01, 1), (0x00, 1), (0x00, 1), (0x80, 1)],
                Violation::TooManyFragments,
                1008,
            ),
            (
                config().controls_per_second_max(3),
                &[(PING, 0), (PONG, 0), (PING, 0), (PING, 0)],
                Violation::TooManyControls,
                1008,
            ),
            (config(), &[(BINARY | 0x40, 1)], Violation::ReservedBits, 1002),
        ];
        for (config, sent, violation, code) in cases {
            for manner in [Manner::SMOOTH, Manner::BYTE_BY_BYTE] {
                let clock = Clock::default();
                let (mut socket, mut peer) = clock.socket_and_peer(manner, role, &config);
                peer.send(TEXT, "before");
                for (first, len) in sent {
                    peer.send(*first, vec![b'x'; *len]);
                }
                let before = run(socket.recv()).expect("it is good").expect("a message");
                assert_eq!(before.as_str(), Some("before"));
                for _ in 0..2 {
                    match run(socket.recv()) {
                        Err(RecvError::Violation(told)) => assert_eq!(told, violation),
                        other => panic!("{violation:?}: {other:?}"),
                    }
                }
                let frames = peer.frames();
                let close = frames.last().expect("a Close frame");
                assert_eq!(close.first, CLOSE);
                assert_eq!(close.payload[..2], code.to_be_bytes());
                assert!(peer.stream.is_ended());
            }
        }
    }
}

#[test]
fn what_is_at_a_limit_is_accepted() {
    for role in ROLES {
        let config = Config::new()
            .frame_max(50)
            .message_max(100)
            .fragments_max(3)
            .controls_per_second_max(3);
        let (mut socket, peer) = socket_and_peer(Manner::SMOOTH, role, &config);
        for (first, len) in [(0x02, 50), (PING, 0), (0x00, 50), (PING, 0), (PING, 0), (0x80, 0)] {
            peer.send(first, vec![b'x'; len]);
        }
        assert_eq!(receive_all(&mut socket), [Message::from(&[b'x'; 100][..])]);
    }
}

#[test]
fn control_frames_are_counted_in_the_second_in_which_they_come() {
    for role in ROLES {
        let config = Config::new().controls_per_second_max(2);
        let clock = Clock::default();
        let (mut socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, role, &config);
        for _ in 0..5 {
            clock.advance_ms(10_000);
            peer.send(PING, "1");
            peer.send(PING, "2");
            assert!(poll_once(socket.recv()).is_pending());
            // A read without a control frame.
            peer.send(TEXT, "between");
            assert!(matches!(poll_once(socket.recv()), Poll::Ready(Ok(Some(_)))));
            assert!(poll_once(socket.recv()).is_pending());
        }
        assert_eq!(peer.frames().len(), 10);
        clock.advance_ms(10_000);
        for _ in 0..6 {
            peer.send(PING, "too many");
            let _ = poll_once(socket.recv());
        }
        let end = run(socket.recv());
        assert!(matches!(end, Err(RecvError::Violation(Violation::TooManyControls))));
        let close = peer.frames().pop().expect("a Close frame");
        assert_eq!(close.payload[..2], close_payload(1008, ""));
    }
}
