//! Streams that fail at every byte.

use std::{
    io::{self, ErrorKind},
    task::Poll,
};

use futures_core::Stream as _;
use windlass_websocket::{CloseCode, Config, Message, RecvError, Role, SendError, WebSocket};

use crate::{
    bed::{Manner, Stream, poll_once, run},
    peer::{
        BINARY, CLOSE, Frame, PING, PONG, Peer, Receiving, TEXT, close_payload, frames,
        socket_and_peer,
    },
};

const KINDS: [ErrorKind; 5] = [
    ErrorKind::ConnectionReset,
    ErrorKind::BrokenPipe,
    ErrorKind::UnexpectedEof,
    ErrorKind::TimedOut,
    ErrorKind::Other,
];

/// The end of a stream.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Error(ErrorKind),
    Eof,
}

/// What the peer says: bytes, and after how many of them something was said.
fn script(peer: &Peer) -> Vec<(Vec<u8>, Option<Said>)> {
    let long = [7; 130];
    vec![
        (peer.frame(TEXT, "one"), Some(Said::Message("one".into()))),
        (peer.frame(0x01, "tw"), None),
        (peer.frame(PING, "ping"), Some(Said::Ping)),
        (peer.frame(0x80, "o"), Some(Said::Message("two".into()))),
        (peer.frame(BINARY, long), Some(Said::Message(Message::from(&long[..])))),
        (peer.frame(CLOSE, close_payload(1000, "bye")), Some(Said::Close)),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum Said {
    Message(Message),
    Ping,
    Close,
}

/// What was said in the first `len` bytes of the script.
fn said(script: &[(Vec<u8>, Option<Said>)], len: usize) -> Vec<Said> {
    let mut end = 0;
    script
        .iter()
        .filter(|(bytes, _)| {
            end += bytes.len();
            end <= len
        })
        .filter_map(|(_, said)| said.clone())
        .collect()
}

/// Receives and replies until the end.
fn echo(receiving: &mut impl Receiving) -> (Vec<Message>, Result<(), RecvError>) {
    let mut messages = Vec::new();
    loop {
        match run(receiving.next()) {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, Ok(())),
            Err(error) => return (messages, Err(error)),
        }
    }
}

/// Whether the end is the one that the fault makes.
fn check_end(end: &Result<(), RecvError>, fault: Fault, is_closed: bool) {
    let is_right = match (end, fault) {
        (Ok(()), _) => is_closed,
        (Err(RecvError::Cut), Fault::Error(ErrorKind::UnexpectedEof))
        | (Err(RecvError::Abnormal), Fault::Eof) => !is_closed,
        (Err(RecvError::Io(error)), Fault::Error(kind)) => {
            !is_closed && kind != ErrorKind::UnexpectedEof && error.kind() == kind
        }
        _ => false,
    };
    assert!(is_right, "{end:?} after {fault:?}");
}

#[test]
fn a_read_that_fails_at_any_byte_is_told_after_what_came_before() {
    let faults = KINDS.map(Fault::Error).into_iter().chain([Fault::Eof]);
    for (role, fault) in [Role::Server, Role::Client]
        .into_iter()
        .flat_map(|role| faults.clone().map(move |fault| (role, fault)))
    {
        for (manner, is_split) in
            Manner::ALL.into_iter().flat_map(|manner| [(manner, false), (manner, true)])
        {
            // The peer reads nothing, so everything must find room.
            let manner = Manner { capacity: usize::MAX, ..manner };
            let probe = socket_and_peer(manner, role, &Config::new()).1;
            let script = script(&probe);
            let bytes: Vec<u8> = script.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            let step = if cfg!(miri) { 7 } else { 1 };
            for len in (0..=bytes.len()).step_by(step) {
                let (mut socket, mut peer) = socket_and_peer(manner, role, &Config::new());
                match fault {
                    Fault::Error(kind) => {
                        peer.stream.give(&bytes);
                        socket.get_mut().read_fails = Some((len, kind));
                    }
                    Fault::Eof => {
                        peer.stream.give(&bytes[..len]);
                        peer.stream.end();
                    }
                }
                let said = said(&script, len);
                let is_closed = said.contains(&Said::Close);
                let (messages, end) = if is_split {
                    let (mut reader, _writer) = socket.split();
                    let result = echo(&mut reader);
                    check_end(&echo(&mut reader).1, fault, is_closed);
                    result
                } else {
                    let result = echo(&mut socket);
                    check_end(&echo(&mut socket).1, fault, is_closed);
                    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                    let next = std::pin::Pin::new(&mut socket).poll_next(&mut context);
                    assert!(matches!(next, Poll::Ready(None)));
                    result
                };
                check_end(&end, fault, is_closed);
                let expected: Vec<_> = said
                    .iter()
                    .filter_map(|said| match said {
                        Said::Message(message) => Some(message.clone()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(messages, expected);
                let answers: Vec<_> = said
                    .iter()
                    .filter_map(|said| match said {
                        Said::Ping => Some(Frame::new(PONG, "ping")),
                        Said::Close => Some(Frame::new(CLOSE, close_payload(1000, "bye"))),
                        Said::Message(_) => None,
                    })
                    .collect();
                // An answer is lost only if the stream ended before it was written.
                peer.read();
                let (sent, _) = frames(&peer.bytes);
                assert_eq!(sent, answers[..sent.len()]);
                if is_closed || !manner.stutters && !manner.holds {
                    assert_eq!(sent, answers, "{len} {manner:?}");
                }
            }
        }
    }
}

/// The kinds of error of the call and of two later ones.
fn kind_of<T: std::fmt::Debug>(result: &Result<T, SendError>) -> Option<ErrorKind> {
    match result {
        Ok(_) => None,
        Err(SendError::Io(error)) => Some(error.kind()),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn a_write_that_fails_at_any_byte_is_told_and_nothing_is_told_as_sent_that_was_not() {
    for (role, kind) in [Role::Server, Role::Client]
        .into_iter()
        .flat_map(|role| KINDS.into_iter().map(move |kind| (role, kind)))
    {
        for manner in Manner::ALL {
            let manner = Manner { capacity: usize::MAX, ..manner };
            let sent: Vec<Message> =
                vec!["first".into(), Message::from(&[1; 200][..]), "".into(), "last".into()];
            for len in 0.. {
                let (mut socket, mut peer) = socket_and_peer(manner, role, &Config::new());
                socket.get_mut().write_fails = Some((len, kind));
                peer.send(TEXT, "before");
                let results = send_all(&mut socket, &sent);
                let told = results.iter().take_while(|result| result.is_ok()).count();
                peer.read();
                let (whole, rest) = frames(&peer.bytes);
                assert!(whole.len() >= told, "{told} are told as sent, {whole:?} were");
                let expected: Vec<_> = sent.iter().map(Frame::of).take(whole.len()).collect();
                assert_eq!(whole, expected);
                for result in &results[told..] {
                    assert_eq!(kind_of(result), Some(kind), "{results:?}");
                }
                if told == sent.len() {
                    assert_eq!(rest, 0);
                    break;
                }
                assert_eq!(socket.buffered(), 0, "what waited is discarded");
                // What the peer has sent before is still received, as far as it can be read now.
                if !manner.stutters {
                    let before = run(socket.next()).expect("it was sent before");
                    assert_eq!(before, Some("before".into()));
                }
                for _ in 0..2 {
                    match run(socket.next()) {
                        Err(RecvError::Io(error)) => assert_eq!(error.kind(), kind),
                        other => panic!("{other:?}"),
                    }
                    let closed = socket.start_close(CloseCode::NORMAL, "");
                    assert_eq!(kind_of(&closed), Some(kind));
                    assert_eq!(kind_of(&run(socket.flush())), Some(kind));
                    assert_eq!(kind_of(&run(socket.ping(b""))), Some(kind));
                }
            }
        }
    }
}

/// Sends all, by `send` and by `feed` and `flush`.
fn send_all(socket: &mut WebSocket<Stream>, messages: &[Message]) -> Vec<Result<(), SendError>> {
    let send = async |at: usize, message: &Message| {
        if at % 2 == 0 {
            return socket.send(message).await;
        }
        socket.feed(message.clone()).await?;
        socket.flush().await
    };
    run(async move {
        let mut send = send;
        let mut results = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            results.push(send(at, message).await);
        }
        results
    })
}

#[test]
fn a_peer_that_has_closed_and_is_gone_is_a_clean_end() {
    for (role, manner) in
        [Role::Server, Role::Client].into_iter().flat_map(|role| Manner::ALL.map(|it| (role, it)))
    {
        let manner = Manner { capacity: usize::MAX, ..manner };
        for (len, is_split) in (0..8).flat_map(|len| [(len, false), (len, true)]) {
            let (mut socket, peer) = socket_and_peer(manner, role, &Config::new());
            peer.send(TEXT, "last");
            peer.send(CLOSE, close_payload(1001, ""));
            socket.get_mut().write_fails = Some((len, ErrorKind::BrokenPipe));
            let (messages, end) = if is_split {
                let (mut reader, _writer) = socket.split();
                let result = echo(&mut reader);
                assert!(echo(&mut reader).1.is_ok());
                result
            } else {
                let result = echo(&mut socket);
                assert!(echo(&mut socket).1.is_ok());
                let code = socket.peer_close().expect("it has closed").code;
                assert_eq!(code, Some(CloseCode::GOING_AWAY));
                result
            };
            assert_eq!(messages, ["last".into()]);
            end.expect("a clean end");
        }
    }
}

#[test]
fn a_transport_that_takes_nothing_is_an_error_and_no_loop() {
    struct TakesNothing;

    impl windlass_websocket::Transport for TakesNothing {
        fn poll_read(
            &mut self,
            _: &mut std::task::Context<'_>,
            _: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_write(
            &mut self,
            _: &mut std::task::Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(0))
        }

        fn poll_flush(&mut self, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(&mut self, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    let mut socket = WebSocket::from_upgraded(TakesNothing, &[], Role::Server, &Config::new());
    for _ in 0..2 {
        let Poll::Ready(sent) = poll_once(socket.send("text")) else { panic!("it waits") };
        assert_eq!(kind_of(&sent), Some(ErrorKind::WriteZero));
    }
}
