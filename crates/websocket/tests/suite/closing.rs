//! The closing handshake (RFC 6455 section 7).

use std::task::Poll;

use windlass_websocket::{CloseCode, CloseError, CloseFrame, Config, RecvError, Role, SendError};

use crate::{
    bed::{Manner, both, connected, poll_once, run, sockets},
    peer::{CLOSE, Frame, PING, Receiving, TEXT, close_payload, socket_and_peer},
};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

fn frame(code: CloseCode, reason: &str) -> CloseFrame {
    CloseFrame { code: Some(code), reason: reason.to_owned() }
}

#[test]
fn one_side_starts_and_both_end_cleanly() {
    for manner in Manner::ALL {
        for server_starts in [false, true] {
            let (server, client) = connected(manner, &Config::new(), &Config::new());
            let (mut ours, mut theirs) =
                if server_starts { (server, client) } else { (client, server) };
            let close = ours.close(CloseCode::GOING_AWAY, "away");
            let receive = async { theirs.recv().await.map(|received| received.is_none()) };
            let (closed, received) = both(close, receive);
            closed.expect("it is answered");
            assert!(received.expect("a clean end"));
            assert_eq!(ours.own_close(), Some(&frame(CloseCode::GOING_AWAY, "away")));
            assert_eq!(ours.peer_close(), Some(&frame(CloseCode::GOING_AWAY, "away")));
            assert_eq!(theirs.peer_close(), Some(&frame(CloseCode::GOING_AWAY, "away")));
            assert_eq!(theirs.own_close(), None, "it has answered only");
            // Both ends of the transport are ended.
            assert!(ours.get_ref().is_ended() && theirs.get_ref().is_ended());
            for socket in [&mut ours, &mut theirs] {
                assert!(matches!(run(socket.recv()), Ok(None)));
                assert!(matches!(run(socket.send("late")), Err(SendError::Closed)));
                assert!(matches!(run(socket.feed("late")), Err(SendError::Closed)));
                assert!(matches!(run(socket.ping(b"late")), Err(SendError::Closed)));
                run(socket.flush()).expect("nothing waits");
                run(socket.close(CloseCode::NORMAL, "again")).expect("it is closed");
                assert_eq!(socket.buffered(), 0);
            }
        }
    }
}

#[test]
fn both_sides_start_at_once_and_each_keeps_its_own_reason() {
    for manner in Manner::ALL {
        let (mut server, mut client) = sockets(manner, &Config::new());
        server.start_close(CloseCode::NORMAL, "by the server").expect("it is open");
        client.start_close(CloseCode::GOING_AWAY, "by the client").expect("it is open");
        let ends = both(server.next(), client.next());
        assert!(matches!(ends, (Ok(None), Ok(None))), "{ends:?}");
        let (ours, theirs) = (
            frame(CloseCode::NORMAL, "by the server"),
            frame(CloseCode::GOING_AWAY, "by the client"),
        );
        assert_eq!((server.own_close(), server.peer_close()), (Some(&ours), Some(&theirs)));
        assert_eq!((client.own_close(), client.peer_close()), (Some(&theirs), Some(&ours)));
    }
}

#[test]
fn a_second_start_changes_nothing() {
    for role in ROLES {
        let (mut socket, mut peer) = socket_and_peer(Manner::SMOOTH, role, &Config::new());
        run(socket.feed("before")).expect("it is open");
        socket.start_close(CloseCode::NORMAL, "first").expect("it is open");
        socket.start_close(CloseCode::GOING_AWAY, "second").expect("nothing happens");
        assert_eq!(socket.own_close(), Some(&frame(CloseCode::NORMAL, "first")));
        run(socket.flush()).expect("it is open");
        let expected =
            [Frame::new(TEXT, "before"), Frame::new(CLOSE, close_payload(1000, "first"))];
        assert_eq!(peer.frames(), expected);
    }
}

#[test]
fn messages_that_come_after_the_own_close_are_received() {
    for (role, manner) in ROLES.into_iter().flat_map(|role| Manner::ALL.map(|it| (role, it))) {
        let (mut socket, mut peer) = socket_and_peer(manner, role, &Config::new());
        socket.start_close(CloseCode::NORMAL, "").expect("it is open");
        peer.send(TEXT, "one");
        peer.send(0x01, "tw");
        peer.send(0x80, "o");
        peer.send(CLOSE, close_payload(3000, "end"));
        let mut next = || loop {
            if let Poll::Ready(next) = poll_once(socket.next()) {
                break next.expect("the peer is good");
            }
            peer.read();
        };
        assert_eq!((next(), next()), (Some("one".into()), Some("two".into())));
        assert_eq!((next(), next()), (None, None));
        let close = socket.peer_close().expect("it has come");
        assert_eq!(close.code, Some(CloseCode::new(3000)));
        assert_eq!(peer.frames(), [Frame::new(CLOSE, close_payload(1000, ""))]);
    }
}

#[test]
fn a_message_that_is_replied_to_after_the_own_close_is_refused() {
    for is_split in [false, true] {
        let (mut socket, mut peer) = socket_and_peer(Manner::SMOOTH, Role::Server, &Config::new());
        peer.send(TEXT, "one");
        socket.start_close(CloseCode::NORMAL, "").expect("it is open");
        let replied = if is_split {
            let (mut reader, _writer) = socket.split();
            let received = run(reader.recv()).expect("it is good").expect("a message");
            received.reply()
        } else {
            run(socket.recv()).expect("it is good").expect("a message").reply()
        };
        assert!(matches!(replied, Err(SendError::Closed)));
        assert_eq!(peer.frames(), [Frame::new(CLOSE, close_payload(1000, ""))]);
    }
}

