//! Calls of a connection in its own callbacks, and the ways in which it ends.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
};

use windlass_server::{CloseCode, ControlError, Prepared, SendError, SubscribeError, http::Accept};
use windlass_ws::deflate::DeflateConfig;

use crate::fixture::{Client, ClientEvent, ConnData, Fixture, TestHandler, text};

#[test]
fn messages_come_back_in_place() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    client.send("hello");
    client.send(&[1, 2, 3][..]);
    let long = vec![7; 100_000];
    client.send(&long[..]);
    assert_eq!(fixture.next_event(&mut client), text("hello"));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![1, 2, 3]));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(long));
    client.close(1000, "bye");
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1000), "bye".into()));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    drop(client);
    fixture.until_event("close / Peer 1000 \"bye\"");
    let stats = fixture.service.stats();
    assert_eq!((stats.connections, stats.opened, stats.closed), (0, 1, 1));
    assert_eq!(
        (stats.messages_received, stats.bytes_received, stats.messages_sent),
        (3, 100_008, 3)
    );
}

/// Text goes through a check: what is not UTF-8 any more is not sent.
#[test]
fn changed_messages_come_back_in_place() {
    let handler = TestHandler::on_message(|connection, _, mut message| {
        if let Some(bytes) = message.bytes_mut() {
            bytes.reverse();
        }
        if message.is_empty() {
            // The reply follows other output.
            connection.publish("nobody", "a topic without members");
        }
        let is_bad = message.as_str() == Some("bad");
        match message.change_text(|bytes| bytes[..].make_ascii_uppercase()) {
            Ok(message) if is_bad => {
                message.change_text(|bytes| bytes[0] = 0xff).expect_err("it is not UTF-8");
            }
            changed => connection.reply_in_place(changed.unwrap()).unwrap(),
        }
    });
    let mut fixture = Fixture::new(handler);
    let mut client = fixture.connect("/");
    for message in ["hello", "bad", "zwölf", ""] {
        client.send(message);
    }
    client.send(&[1, 2, 3][..]);
    for expected in ["HELLO", "ZWöLF", ""] {
        assert_eq!(fixture.next_event(&mut client), text(expected));
    }
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![3, 2, 1]));
}

#[test]
fn the_cut_does_not_matter() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = Client::of(TcpStream::connect(fixture.address).unwrap(), "/", None);
    let mut bytes =
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            .to_vec();
    for message in ["one", "two", "three"] {
        bytes.extend(client.frame(message));
    }
    for byte in bytes {
        client.write(&[byte]);
        fixture.turn();
    }
    fixture.until(|_| client.is_open().then_some(()));
    assert_eq!(
        [(); 3].map(|()| fixture.next_event(&mut client)),
        [text("one"), text("two"), text("three")]
    );
}

#[test]
fn bytes_after_the_upgrade_request_are_not_lost() {
    let handler = TestHandler::echo().on_open(|connection, _| connection.send("welcome").unwrap());
    let mut fixture = Fixture::new(handler);
    let mut client = Client::begin(fixture.address, "/", None);
    client.send("early");
    assert_eq!(
        [(); 2].map(|()| fixture.until(|_| if client.is_open() { client.poll() } else { None })),
        [text("welcome"), text("early")]
    );
}

#[test]
fn messages_leave_in_the_order_of_the_calls() {
    let prepared = Prepared::new("prepared");
    let mut fixture = Fixture::new(TestHandler::on_message(move |connection, _, message| {
        connection.send("before").unwrap();
        connection.send_prepared(&prepared).unwrap();
        connection.ping(b"ping").unwrap();
        connection.reply_in_place(message).unwrap();
        connection.send(&b"after"[..]).unwrap();
    }));
    let mut client = fixture.connect("/");
    client.send("one");
    client.send("two");
    for message in ["one", "two"] {
        let received = [(); 5].map(|()| fixture.next_event(&mut client));
        let after = ClientEvent::Binary(b"after".to_vec());
        assert_eq!(
            received,
            [
                text("before"),
                text("prepared"),
                ClientEvent::Ping(b"ping".to_vec()),
                text(message),
                after
            ]
        );
    }
}

#[test]
fn pings_are_answered_and_pings_and_pongs_are_reported() {
    let mut fixture = Fixture::new(TestHandler::on_message(|connection, _, _| {
        connection.ping(b"there?").unwrap()
    }));
    let mut client = fixture.connect("/");
    client.ping(b"hello");
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Pong(b"hello".to_vec()));
    client.send("x");
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Ping(b"there?".to_vec()));
    fixture.until_event("pong there?");
    assert_eq!(fixture.events(), ["open /", "ping hello", "pong there?"]);
}

