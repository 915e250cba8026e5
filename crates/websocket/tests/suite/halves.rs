//! The two halves in two tasks.

use std::{
    cell::{Cell, RefCell},
    io::ErrorKind,
};

use windlass_websocket::{
    CloseCode, Config, Message, Reader, RecvError, Role, SendError, Transport, WebSocket, Writer,
};

use crate::{
    bed::{Manner, Stream, poll_once, run, sockets},
    executor::{Executor, Order},
    peer::{CLOSE, Frame, PING, PONG, Receiving, TEXT, close_payload, frames, socket_and_peer},
};

fn assert_send<T: Send>(_: &T) {}

/// Compiles only if the halves, and futures of them, can be sent to another thread.
#[allow(dead_code, reason = "it is compiled, and that is the test")]
fn halves_are_send<S: Transport + Send>(mut reader: Reader<S>, mut writer: Writer<S>) {
    assert_send(&reader);
    assert_send(&writer);
    assert_send(&reader.recv());
    assert_send(&writer.send("text"));
    assert_send(&writer.feed("text"));
    assert_send(&writer.flush());
    assert_send(&writer.ping(b""));
    assert_send(&writer.close(CloseCode::NORMAL, ""));
    let echo = async move {
        while let Ok(Some(message)) = reader.recv().await {
            let _ = writer.send(message.as_bytes()).await;
            let _ = message.reply();
        }
    };
    assert_send(&echo);
}

const COUNT: usize = if cfg!(miri) { 2 } else { 30 };

/// Under Miri the ones that differ most: one byte a call, and one that holds what is written.
const MANNERS: &[Manner] =
    if cfg!(miri) { &[Manner::ALL[3], Manner::ALL[4]] } else { &Manner::ALL };

/// Sends messages, some of them fed, and closes.
async fn send_all(writer: &mut Writer<Stream>, name: &str, closes: bool) {
    for number in 0..COUNT {
        let message = Message::from(format!("{name} {number} {}", "x".repeat(number * 7 % 130)));
        match number % 3 {
            0 => writer.send(message).await.expect("it is open"),
            1 => writer.feed(message).await.expect("it is open"),
            _ => writer.send(&*message.as_str().expect("a text").to_owned()).await.expect("open"),
        }
        if number % 5 == 0 {
            writer.ping(name.as_bytes()).await.expect("it is open");
        }
    }
    writer.flush().await.expect("it is open");
    if closes {
        writer.close(CloseCode::NORMAL, name).await.expect("it is open");
    }
}

#[test]
fn both_halves_of_both_sides_run_beside_each_other_and_no_wake_up_is_lost() {
    for &manner in MANNERS {
        for order in Order::ALL {
            let config = Config::new().high_watermark(20);
            let (server, client) = sockets(manner, &config);
            let (mut server_reader, mut server_writer) = server.split();
            let (mut client_reader, mut client_writer) = client.split();
            let (echoed, news, asked) = (Cell::new(0), Cell::new(0), Cell::new(0));
            let (all_received, client_done) = (Cell::new(false), Cell::new(false));
            let mut executor = Executor::new(order);
            executor.spawn(async {
                while let Some(message) = server_reader.recv().await.expect("it is good") {
                    assert!(message.as_str().expect("a text").starts_with("ask"));
                    asked.set(asked.get() + 1);
                    message.reply().expect("it is open");
                }
            });
            executor.spawn(send_all(&mut server_writer, "news", false));
            executor.spawn(async {
                while let Some(message) = client_reader.recv().await.expect("it is good") {
                    let text = message.as_str().expect("a text");
                    let (counter, name) =
                        if text.starts_with("ask") { (&echoed, "ask") } else { (&news, "news") };
                    let start = format!("{name} {} ", counter.get());
                    assert!(text.starts_with(&start), "{text:?} instead of {start:?}");
                    counter.set(counter.get() + 1);
                    all_received.set(echoed.get() == COUNT && news.get() == COUNT);
                }
            });
            executor.spawn(async {
                send_all(&mut client_writer, "ask", false).await;
                client_done.set(true);
            });
            executor.run();
            assert!(all_received.get() && client_done.get(), "{manner:?} {order:?}");
            assert_eq!(asked.get(), COUNT);
        }
    }
}

/// A stream that takes everything lets no other task run.
async fn let_others_run() {
    let mut is_first = true;
    std::future::poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(())
    })
    .await;
}

