//! Futures that are dropped after every possible poll.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use futures_core::Stream as _;
use futures_sink::Sink;
use windlass_websocket::{
    CloseCode, Config, Message, Outgoing, Prepared, Reader, RecvError, Role, SendError,
};

use crate::{
    bed::{Manner, Stream, run},
    peer::{
        BINARY, CLOSE, Frame, PING, PONG, Peer, Receiving, Sending, TEXT, close_payload,
        socket_and_peer,
    },
};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// Polls a future at most `polls` times, and drops it. `between` runs after each poll.
fn poll_some<F: Future>(future: F, polls: usize, mut between: impl FnMut()) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
        between();
    }
    None
}

/// Runs a future to its end, while the peer reads.
fn finish<F: Future>(future: F, peer: &mut Peer) -> F::Output {
    poll_some(future, 1_000_000, || peer.read()).expect("the future makes progress")
}

/// The messages that are sent: of every kind, and around the limits of the frame's forms. Long ones
/// only where a call takes more than a byte.
fn outgoing(manner: Manner) -> Vec<(Outgoing<'static>, Message)> {
    let config = Config::new();
    let mut lens = vec![0, 1, 126];
    if manner.chunk > 1 && !cfg!(miri) {
        lens.push(1100);
    }
    let mut all = Vec::new();
    for len in lens {
        let message = Message::from("x".repeat(len));
        all.push((Outgoing::Owned(message.clone()), message.clone()));
        all.push((Prepared::new(message.clone(), &config).into(), message));
        let bytes: &'static [u8] = &[7; 1100][..len];
        all.push((bytes.into(), bytes.into()));
    }
    all
}

/// For every number of polls, until the call ends: `call` is dropped after so many, then `last` is
/// sent. `check` gets whether the call has ended, and the frames.
fn drop_after_every_poll<W: Sending>(
    manner: Manner,
    make: impl Fn() -> (W, Option<Reader<Stream>>, Peer),
    call: impl AsyncFn(&mut W) -> Result<(), SendError>,
    check: impl Fn(bool, &[Frame]),
) {
    for polls in 0.. {
        let (mut writer, reader, mut peer) = make();
        let first = Outgoing::from("first");
        finish(writer.feed(first), &mut peer).expect("it is open");
        // The peer does not read while the call waits, if that lets it wait.
        let ended = poll_some(call(&mut writer), polls, || {
            if manner.capacity != usize::MAX {
                let bytes = peer.stream.take_some(2);
                peer.bytes.extend(bytes);
            }
        });
        let has_ended = ended.is_some();
        ended.unwrap_or(Ok(())).expect("the stream is good");
        finish(writer.send("last".into()), &mut peer).expect("it is open");
        let frames = peer.frames();
        assert_eq!(frames[0], Frame::new(TEXT, "first"));
        assert_eq!(frames[frames.len() - 1], Frame::new(TEXT, "last"));
        check(has_ended, &frames[1..frames.len() - 1]);
        drop(reader);
        if has_ended {
            return;
        }
    }
}

/// Runs a test for a whole socket and for a writer, of both roles, in all manners.
macro_rules! for_all_writers {
    ($config:expr, |$manner:ident, $make:ident| $body:expr) => {
        for $manner in Manner::ALL {
            for role in ROLES {
                let config = $config;
                {
                    let $make = || {
                        let (socket, peer) = socket_and_peer($manner, role, &config);
                        (socket, None::<Reader<Stream>>, peer)
                    };
                    $body
                }
                let $make = || {
                    let (socket, peer) = socket_and_peer($manner, role, &config);
                    let (reader, writer) = socket.split();
                    (writer, Some(reader), peer)
                };
                $body
            }
        }
    };
}

#[test]
fn a_dropped_send_has_sent_the_whole_message_or_nothing() {
    for_all_writers!(Config::new(), |manner, make| {
        for (outgoing, message) in outgoing(manner) {
            drop_after_every_poll(
                manner,
                make,
                async |writer| Sending::send(writer, outgoing.clone()).await,
                |has_ended, frames| match frames {
                    [frame] => assert_eq!(*frame, Frame::of(&message)),
                    [] => assert!(!has_ended, "an accepted message is lost"),
                    _ => panic!("too many frames: {frames:?}"),
                },
            );
        }
    });
}

