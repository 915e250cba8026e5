//! What a connection does in its own callbacks, and how it ends.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
};

use windlass_server::{CloseCode, ControlError, Prepared, SendError, http::Accept};
use windlass_ws::deflate::DeflateConfig;

use crate::bed::{Acts, Bed, Client, Data, Got, text};

#[test]
fn messages_come_back_in_place() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    client.send("hello");
    client.send(&[1, 2, 3][..]);
    let long = vec![7; 100_000];
    client.send(&long[..]);
    assert_eq!(bed.next(&mut client), text("hello"));
    assert_eq!(bed.next(&mut client), Got::Binary(vec![1, 2, 3]));
    assert_eq!(bed.next(&mut client), Got::Binary(long));
    client.close(1000, "bye");
    assert_eq!(bed.next(&mut client), Got::Close(Some(1000), "bye".into()));
    assert_eq!(bed.next(&mut client), Got::End(None));
    drop(client);
    bed.until_noted("close / Peer 1000 \"bye\"");
    let stats = bed.service.stats();
    assert_eq!((stats.connections, stats.opened, stats.closed), (0, 1, 1));
    assert_eq!(
        (stats.messages_received, stats.bytes_received, stats.messages_sent),
        (3, 100_008, 3)
    );
}

#[test]
fn the_cut_does_not_matter() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = Client::of(TcpStream::connect(bed.address).unwrap(), "/", None);
    let mut bytes =
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            .to_vec();
    for message in ["one", "two", "three"] {
        bytes.extend(client.frame(message));
    }
    for byte in bytes {
        client.write(&[byte]);
        bed.turn();
    }
    bed.until(|_| client.is_open().then_some(()));
    assert_eq!([(); 3].map(|()| bed.next(&mut client)), [text("one"), text("two"), text("three")]);
}

#[test]
fn what_follows_the_request_is_not_lost() {
    let acts = Acts::echo().on_open(|connection, _| connection.send("welcome").unwrap());
    let mut bed = Bed::new(acts);
    let mut client = Client::begin(bed.address, "/", None);
    client.send("early");
    assert_eq!(
        [(); 2].map(|()| bed.until(|_| if client.is_open() { client.poll() } else { None })),
        [text("welcome"), text("early")]
    );
}

#[test]
fn what_is_sent_goes_out_in_the_order_of_the_calls() {
    let prepared = Prepared::new("prepared");
    let mut bed = Bed::new(Acts::on_message(move |connection, _, message| {
        connection.send("before").unwrap();
        connection.send_prepared(&prepared).unwrap();
        connection.ping(b"ping").unwrap();
        connection.reply_in_place(message).unwrap();
        connection.send(&b"after"[..]).unwrap();
    }));
    let mut client = bed.connect("/");
    client.send("one");
    client.send("two");
    for message in ["one", "two"] {
        let got = [(); 5].map(|()| bed.next(&mut client));
        let after = Got::Binary(b"after".to_vec());
        assert_eq!(
            got,
            [text("before"), text("prepared"), Got::Ping(b"ping".to_vec()), text(message), after]
        );
    }
}

#[test]
fn pings_are_answered_and_told_of_and_so_are_pongs() {
    let mut bed =
        Bed::new(Acts::on_message(|connection, _, _| connection.ping(b"there?").unwrap()));
    let mut client = bed.connect("/");
    client.ping(b"hello");
    assert_eq!(bed.next(&mut client), Got::Pong(b"hello".to_vec()));
    client.send("x");
    assert_eq!(bed.next(&mut client), Got::Ping(b"there?".to_vec()));
    bed.until_noted("pong there?");
    assert_eq!(bed.notes(), ["open /", "ping hello", "pong there?"]);
}

#[test]
fn a_control_frame_that_cannot_be_is_refused() {
    let mut bed = Bed::new(Acts::on_message(|connection, _, _| {
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
        assert!(!connection.subscribe("late"));
    }));
    let mut client = bed.connect("/");
    client.send("x");
    assert_eq!(bed.next(&mut client), Got::Close(Some(4000), "enough".into()));
    assert_eq!(bed.next(&mut client), Got::End(None));
    drop(client);
    bed.until_noted("close / Local 4000 \"enough\"");
}