#[test]
fn a_close_by_one_writer_ends_all_four() {
    for &manner in MANNERS {
        for order in Order::ALL {
            let (server, client) = sockets(manner, &Config::new().high_watermark(20));
            let (mut server_reader, server_writer) = server.split();
            let (mut client_reader, mut client_writer) = client.split();
            let mut executor = Executor::new(order);
            executor.spawn(async {
                while server_reader.recv().await.expect("it is good").is_some() {}
                assert_eq!(server_reader.peer_close().expect("it has closed").reason, "ask");
            });
            executor.spawn(async {
                let mut writer = server_writer;
                let error = loop {
                    match writer.send("news").await {
                        Ok(()) => let_others_run().await,
                        Err(error) => break error,
                    }
                };
                assert!(matches!(error, SendError::Closed), "{error:?}");
            });
            executor.spawn(async {
                while client_reader.recv().await.expect("it is good").is_some() {}
            });
            executor.spawn(send_all(&mut client_writer, "ask", true));
            executor.run_to_end();
        }
    }
}

#[test]
fn pings_and_close_are_answered_while_the_writer_waits_for_the_peer() {
    for (role, order) in
        [Role::Server, Role::Client].into_iter().flat_map(|role| Order::ALL.map(|it| (role, it)))
    {
        let manner = Manner { capacity: 64, ..Manner::SMOOTH };
        let config = Config::new().high_watermark(100).answers_max(100);
        let (socket, peer) = socket_and_peer(manner, role, &config);
        let (mut reader, mut writer) = socket.split();
        let sent = Cell::new(0);
        let mut executor = Executor::new(order);
        let reading =
            executor.spawn(async { while reader.recv().await.expect("it is good").is_some() {} });
        let writing = executor.spawn(async {
            let error = loop {
                match writer.feed("0123456789").await {
                    Ok(()) => sent.set(sent.get() + 1),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, SendError::Closed), "{error:?}");
        });
        executor.run();
        let fed = sent.get();
        assert!((8..30).contains(&fed), "{fed} messages were accepted");
        for number in 0..5 {
            peer.send(PING, [number]);
        }
        executor.run();
        assert_eq!(sent.get(), fed, "the writer waits still");
        assert_eq!(peer.stream.take_received().len(), 64);
        assert!(!executor.is_done(reading));
        peer.send(CLOSE, close_payload(1000, ""));
        let mut pongs = 0;
        let mut all = Vec::new();
        for _ in 0..1000 {
            executor.run();
            all.extend(peer.stream.take_some(10));
            let is_over = executor.is_done(reading) && executor.is_done(writing);
            if is_over && peer.stream.is_ended() && peer.stream.take_some(0).is_empty() {
                all.extend(peer.stream.take_received());
                break;
            }
        }
        assert!(executor.is_done(reading) && executor.is_done(writing));
        // The frames of messages are of one length, so the torn one is passed over.
        let frame_len = 12 + if role == Role::Client { 4 } else { 0 };
        let (frames, rest) = frames(&all[frame_len - 64 % frame_len..]);
        assert_eq!(rest, 0);
        for frame in &frames {
            match frame.first {
                PONG => {
                    assert_eq!(frame.payload, [pongs]);
                    pongs += 1;
                }
                CLOSE => {}
                _ => assert_eq!(*frame, Frame::new(TEXT, "0123456789")),
            }
        }
        assert_eq!(pongs, 5);
        assert_eq!(frames[frames.len() - 1].first, CLOSE, "nothing follows it");
    }
}

#[test]
fn a_writer_that_waits_is_woken_when_the_peer_reads() {
    for order in Order::ALL {
        for reads in [false, true] {
            let manner = Manner { capacity: 10, ..Manner::SMOOTH };
            let (socket, mut peer) = socket_and_peer(manner, Role::Server, &Config::new());
            let (mut reader, mut writer) = socket.split();
            let mut executor = Executor::new(order);
            if reads {
                executor.spawn(async move {
                    let _ = reader.recv().await;
                });
            }
            let writing = executor.spawn(async {
                writer.send("x".repeat(100)).await.expect("it is open");
            });
            for _ in 0..11 {
                executor.run();
                assert!(!executor.is_done(writing) || peer.bytes.len() >= 90);
                peer.read();
            }
            executor.run();
            assert!(executor.is_done(writing));
        }
    }
}