#[test]
fn a_dropped_feed_has_queued_nothing() {
    for_all_writers!(Config::new().high_watermark(0), |manner, make| {
        for (outgoing, message) in outgoing(manner) {
            drop_after_every_poll(
                manner,
                make,
                async |writer| Sending::feed(writer, outgoing.clone()).await,
                |has_ended, frames| {
                    let expected = has_ended.then(|| Frame::of(&message));
                    assert_eq!(frames, expected.as_slice());
                },
            );
        }
    });
}

#[test]
fn a_dropped_flush_or_ping_loses_nothing() {
    for_all_writers!(Config::new(), |manner, make| {
        drop_after_every_poll(
            manner,
            make,
            async |writer| {
                // The call is dropped in its second wait, so it was fed always.
                Sending::feed(writer, "second".into()).await?;
                Sending::flush(writer).await
            },
            |has_ended, frames| match frames {
                [] => assert!(!has_ended),
                _ => assert_eq!(frames, [Frame::new(TEXT, "second")]),
            },
        );
        drop_after_every_poll(
            manner,
            make,
            async |writer| Sending::ping(writer, b"ping").await,
            |has_ended, frames| match frames {
                [] => assert!(!has_ended),
                _ => assert_eq!(frames, [Frame::new(PING, "ping")]),
            },
        );
    });
}

#[test]
fn a_dropped_close_goes_on_with_the_next_call() {
    for_all_writers!(Config::new(), |_manner, make| {
        for polls in 0.. {
            let (mut writer, reader, mut peer) = make();
            finish(Sending::feed(&mut writer, "first".into()), &mut peer).expect("it is open");
            let mut has_answered = false;
            let mut answer = |peer: &mut Peer| {
                let bytes = peer.stream.take_some(3);
                peer.bytes.extend(bytes);
                let (frames, _) = crate::peer::frames(&peer.bytes);
                if !has_answered && frames.iter().any(|frame| frame.first == CLOSE) {
                    has_answered = true;
                    peer.send(TEXT, "late");
                    peer.send(CLOSE, close_payload(1000, "bye"));
                }
            };
            let ended = poll_some(writer.send_close(CloseCode::GOING_AWAY, "away"), polls, || {
                answer(&mut peer);
            });
            let has_ended = ended.is_some();
            poll_some(writer.send_close(CloseCode::GOING_AWAY, "away"), 1_000_000, || {
                answer(&mut peer);
            })
            .expect("it makes progress")
            .expect("the peer is good");
            // A second code does not replace the first.
            poll_some(writer.send_close(CloseCode::NORMAL, ""), 1_000_000, || answer(&mut peer))
                .expect("it makes progress")
                .expect("nothing is sent");
            answer(&mut peer);
            if let Some(mut reader) = reader {
                peer.read();
                answer(&mut peer);
                let late = poll_some(reader.next(), 10_000, || {}).expect("it ends");
                assert_eq!(late.expect("the peer is good"), Some("late".into()));
                let end = poll_some(reader.next(), 10_000, || {}).expect("it ends");
                assert_eq!(end.expect("the peer is good"), None);
                assert_eq!(reader.peer_close().expect("it has come").reason, "bye");
            }
            let close = Frame::new(CLOSE, close_payload(1001, "away"));
            assert_eq!(peer.frames(), [Frame::new(TEXT, "first"), close]);
            assert!(peer.stream.is_ended());
            if has_ended {
                break;
            }
        }
    });
}

/// What a peer sends, and the messages in it.
fn script(peer: &Peer) -> (Vec<u8>, Vec<Message>) {
    let long = if cfg!(miri) { "y".repeat(130) } else { "y".repeat(300) };
    let parts: [(u8, &[u8]); 10] = [
        (TEXT, b"one"),
        (0x01, "zw\u{f6}".as_bytes().split_at(3).0),
        (PING, b"in between"),
        (0x00, "zw\u{f6}".as_bytes().split_at(3).1),
        (PING, b""),
        (0x80, b"lf"),
        (BINARY, long.as_bytes()),
        (TEXT, b""),
        (BINARY, b""),
        (PONG, b"unsolicited"),
    ];
    let bytes = parts.map(|(first, payload)| peer.frame(first, payload)).concat();
    let binary = |bytes: &[u8]| Message::from(bytes);
    let messages =
        vec!["one".into(), "zw\u{f6}lf".into(), binary(long.as_bytes()), "".into(), binary(b"")];
    (bytes, messages)
}