#[test]
fn what_is_behind_the_close_is_given_with_the_stream() {
    for (role, starts) in ROLES.into_iter().flat_map(|role| [(role, false), (role, true)]) {
        let (mut socket, mut peer) = socket_and_peer(Manner::SMOOTH, role, &Config::new());
        if starts {
            socket.start_close(CloseCode::NORMAL, "").expect("it is open");
        }
        let close = peer.frame(CLOSE, close_payload(1000, ""));
        peer.stream.give(&[&close[..], b"another protocol"].concat());
        assert!(matches!(run(socket.recv()), Ok(None)));
        peer.stream.give(b", and more");
        assert!(matches!(run(socket.recv()), Ok(None)));
        let (stream, rest) = socket.into_inner();
        assert_eq!(rest, b"another protocol");
        assert_eq!(stream.take_received(), b", and more");
        assert_eq!(peer.frames(), [Frame::new(CLOSE, close_payload(1000, ""))]);
    }
}

#[test]
fn into_inner_gives_what_was_read_and_not_processed() {
    let (mut socket, peer) = socket_and_peer(Manner::SMOOTH, Role::Server, &Config::new());
    peer.send(TEXT, "one");
    peer.send(TEXT, "two");
    assert!(run(socket.recv()).expect("it is good").is_some());
    let two = peer.frame(TEXT, "two");
    assert_eq!(socket.into_inner().1, two);
}

#[test]
fn codes_and_reasons_that_cannot_be_sent_are_refused_and_nothing_is_sent() {
    for role in ROLES {
        let (mut socket, mut peer) = socket_and_peer(Manner::SMOOTH, role, &Config::new());
        let long = "x".repeat(124);
        let error = socket.start_close(CloseCode::NORMAL, &long);
        assert!(matches!(error, Err(SendError::TooLong)), "{error:?}");
        let error = run(socket.close(CloseCode::NORMAL, &long));
        assert!(matches!(error, Err(CloseError::Send(SendError::TooLong))), "{error:?}");
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, u16::MAX] {
            let error = socket.start_close(CloseCode::new(code), "");
            assert!(matches!(error, Err(SendError::BadCloseCode)), "{code}: {error:?}");
        }
        let error = run(socket.ping(&[0; 126]));
        assert!(matches!(error, Err(SendError::TooLong)), "{error:?}");
        assert_eq!((peer.frames(), socket.own_close()), (Vec::new(), None));
        // It is still open.
        run(socket.send("text")).expect("it is open");
        socket.start_close(CloseCode::NORMAL, &long[1..]).expect("it may be as long as this");
        run(socket.flush()).expect("it is open");
        let close = Frame::new(CLOSE, close_payload(1000, &long[1..]));
        assert_eq!(peer.frames(), [Frame::new(TEXT, "text"), close]);
    }
}

#[test]
fn a_close_frame_without_a_code_is_answered_by_one() {
    for role in ROLES {
        let (mut socket, mut peer) = socket_and_peer(Manner::SMOOTH, role, &Config::new());
        peer.send(CLOSE, "");
        assert!(matches!(run(socket.recv()), Ok(None)));
        let none = CloseFrame { code: None, reason: String::new() };
        assert_eq!(socket.peer_close(), Some(&none));
        assert_eq!(peer.frames(), [Frame::new(CLOSE, "")]);
    }
}

#[test]
fn a_stream_that_ends_without_the_answer_is_no_clean_end() {
    for role in ROLES {
        let (mut socket, peer) = socket_and_peer(Manner::SMOOTH, role, &Config::new());
        socket.start_close(CloseCode::NORMAL, "").expect("it is open");
        peer.send(TEXT, "last");
        peer.stream.end();
        assert_eq!(run(socket.next()).expect("it is good"), Some("last".into()));
        for _ in 0..2 {
            assert!(matches!(run(socket.recv()), Err(RecvError::Abnormal)));
        }
        let closed = run(socket.close(CloseCode::NORMAL, ""));
        assert!(matches!(closed, Err(CloseError::Recv(RecvError::Abnormal))), "{closed:?}");
    }
}

#[test]
fn what_was_fed_and_replied_goes_before_the_close() {
    for (role, manner) in ROLES.into_iter().flat_map(|role| Manner::ALL.map(|it| (role, it))) {
        let (mut socket, mut peer) = socket_and_peer(manner, role, &Config::new());
        peer.send(TEXT, "reply to this");
        peer.send(PING, "and this");
        let received = run(socket.recv()).expect("it is good").expect("a message");
        received.reply().expect("it is open");
        run(socket.feed("fed")).expect("it is open");
        socket.start_close(CloseCode::NORMAL, "").expect("it is open");
        while poll_once(socket.flush()).is_pending() {
            peer.read();
        }
        let expected = [
            Frame::new(TEXT, "reply to this"),
            Frame::new(TEXT, "fed"),
            Frame::new(CLOSE, close_payload(1000, "")),
        ];
        assert_eq!(peer.frames(), expected);
    }
}
