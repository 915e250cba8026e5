//! permessage-deflate (RFC 7692) in both roles.

use std::task::Poll;

use windlass_websocket::{
    Agreement, Compressor, Config, DeflateConfig, Message, Prepared, RecvError, Role, Violation,
    WebSocket,
};

use crate::{
    bed::{Manner, Stream, both, connected, pair, poll_once, run},
    echo::messages,
    peer::{Frame, Receiving, Sending, TEXT, frames},
};

/// Small changes of the defaults, by name.
fn variants() -> Vec<(&'static str, DeflateConfig)> {
    let with = |change: fn(&mut DeflateConfig)| {
        let mut deflate = DeflateConfig::DEFAULT;
        change(&mut deflate);
        deflate
    };
    vec![
        ("defaults", with(|_| {})),
        ("no threshold", with(|it| it.threshold = 0)),
        (
            "small windows",
            with(|it| {
                (it.server_max_window_bits, it.client_max_window_bits) = (9, 9);
            }),
        ),
        ("dedicated", with(|it| it.compressor = Compressor::Dedicated)),
        (
            "dedicated, small windows",
            with(|it| {
                it.compressor = Compressor::Dedicated;
                (it.server_max_window_bits, it.client_max_window_bits) = (10, 9);
            }),
        ),
        (
            "no takeover",
            with(|it| {
                it.compressor = Compressor::Dedicated;
                (it.server_no_context_takeover, it.client_no_context_takeover) = (true, true);
            }),
        ),
        ("fast", with(|it| it.level = 1)),
    ]
}

#[test]
fn replies_to_messages_that_inflate_are_bounded_within_one_read() {
    let (ours, theirs) = pair(Manner::SMOOTH);
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let agreed = |socket: WebSocket<Stream>| socket.with_agreement(Agreement::DEFAULT);
    let mut client = agreed(WebSocket::from_upgraded(theirs, &[], Role::Client, &config));
    for _ in 0..100 {
        run(client.send(&*compressible(20_000))).expect("it is open");
    }
    let bytes = ours.take_received();
    assert!(bytes.len() < 64 << 10, "one read");

    let mut plain = DeflateConfig::DEFAULT;
    plain.threshold = usize::MAX;
    let config = Config::new().deflate(plain).answers_max(50_000);
    let (stream, peer) = pair(Manner { capacity: 0, ..Manner::SMOOTH });
    let mut server = agreed(WebSocket::from_upgraded(stream, &bytes, Role::Server, &config));
    let mut replies = 0;
    while let Poll::Ready(message) = poll_once(server.recv()) {
        message.expect("it is good").expect("a message").reply().expect("it is open");
        replies += 1;
    }
    assert_eq!((replies, server.buffered()), (3, 3 * 20_004), "the peer reads nothing");
    drop(peer);
}

fn compressible(len: usize) -> String {
    "a text that is compressed well, ".repeat(len / 32 + 1)[..len].to_owned()
}

#[test]
fn messages_come_back_whatever_both_sides_agree_on() {
    for (ours, server_deflate) in variants() {
        for (theirs, client_deflate) in variants() {
            let manner = Manner { chunk: 5000, ..Manner::BYTE_BY_BYTE };
            let (server_config, client_config) =
                (Config::new().deflate(server_deflate), Config::new().deflate(client_deflate));
            let (mut server, mut client) = connected(manner, &server_config, &client_config);
            let is_agreed = server.has_compression();
            assert_eq!(is_agreed, client.has_compression(), "{ours} with {theirs}");
            let echo = async {
                for (at, _) in messages().iter().enumerate() {
                    let message = server.recv().await.expect("it is good").expect("a message");
                    if at % 2 == 0 {
                        message.reply().expect("it is open");
                    } else {
                        let message = message.to_message().expect("it is unchanged");
                        Sending::send(&mut server, message.into()).await.expect("it is open");
                    }
                }
                server.flush().await.expect("it is open");
            };
            let ask = async {
                for message in messages() {
                    client.send(&message).await.expect("it is open");
                    let received = client.next().await.expect("it is good");
                    assert!(received == Some(message), "{ours} with {theirs}");
                }
            };
            both(echo, ask);
        }
    }
}

/// How many bytes a socket writes for messages.
fn written(socket: &mut WebSocket<Stream>, messages: &[Message]) -> Vec<usize> {
    messages
        .iter()
        .map(|message| {
            let before = socket.get_ref().unread();
            run(socket.send(message)).expect("it is open");
            socket.get_ref().unread() - before
        })
        .collect()
}

#[test]
fn messages_from_the_threshold_on_are_compressed_and_context_makes_repeats_shorter() {
    for is_dedicated in [false, true] {
        let mut deflate = DeflateConfig::DEFAULT;
        deflate.threshold = 100;
        if is_dedicated {
            deflate.compressor = Compressor::Dedicated;
        }
        let config = Config::new().deflate(deflate);
        let (server, client) = connected(Manner::SMOOTH, &config, &config);
        for mut socket in [server, client] {
            let mut state = 1_u32;
            let noise: String = (0..5000)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    char::from(b'a' + (state >> 24) as u8 % 26)
                })
                .collect();
            let texts = [compressible(99), compressible(100), noise.clone(), noise];
            let lens = written(&mut socket, &texts.map(Message::from));
            assert!(lens[0] > 99 && lens[1] < 90, "{lens:?}");
            assert_eq!(lens[3] < lens[2] / 4, is_dedicated, "{lens:?}");
        }
    }
}