/// Receives everything with futures that are dropped after `polls` polls.
fn receive_with_drops(
    receiving: &mut impl Receiving,
    peer: &mut Peer,
    polls: usize,
    replies: bool,
) -> Vec<Message> {
    let mut messages = Vec::new();
    for _ in 0..1_000_000 {
        let next = async {
            if replies { receiving.reply_to_next().await } else { receiving.next().await }
        };
        match poll_some(next, polls, || peer.read()) {
            None => peer.read(),
            Some(Ok(Some(message))) => messages.push(message),
            Some(Ok(None)) => return messages,
            Some(Err(error)) => panic!("{error}"),
        }
    }
    panic!("it does not end");
}

#[test]
fn a_dropped_recv_loses_nothing() {
    for manner in Manner::ALL {
        for (role, polls) in ROLES.into_iter().flat_map(|role| [1, 2, 3].map(|it| (role, it))) {
            for (replies, is_split) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let (mut socket, mut peer) = socket_and_peer(manner, role, &Config::new());
                let (bytes, expected) = script(&peer);
                peer.stream.give(&bytes);
                peer.send(CLOSE, close_payload(1000, ""));
                let received = if is_split {
                    let (mut reader, _writer) = socket.split();
                    receive_with_drops(&mut reader, &mut peer, polls, replies)
                } else {
                    receive_with_drops(&mut socket, &mut peer, polls, replies)
                };
                assert_eq!(received, expected, "{manner:?} {role:?}");
                let mut answers = vec![
                    Frame::new(PONG, "in between"),
                    Frame::new(PONG, ""),
                    Frame::new(CLOSE, close_payload(1000, "")),
                ];
                let frames = peer.frames();
                if replies {
                    let echoes = frames.iter().filter(|frame| frame.first < CLOSE);
                    assert!(echoes.eq(&expected.iter().map(Frame::of).collect::<Vec<_>>()));
                    // The message "one" comes before the pings, and is replied to before them.
                    assert_eq!(frames[0], Frame::of(&expected[0]));
                    assert_eq!(frames[1], answers[0]);
                }
                answers.dedup();
                let controls: Vec<_> =
                    frames.into_iter().filter(|frame| frame.first >= CLOSE).collect();
                assert_eq!(controls, answers);
            }
        }
    }
}

#[test]
fn the_poll_methods_keep_order_when_they_alternate() {
    for manner in Manner::ALL {
        for role in ROLES {
            let config = Config::new().high_watermark(10);
            let (mut socket, mut peer) = socket_and_peer(manner, role, &config);
            let (bytes, expected) = script(&peer);
            peer.stream.give(&bytes);
            let mut context = Context::from_waker(Waker::noop());
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            for turn in 0.. {
                assert!(turn < 1_000_000, "it does not end");
                match Pin::new(&mut socket).poll_next(&mut context) {
                    Poll::Ready(Some(message)) => received.push(message.expect("it is good")),
                    Poll::Ready(None) => break,
                    Poll::Pending => {}
                }
                if sent.len() < 20 {
                    if let Poll::Ready(ready) = Pin::new(&mut socket).poll_ready(&mut context) {
                        ready.expect("it is open");
                        let message = Message::from(format!("message {}", sent.len()));
                        Pin::new(&mut socket).start_send(message.clone()).expect("it is open");
                        sent.push(message);
                    }
                } else if turn % 2 == 0 {
                    let _ = Pin::new(&mut socket).poll_flush(&mut context);
                } else if received.len() == expected.len()
                    && Pin::new(&mut socket).poll_close(&mut context).is_ready()
                    && !peer.frames().is_empty()
                    && socket.peer_close().is_none()
                {
                    peer.send(CLOSE, close_payload(1000, ""));
                }
                peer.read();
            }
            assert_eq!(received, expected);
            let frames = peer.frames();
            let messages = frames.iter().filter(|frame| frame.first < CLOSE);
            assert!(messages.eq(&sent.iter().map(Frame::of).collect::<Vec<_>>()));
            assert_eq!(frames[frames.len() - 1], Frame::new(CLOSE, close_payload(1000, "")));
            assert_eq!(frames.iter().filter(|frame| frame.first == CLOSE).count(), 1);
        }
    }
}

#[test]
fn an_abandoned_future_keeps_the_end_for_the_next_call() {
    let (mut socket, peer) = socket_and_peer(Manner::SMOOTH, Role::Server, &Config::new());
    assert!(poll_some(socket.recv(), 1, || {}).is_none());
    peer.stream.end();
    for _ in 0..3 {
        assert!(matches!(run(socket.recv()), Err(RecvError::Abnormal)));
    }
}