#[test]
fn nothing_comes_after_a_close_but_the_end() {
    let acts = Acts::on_message(|connection, _, message| {
        assert_eq!(message.as_str(), Some("first"), "the connection is closed");
        connection.send("last").unwrap();
        connection.close(CloseCode::NORMAL, "").unwrap();
    });
    let mut bed = Bed::new(acts);
    let mut client = bed.connect("/");
    let bytes = [client.frame("first"), client.frame("second")].concat();
    client.write(&bytes);
    client.is_mute = true;
    assert_eq!(bed.next(&mut client), text("last"));
    assert_eq!(bed.next(&mut client), Got::Close(Some(1000), String::new()));
    client.is_mute = false;
    client.send_raw_after_close();
    bed.settle();
    client.close_back();
    assert_eq!(bed.next(&mut client), Got::End(None));
    drop(client);
    bed.until_noted("close / Local 1000 \"\"");
}

#[test]
fn a_violation_is_answered_and_named() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    let frame = client.frame("fine");
    client.write(&[&frame[..], &[0x81, 1, b'x']].concat());
    assert_eq!(bed.next(&mut client), text("fine"));
    assert_eq!(bed.next(&mut client), Got::Close(Some(1002), String::new()));
    assert_eq!(bed.next(&mut client), Got::End(None));
    drop(client);
    bed.until_noted("close / Violation(Unmasked)");
    assert_eq!(bed.service.stats().violations, 1);
}

#[test]
fn a_connection_that_ends_without_a_word_is_lost() {
    let mut bed = Bed::new(Acts::echo());
    let client = bed.connect("/");
    client.socket.shutdown(Shutdown::Write).unwrap();
    bed.until_noted("close / Lost");
    let client = bed.connect("/reset");
    rustix::net::sockopt::set_socket_linger(&client.socket, Some(std::time::Duration::ZERO))
        .unwrap();
    drop(client);
    bed.until_noted(
        "close /reset Failed(Os { code: 104, kind: ConnectionReset, message: \"Connection reset by peer\" })",
    );
}

#[test]
fn a_paused_connection_keeps_what_has_come() {
    let acts = Acts::on_message(|connection, _, message| {
        if message.as_str() == Some("pause") {
            connection.pause();
        }
        let _ = connection.reply_in_place(message);
    });
    let mut bed = Bed::new(acts);
    let mut client = bed.connect("/");
    let id = bed.ids()[0];
    for round in 0..3 {
        let bytes = [client.frame("pause"), client.frame("one"), client.frame("two")].concat();
        client.write(&bytes);
        assert_eq!(bed.next(&mut client), text("pause"), "round {round}");
        bed.nothing(&mut client);
        client.send("three");
        bed.nothing(&mut client);
        assert!(bed.act(move |hub| hub.resume(id)));
        assert!(!bed.act(move |hub| hub.resume(id)), "it reads already");
        assert_eq!(
            [(); 3].map(|()| bed.next(&mut client)),
            [text("one"), text("two"), text("three")]
        );
    }
}

#[test]
fn others_pause_a_connection_and_it_keeps_what_has_come() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    let id = bed.ids()[0];
    for round in 0..3 {
        client.send("one");
        assert_eq!(bed.next(&mut client), text("one"), "round {round}");
        assert!(bed.act(move |hub| hub.pause(id) && !hub.pause(id)), "once");
        client.send("two");
        bed.nothing(&mut client);
        assert!(bed.act(move |hub| hub.resume(id) && !hub.resume(id)), "once");
        assert_eq!(bed.next(&mut client), text("two"));
        // What is taken back in the same turn has never been.
        assert!(bed.act(move |hub| hub.pause(id) && hub.resume(id)));
        client.send("three");
        assert_eq!(bed.next(&mut client), text("three"));
        assert!(bed.act(move |hub| hub.pause(id) && hub.resume(id) && hub.pause(id)));
        client.send("four");
        bed.nothing(&mut client);
        assert!(bed.act(move |hub| hub.resume(id)));
        assert_eq!(bed.next(&mut client), text("four"));
    }
    // Its silence is no reason to end it, and a Close is read all the same.
    assert!(
        bed.act(move |hub| hub.pause(id) && hub.close(id, CloseCode::NORMAL, "enough").is_ok())
    );
    assert_eq!(bed.next(&mut client), Got::Close(Some(1000), "enough".to_owned()));
    client.write(&close_frame());
    bed.until_noted("close / Local 1000 \"enough\"");
    assert!(!bed.act(move |hub| hub.pause(id)), "it is gone");
}