#[test]
fn each_half_works_after_the_other_was_dropped() {
    for order in Order::ALL {
        let (socket, mut peer) =
            socket_and_peer(Manner::BYTE_BY_BYTE, Role::Server, &Config::new());
        let (reader, mut writer) = socket.split();
        let mut executor = Executor::new(order);
        let reading = executor.spawn(async move {
            let mut reader = reader;
            let _ = reader.recv().await;
        });
        executor.run();
        executor.cancel(reading);
        drop(executor);
        peer.send(PING, "nobody answers");
        run(writer.send("alone")).expect("it is open");
        assert_eq!(peer.frames(), [Frame::new(TEXT, "alone")]);
        run(writer.close(CloseCode::NORMAL, "")).expect("it is open");
        assert!(matches!(run(writer.send("more")), Err(SendError::Closed)));

        let (socket, mut peer) =
            socket_and_peer(Manner::BYTE_BY_BYTE, Role::Server, &Config::new());
        let (mut reader, mut writer) = socket.split();
        let mut executor = Executor::new(order);
        let writing = executor.spawn(async {
            writer.feed("left").await.expect("it is open");
        });
        executor.run();
        assert!(executor.is_done(writing));
        drop(executor);
        drop(writer);
        peer.send(PING, "ping");
        peer.send(TEXT, "text");
        assert_eq!(run(reader.next()).expect("it is good"), Some("text".into()));
        let _ = poll_once(reader.recv());
        peer.send(CLOSE, close_payload(1000, ""));
        assert_eq!(run(reader.next()).expect("it is good"), None);
        let expected = [
            Frame::new(TEXT, "left"),
            Frame::new(PONG, "ping"),
            Frame::new(CLOSE, close_payload(1000, "")),
        ];
        assert_eq!(peer.frames(), expected);
    }
}

#[test]
fn halves_of_one_socket_are_put_together_and_others_are_given_back() {
    for &manner in MANNERS {
        let (socket, mut peer) = socket_and_peer(manner, Role::Server, &Config::new());
        let (other, _other_peer) = socket_and_peer(manner, Role::Server, &Config::new());
        let (mut reader, mut writer) = socket.split();
        let (other_reader, other_writer) = other.split();
        let (bytes, mut polls) = (peer.frame(TEXT, "received in two pieces"), 0);
        peer.stream.give(&bytes[..9]);
        // As far as it goes: a part of each direction is under way.
        while polls < 40 {
            let _ = poll_once(reader.recv());
            polls += 1;
        }
        run(writer.feed("sent in two pieces")).expect("it is open");
        let _ = poll_once(writer.flush());

        let error = reader.reunite(other_writer).expect_err("they are of two sockets");
        assert!(error.to_string().contains("different sockets"));
        let (reader, other_writer) = (error.0, error.1);
        let mut socket: WebSocket<_> = reader.reunite(writer).expect("they are of one socket");
        other_reader.reunite(other_writer).expect("they are of one socket");

        peer.stream.give(&bytes[9..]);
        let received = run(socket.next()).expect("it is good");
        assert_eq!(received, Some("received in two pieces".into()));
        while poll_once(socket.flush()).is_pending() {
            peer.read();
        }
        assert_eq!(peer.frames(), [Frame::new(TEXT, "sent in two pieces")]);
    }
}

#[test]
fn a_write_that_fails_wakes_the_reader_too() {
    type Call = for<'a> fn(&'a mut Writer<Stream>) -> LocalCall<'a>;
    type LocalCall<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), SendError>> + 'a>>;
    let calls: [(&str, Call); 3] = [
        ("send", |writer| Box::pin(writer.send("text"))),
        ("ping", |writer| Box::pin(writer.ping(b"ping"))),
        ("close", |writer| Box::pin(writer.close(CloseCode::NORMAL, ""))),
    ];
    for (name, call) in calls {
        for (order, len) in Order::ALL.into_iter().flat_map(|order| [0, 1].map(|len| (order, len)))
        {
            let (mut socket, _peer) = socket_and_peer(Manner::SMOOTH, Role::Server, &Config::new());
            socket.get_mut().write_fails = Some((len, ErrorKind::BrokenPipe));
            let (mut reader, mut writer) = socket.split();
            let end = RefCell::new(None);
            let mut executor = Executor::new(order);
            executor.spawn(async { *end.borrow_mut() = Some(reader.next().await) });
            executor.run();
            executor.spawn(async {
                let error = call(&mut writer).await.expect_err("writing fails");
                assert!(matches!(error, SendError::Io(_)), "{error:?}");
            });
            executor.run();
            let end = end.borrow_mut().take();
            assert!(matches!(end, Some(Err(RecvError::Io(_)))), "{name}: {end:?}");
        }
    }
}

#[test]
fn a_reader_that_ends_wakes_the_writer_too() {
    for order in Order::ALL {
        let manner = Manner { capacity: 10, ..Manner::SMOOTH };
        let (mut socket, peer) = socket_and_peer(manner, Role::Server, &Config::new());
        socket.get_mut().write_fails = Some((15, ErrorKind::BrokenPipe));
        let (mut reader, mut writer) = socket.split();
        let mut executor = Executor::new(order);
        let writing = executor.spawn(async {
            writer.send("x".repeat(100)).await.expect_err("writing fails");
        });
        executor.run();
        let reading = executor.spawn(async {
            let _ = reader.next().await.expect_err("writing fails");
        });
        executor.run();
        assert!(!executor.is_done(writing) && !executor.is_done(reading));
        let _ = peer.stream.take_received();
        executor.run();
        assert!(executor.is_done(writing) && executor.is_done(reading), "{order:?}");
    }
}