#[test]
fn a_control_frame_that_cannot_be_is_rejected() {
    let mut fixture = Fixture::new(TestHandler::on_message(|connection, _, _| {
        assert_eq!(connection.ping(&[0; 126]), Err(ControlError::TooLong));
        assert_eq!(
            connection.close(CloseCode::NORMAL, &"x".repeat(124)),
            Err(ControlError::TooLong)
        );
        assert_eq!(connection.close(CloseCode::NO_STATUS, ""), Err(ControlError::BadCloseCode));
        assert!(!connection.is_closing());
        connection.close(CloseCode::new(4000), "enough").unwrap();
        assert_eq!(connection.close(CloseCode::NORMAL, ""), Err(ControlError::Closed));
        assert_eq!(connection.ping(b""), Err(ControlError::Closed));
        assert_eq!(connection.send("late"), Err(SendError::Closed));
        assert!(connection.is_closing());
        assert_eq!(connection.subscribe("late"), Err(SubscribeError::Closed));
    }));
    let mut client = fixture.connect("/");
    client.send("x");
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(4000), "enough".into()));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    drop(client);
    fixture.until_event("close / Local 4000 \"enough\"");
}

#[test]
fn nothing_comes_after_a_close_but_the_end() {
    let handler = TestHandler::on_message(|connection, _, message| {
        assert_eq!(message.as_str(), Some("first"), "the connection is closed");
        connection.send("last").unwrap();
        connection.close(CloseCode::NORMAL, "").unwrap();
    });
    let mut fixture = Fixture::new(handler);
    let mut client = fixture.connect("/");
    let bytes = [client.frame("first"), client.frame("second")].concat();
    client.write(&bytes);
    client.is_mute = true;
    assert_eq!(fixture.next_event(&mut client), text("last"));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1000), String::new()));
    client.is_mute = false;
    client.send_raw_after_close();
    fixture.settle();
    client.close_back();
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    drop(client);
    fixture.until_event("close / Local 1000 \"\"");
}

#[test]
fn a_violation_is_answered_and_named() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let frame = client.frame("fine");
    client.write(&[&frame[..], &[0x81, 1, b'x']].concat());
    assert_eq!(fixture.next_event(&mut client), text("fine"));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1002), String::new()));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    drop(client);
    fixture.until_event("close / Violation(Unmasked)");
    assert_eq!(fixture.service.stats().violations, 1);
}

#[test]
fn a_connection_that_ends_without_a_word_is_lost() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let client = fixture.connect("/");
    client.socket.shutdown(Shutdown::Write).unwrap();
    fixture.until_event("close / Lost");
    let client = fixture.connect("/reset");
    rustix::net::sockopt::set_socket_linger(&client.socket, Some(std::time::Duration::ZERO))
        .unwrap();
    drop(client);
    fixture.until_event(
        "close /reset Failed(Os { code: 104, kind: ConnectionReset, message: \"Connection reset by \
         peer\" })",
    );
}

#[test]
fn a_paused_connection_keeps_its_input() {
    let handler = TestHandler::on_message(|connection, _, message| {
        if message.as_str() == Some("pause") {
            connection.pause();
        }
        let _ = connection.reply_in_place(message);
    });
    let mut fixture = Fixture::new(handler);
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    for round in 0..3 {
        let bytes = [client.frame("pause"), client.frame("one"), client.frame("two")].concat();
        client.write(&bytes);
        assert_eq!(fixture.next_event(&mut client), text("pause"), "round {round}");
        fixture.expect_nothing(&mut client);
        client.send("three");
        fixture.expect_nothing(&mut client);
        assert!(fixture.with_hub(move |hub| hub.resume(id)));
        assert!(!fixture.with_hub(move |hub| hub.resume(id)), "it reads already");
        assert_eq!(
            [(); 3].map(|()| fixture.next_event(&mut client)),
            [text("one"), text("two"), text("three")]
        );
    }
}

#[test]
fn a_connection_paused_by_others_keeps_its_input() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    for round in 0..3 {
        client.send("one");
        assert_eq!(fixture.next_event(&mut client), text("one"), "round {round}");
        assert!(fixture.with_hub(move |hub| hub.pause(id) && !hub.pause(id)), "once");
        client.send("two");
        fixture.expect_nothing(&mut client);
        assert!(fixture.with_hub(move |hub| hub.resume(id) && !hub.resume(id)), "once");
        assert_eq!(fixture.next_event(&mut client), text("two"));
        // A pause that is undone in the same turn has no effect.
        assert!(fixture.with_hub(move |hub| hub.pause(id) && hub.resume(id)));
        client.send("three");
        assert_eq!(fixture.next_event(&mut client), text("three"));
        assert!(fixture.with_hub(move |hub| hub.pause(id) && hub.resume(id) && hub.pause(id)));
        client.send("four");
        fixture.expect_nothing(&mut client);
        assert!(fixture.with_hub(move |hub| hub.resume(id)));
        assert_eq!(fixture.next_event(&mut client), text("four"));
    }
    // A paused connection is not idle, and its Close frame is read all the same.
    assert!(
        fixture.with_hub(
            move |hub| hub.pause(id) && hub.close(id, CloseCode::NORMAL, "enough").is_ok()
        )
    );
    assert_eq!(
        fixture.next_event(&mut client),
        ClientEvent::Close(Some(1000), "enough".to_owned())
    );
    client.write(&close_frame());
    fixture.until_event("close / Local 1000 \"enough\"");
    assert!(!fixture.with_hub(move |hub| hub.pause(id)), "it is gone");
}