#[test]
fn without_an_agreement_nothing_is_compressed() {
    let with = Config::new().deflate(DeflateConfig::DEFAULT);
    for (ours, theirs) in [(&with, &Config::new()), (&Config::new(), &with)] {
        let (mut server, mut client) = connected(Manner::SMOOTH, ours, theirs);
        assert!(!server.has_compression() && !client.has_compression());
        let text = compressible(1000);
        run(server.send(&text[..])).expect("it is open");
        run(client.send(&text[..])).expect("it is open");
        assert!(client.get_ref().unread() > 1000);
        assert_eq!(run(client.next()).expect("it is good"), Some(text.clone().into()));
        assert_eq!(run(server.next()).expect("it is good"), Some(text.into()));
    }
}

#[test]
fn a_prepared_message_reaches_sockets_of_every_kind() {
    for (name, deflate) in variants() {
        let config = Config::new().deflate(deflate);
        for message in [Message::from(compressible(10)), compressible(5000).into()] {
            let news = Prepared::new(message.clone(), &config);
            assert_eq!(*news.message(), message);
            for (kind, client_deflate) in
                variants().into_iter().map(|(name, it)| (name, Some(it))).chain([("plain", None)])
            {
                let client_config =
                    client_deflate.map_or(Config::new(), |it| Config::new().deflate(it));
                let (mut server, mut client) = connected(Manner::SMOOTH, &config, &client_config);
                for _ in 0..2 {
                    // Between messages that change the context.
                    run(server.send(&*compressible(600))).expect("it is open");
                    run(server.send(news.clone())).expect("it is open");
                    run(server.feed(news.clone())).expect("it is open");
                    run(server.flush()).expect("it is open");
                    assert!(run(client.next()).expect("it is good").is_some());
                    for _ in 0..2 {
                        let received = run(client.next()).expect("it is good");
                        assert_eq!(received.as_ref(), Some(&message), "{name} to {kind}");
                    }
                }
                // A client sends it too.
                run(client.send(news.clone())).expect("it is open");
                let received = run(server.next()).expect("it is good");
                assert_eq!(received.as_ref(), Some(&message), "{name} from {kind}");
            }
        }
    }
}

#[test]
fn the_frame_of_a_prepared_message_is_the_same_for_all_sockets_that_can_share_it() {
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let news = Prepared::new(compressible(5000), &config);
    let sent: Vec<_> = (0..3)
        .map(|_| {
            let (mut server, client) = connected(Manner::SMOOTH, &config, &config);
            run(server.send(news.clone())).expect("it is open");
            client.get_ref().take_received()
        })
        .collect();
    assert!(sent.iter().all(|bytes| *bytes == sent[0] && bytes.len() < 500));
    let (mut server, client) = connected(Manner::SMOOTH, &config, &Config::new());
    run(server.send(news)).expect("it is open");
    let plain = client.get_ref().take_received();
    assert_eq!(frames(&plain).0, [Frame::new(TEXT, compressible(5000))]);
}

#[test]
fn a_message_that_becomes_too_long_or_too_much_is_an_error() {
    let zeros = vec![0; 1 << 20];
    for (limit, violation, code) in [
        (
            Config::new().message_max(1 << 19).inflate_ratio_max(None),
            Violation::MessageTooBig,
            1009_u16,
        ),
        (Config::new().inflate_ratio_max(Some(50)), Violation::RatioTooHigh, 1008),
    ] {
        let deflate = DeflateConfig::DEFAULT;
        let config = limit.deflate(deflate);
        let sender_config = Config::new().deflate(deflate);
        for is_server in [false, true] {
            let (mut sender, mut receiver) = if is_server {
                let (server, client) = connected(Manner::SMOOTH, &config, &sender_config);
                (client, server)
            } else {
                connected(Manner::SMOOTH, &sender_config, &config)
            };
            run(sender.send(&zeros[..])).expect("it is open");
            for _ in 0..2 {
                match run(receiver.recv()) {
                    Err(RecvError::Violation(told)) => assert_eq!(told, violation),
                    other => panic!("{other:?}"),
                }
            }
            // The peer gets the code.
            assert!(matches!(poll_once(sender.next()), Poll::Ready(Ok(None))));
            let code_told = sender.peer_close().expect("it has come").code;
            assert_eq!(code_told.map(windlass_websocket::CloseCode::get), Some(code));
        }
    }
}

/// A socket that begins after the handshake, with what it agreed on.
#[test]
fn an_upgraded_stream_takes_its_agreement() {
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let offers = [&b"permessage-deflate; server_max_window_bits=10"[..]];
    let (_, agreement) = windlass_ws::handshake::answer_extensions(offers, &DeflateConfig::DEFAULT)
        .expect("it is accepted");
    let (server, client) = crate::bed::sockets(Manner::SMOOTH, &config);
    let (mut server, mut client) =
        (server.with_agreement(agreement), client.with_agreement(agreement));
    assert!(server.has_compression() && client.has_compression());
    for socket in [&mut server, &mut client] {
        assert!(written(socket, &[compressible(5000).into()])[0] < 500);
    }
    assert_eq!(run(client.next()).expect("it is good"), Some(compressible(5000).into()));
    assert_eq!(run(server.next()).expect("it is good"), Some(compressible(5000).into()));
}