/// A Close frame with code 1000 of a client whose key is zero.
fn close_frame() -> Vec<u8> {
    vec![0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8]
}

#[test]
fn a_connection_knows_its_peer_and_its_protocol() {
    let acts = Acts::on_message(|connection, _, _| {
        let peer = connection.peer().unwrap().to_string();
        let told = format!("{peer} {:?}", connection.protocol());
        connection.send(&*told).unwrap();
    })
    .on_upgrade(|request| {
        let chosen = request.choose(&["chess", "go"]).unwrap().to_owned();
        assert!(request.peer().ip().unwrap().is_loopback());
        Ok(Accept::new(Data::default()).protocol(chosen))
    });
    let mut bed = Bed::new(acts);
    for protocol in ["chess", "go", "go"] {
        let mut socket = TcpStream::connect(bed.address).unwrap();
        write!(
            socket,
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: x, {protocol}\r\n\r\n"
        )
        .unwrap();
        let address = socket.local_addr().unwrap();
        let mut client = Client::of(socket, "/", None);
        client.skip_head();
        bed.until(|_| client.is_open().then_some(()));
        client.send("who?");
        assert_eq!(bed.next(&mut client), text(&format!("{address} Some(\"{protocol}\")")));
    }
}

#[test]
fn what_was_agreed_is_compressed() {
    let config = DeflateConfig::DEFAULT;
    let mut bed = Bed::with(Acts::echo(), |options| options.deflate = Some(config));
    let mut client = bed.connect_with("/", Some(&config));
    assert!(client.response.contains("permessage-deflate"), "{}", client.response);
    let long = "so long ".repeat(1000);
    for _ in 0..3 {
        client.send(&*long);
        assert_eq!(bed.next(&mut client), text(&long));
    }
    client.send("short");
    assert_eq!(bed.next(&mut client), text("short"));
    assert!(client.read_bytes < 2000, "{}", client.read_bytes);
}

#[test]
fn a_name_is_good_for_one_connection_only() {
    let mut bed = Bed::new(Acts::echo());
    let client = bed.connect("/");
    let id = bed.ids()[0];
    assert!(bed.act(move |hub| hub.is_open(id)));
    drop(client);
    bed.until_noted("close / Lost");
    let mut next = bed.connect("/");
    let other = bed.ids()[1];
    assert_ne!(id, other);
    assert_eq!(id.to_bits() & 0xff_ffff, other.to_bits() & 0xff_ffff, "the place is the same");
    bed.act(move |hub| {
        assert!(!hub.is_open(id) && hub.is_open(other));
        assert_eq!(hub.send(id, "x"), Err(SendError::Closed));
        assert_eq!(hub.close(id, CloseCode::NORMAL, ""), Err(ControlError::Closed));
        assert!(!hub.subscribe(id, "x") && !hub.unsubscribe(id, "x") && !hub.resume(id));
        assert_eq!(hub.buffered(id), 0);
        hub.send(other, "hello").unwrap();
        assert!(hub.buffered(other) > 0);
    });
    assert_eq!(bed.next(&mut next), text("hello"));
}

#[test]
fn others_send_and_close_in_order() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    let id = bed.ids()[0];
    let prepared = Prepared::new(&b"two"[..]);
    bed.act(move |hub| {
        hub.send(id, "one").unwrap();
        hub.send_prepared(id, &prepared).unwrap();
        assert_eq!(hub.close(id, CloseCode::NO_STATUS, ""), Err(ControlError::BadCloseCode));
        assert_eq!(hub.close(id, CloseCode::NORMAL, &"x".repeat(124)), Err(ControlError::TooLong));
        hub.close(id, CloseCode::new(3000), "done").unwrap();
        assert_eq!(hub.send(id, "late"), Err(SendError::Closed));
        assert!(!hub.is_open(id));
    });
    let got = [(); 4].map(|()| bed.next(&mut client));
    assert_eq!(
        got,
        [
            text("one"),
            Got::Binary(b"two".to_vec()),
            Got::Close(Some(3000), "done".into()),
            Got::End(None)
        ]
    );
    drop(client);
    bed.until_noted("close / Local 3000 \"done\"");
}