/// Returns a client's Close frame with code 1000 and a masking key of zero.
fn close_frame() -> Vec<u8> {
    vec![0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8]
}

#[test]
fn a_connection_knows_its_peer_and_its_protocol() {
    let handler = TestHandler::on_message(|connection, _, _| {
        let peer = connection.peer().unwrap().to_string();
        let told = format!("{peer} {:?}", connection.protocol());
        connection.send(&*told).unwrap();
    })
    .on_upgrade(|request| {
        let chosen = request.choose(&["chess", "go"]).unwrap().to_owned();
        assert!(request.peer().ip().unwrap().is_loopback());
        Ok(Accept::new(ConnData::default()).protocol(chosen))
    });
    let mut fixture = Fixture::new(handler);
    for protocol in ["chess", "go", "go"] {
        let mut socket = TcpStream::connect(fixture.address).unwrap();
        write!(
            socket,
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: x, {protocol}\r\n\r\n"
        )
        .unwrap();
        let address = socket.local_addr().unwrap();
        let mut client = Client::of(socket, "/", None);
        client.skip_head();
        fixture.until(|_| client.is_open().then_some(()));
        client.send("who?");
        assert_eq!(
            fixture.next_event(&mut client),
            text(&format!("{address} Some(\"{protocol}\")"))
        );
    }
}

#[test]
fn negotiated_compression_is_used() {
    let config = DeflateConfig::DEFAULT;
    let mut fixture = Fixture::with(TestHandler::echo(), |options| options.deflate = Some(config));
    let mut client = fixture.connect_with("/", Some(&config));
    assert!(client.response.contains("permessage-deflate"), "{}", client.response);
    let long = "so long ".repeat(1000);
    for _ in 0..3 {
        client.send(&*long);
        assert_eq!(fixture.next_event(&mut client), text(&long));
    }
    client.send("short");
    assert_eq!(fixture.next_event(&mut client), text("short"));
    assert!(client.read_bytes < 2000, "{}", client.read_bytes);
}

#[test]
fn an_id_is_valid_for_one_connection_only() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let client = fixture.connect("/");
    let id = fixture.ids()[0];
    assert!(fixture.with_hub(move |hub| hub.is_open(id)));
    drop(client);
    fixture.until_event("close / Lost");
    let mut next = fixture.connect("/");
    let other = fixture.ids()[1];
    assert_ne!(id, other);
    assert_eq!(id.to_bits() & 0xff_ffff, other.to_bits() & 0xff_ffff, "the place is the same");
    fixture.with_hub(move |hub| {
        assert!(!hub.is_open(id) && hub.is_open(other));
        assert_eq!(hub.send(id, "x"), Err(SendError::Closed));
        assert_eq!(hub.close(id, CloseCode::NORMAL, ""), Err(ControlError::Closed));
        assert_eq!(hub.subscribe(id, "x"), Err(SubscribeError::Closed));
        assert!(!hub.unsubscribe(id, "x") && !hub.resume(id));
        assert_eq!(hub.buffered(id), 0);
        hub.send(other, "hello").unwrap();
        assert!(hub.buffered(other) > 0);
    });
    assert_eq!(fixture.next_event(&mut next), text("hello"));
}

#[test]
fn others_send_and_close_in_order() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    let prepared = Prepared::new(&b"two"[..]);
    fixture.with_hub(move |hub| {
        hub.send(id, "one").unwrap();
        hub.send_prepared(id, &prepared).unwrap();
        assert_eq!(hub.close(id, CloseCode::NO_STATUS, ""), Err(ControlError::BadCloseCode));
        assert_eq!(hub.close(id, CloseCode::NORMAL, &"x".repeat(124)), Err(ControlError::TooLong));
        hub.close(id, CloseCode::new(3000), "done").unwrap();
        assert_eq!(hub.send(id, "late"), Err(SendError::Closed));
        assert!(!hub.is_open(id));
    });
    let received = [(); 4].map(|()| fixture.next_event(&mut client));
    assert_eq!(
        received,
        [
            text("one"),
            ClientEvent::Binary(b"two".to_vec()),
            ClientEvent::Close(Some(3000), "done".into()),
            ClientEvent::End(None)
        ]
    );
    drop(client);
    fixture.until_event("close / Local 3000 \"done\"");
}
