//! Every kind of fault is found, described, and reported by the exit status.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use windlass_ws::{CloseCode, MessageRef};

use super::{
    bad_server::{BadServer, WebSocketPeer, raw, read_request},
    runs::{Loaded, load},
};
use crate::harness::Server;

/// Sends twenty messages, at most four of them outstanding.
fn load_at(url: &str) -> Loaded {
    load(&[url, "--connections", "1", "--messages", "20", "--depth", "4", "--timeout", "30"])
}

/// The same, for servers that never answer.
fn load_with_short_timeout(url: &str) -> Loaded {
    load(&[url, "--connections", "1", "--messages", "20", "--depth", "4", "--timeout", "3"])
}

#[test]
fn a_good_server_has_no_faults() {
    let server = BadServer::websocket(|_, message, responder| responder.send(message));
    let loaded = load_at(&server.ws());
    assert_eq!(loaded.expect_clean().verified(), 20);
    server.join();
    let server = raw(|_| true);
    let loaded = load_at(&server.tcp());
    assert_eq!(loaded.expect_clean().verified(), 20);
    server.join();
}

#[test]
fn one_wrong_byte() {
    let server = BadServer::websocket(|number, message, responder| {
        let mut bytes = message.as_bytes().to_vec();
        bytes[7] ^= u8::from(number == 5);
        responder.send(MessageRef::Binary(&bytes));
    });
    let loaded = load_at(&server.ws());
    loaded
        .expect_fault("wrong_content", "connection 1: the answer to message 5 has a wrong byte: ");
    loaded.expect_fault("wrong_content", " at offset 7\n");
    assert_eq!(loaded.verified(), 4, "nothing after it counts");
    let unanswered = loaded.number("/messages/unanswered");
    assert!(
        (1.0..=4.0).contains(&unanswered),
        "the fifth, and those that were under way behind it: {unanswered}"
    );
    server.join();
}

#[test]
fn one_wrong_byte_in_a_stream() {
    let mut sent = 0;
    let server = raw(move |piece| {
        // The eighth byte of the fifth message of 64 bytes.
        if let Some(byte) = piece.get_mut((4_usize * 64 + 7).wrapping_sub(sent)) {
            *byte ^= 0x20;
        }
        sent += piece.len();
        true
    });
    let loaded = load_at(&server.tcp());
    loaded
        .expect_fault("wrong_content", "connection 1: the answer to message 5 has a wrong byte: ");
    loaded.expect_fault("wrong_content", " at offset 7\n");
    server.join();
}

#[test]
fn one_message_lost_among_others() {
    let server = BadServer::websocket(|number, message, responder| {
        if number != 5 {
            responder.send(message);
        }
    });
    let words = "the answer to message 6 came instead of that to 5, which is lost or overtaken";
    load_at(&server.ws()).expect_fault("out_of_order", words);
    server.join();
}

#[test]
fn the_last_message_lost() {
    let server = BadServer::websocket(|number, message, responder| {
        if number != 20 {
            responder.send(message);
        }
    });
    let loaded = load_with_short_timeout(&server.ws());
    loaded.expect_fault("lost", "no answer to message 20 within 3 s");
    assert_eq!((loaded.verified(), loaded.number("/messages/unanswered")), (19, 1.0));
    server.join();
}

#[test]
fn two_messages_swapped() {
    let mut held = None;
    let server = BadServer::websocket(move |number, message, responder| {
        if number == 5 {
            held = Some(message.as_bytes().to_vec());
        } else {
            responder.send(message);
        }
        if number == 6 {
            let held = held.take().expect("it came before");
            responder.send(MessageRef::Binary(&held));
        }
    });
    load_at(&server.ws())
        .expect_fault("out_of_order", "the answer to message 6 came instead of that to 5");
    server.join();
}

#[test]
fn two_messages_of_a_stream_swapped() {
    let mut all = Vec::new();
    let server = raw(move |piece| {
        all.append(piece);
        if all.len() == 4 * 64 {
            all[..2 * 64].rotate_left(64);
            piece.append(&mut all);
        }
        true
    });
    load_at(&server.tcp())
        .expect_fault("out_of_order", "the answer to message 2 came instead of that to 1");
    server.join();
}

#[test]
fn one_message_twice() {
    let server = BadServer::websocket(|number, message, responder| {
        responder.send(message);
        if number == 5 {
            responder.send(message);
        }
    });
    load_at(&server.ws()).expect_fault("additional", "the answer to message 5 came twice");
    server.join();
}

#[test]
fn a_message_more_after_the_last() {
    let server = BadServer::websocket(|number, message, responder| {
        responder.send(message);
        if number == 20 {
            responder.send(MessageRef::Text("by the way"));
        }
    });
    load_at(&server.ws())
        .expect_fault("additional", "a message of 10 bytes came although none was due");
    server.join();
}

#[test]
fn a_byte_more_after_the_last() {
    let mut left = 20 * 64;
    let server = raw(move |piece| {
        left -= piece.len();
        if left == 0 {
            piece.push(b'!');
        }
        true
    });
    load_at(&server.tcp()).expect_fault("additional", "1 byte came although none was due");
    server.join();
}

#[test]
fn a_message_before_any_request() {
    let server = BadServer::start(|mut socket| {
        // An unmasked text frame, before the client can have sent a message.
        let mut peer = WebSocketPeer::accept_and_send(&mut socket, &[0x81, 2, b'h', b'i']);
        while peer.answer(&mut socket, |_, _| {}) {}
    });
    load_at(&server.ws())
        .expect_fault("additional", "a message of 2 bytes came although none was due");
    server.join();
}

#[test]
fn another_length_and_another_type() {
    let server = BadServer::websocket(|_, message, responder| {
        responder.send(MessageRef::Binary(&message.as_bytes()[1..]))
    });
    let words = "the answer to message 1 has 63 bytes instead of 64";
    load_at(&server.ws()).expect_fault("wrong_content", words);
    server.join();
    let server = BadServer::websocket(|_, message, responder| {
        responder.send(MessageRef::Binary(message.as_bytes()))
    });
    let loaded = load(&[&server.ws(), "--connections", "1", "--messages", "1", "--text", "ascii"]);
    loaded.expect_fault("wrong_content", "the answer to message 1 is binary, but text was sent");
    server.join();
}

#[test]
fn disconnecting_early_in_every_way() {
    let server = BadServer::websocket(|number, message, responder| match number {
        5 => responder.disconnect(),
        _ => responder.send(message),
    });
    let loaded = load_at(&server.ws());
    assert!(loaded.verified() <= 4, "{loaded:?}");
    // Unread bytes at the server make its close a reset, which may overtake its answers.
    assert!(
        loaded.json()["errors"]["closed_early"] == 1 || loaded.json()["errors"]["broken"] == 1,
        "{loaded:?}"
    );
    assert_eq!(loaded.status, Some(1));
    server.join();

    let server = BadServer::websocket(|number, message, responder| match number {
        5 => responder.reset(),
        _ => responder.send(message),
    });
    load_at(&server.ws()).expect_fault("broken", "Connection reset by peer");
    server.join();

    let server = BadServer::websocket(|number, message, responder| match number {
        5 => responder.send_close(CloseCode::GOING_AWAY, "enough\n\x1b[2J"),
        6.. => {}
        _ => responder.send(message),
    });
    // Texts of the server are escaped.
    let words = "the server has closed the connection with code 1001: enough\\n\\u{1b}[2J";
    load_at(&server.ws()).expect_fault("closed_early", words);
    server.join();
}

#[test]
fn disconnecting_a_stream_early() {
    let mut left = 5 * 64;
    let server = raw(move |piece| {
        piece.truncate(left);
        left -= piece.len();
        left > 0
    });
    let loaded = load_at(&server.tcp());
    assert!(loaded.status == Some(1) && loaded.verified() <= 5, "{loaded:?}");
    server.join();
}

#[test]
fn disconnecting_instead_of_a_close_frame() {
    let server = BadServer::start(|mut socket| {
        let mut peer = WebSocketPeer::accept(&mut socket);
        let mut number = 0;
        while number < 20 {
            peer.answer(&mut socket, |message, responder| {
                number += 1;
                responder.send(message);
            });
        }
        // The Close frame is read and not answered. Without the read the close would be a reset.
        let _ = socket.read(&mut [0; 64]);
    });
    load_at(&server.ws())
        .expect_fault("not_closed", "the server has disconnected without a Close frame");
    server.join();
}

#[test]
fn breaking_the_protocol() {
    let server = BadServer::websocket(|number, message, responder| match number {
        // A masked frame.
        5 => responder.send_bytes(&[0x82, 0x80, 1, 2, 3, 4]),
        6.. => {}
        _ => responder.send(message),
    });
    load_at(&server.ws()).expect_fault("protocol", "connection 1: ");
    server.join();
}

#[test]
fn refusing_the_upgrade() {
    let server = BadServer::start(|mut socket| {
        read_request(&mut socket);
        let answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(answer).expect("the client waits for it");
    });
    let loaded = load_at(&server.ws());
    loaded.expect_fault("handshake", "the server answers with status 403");
    assert_eq!(loaded.number("/connections/opened"), 0.0);
    server.join();
}

#[test]
fn declining_compression() {
    let server = BadServer::websocket(|_, message, responder| responder.send(message));
    let loaded = load(&[&server.ws(), "--connections", "1", "--messages", "1", "--deflate"]);
    loaded.expect_fault("handshake", "the server declines permessage-deflate");
    server.join();
}

#[test]
fn never_answering_the_upgrade_or_hanging_up_over_it() {
    let server = BadServer::start(|mut socket| {
        // Until the client disconnects.
        while let Ok(1..) = socket.read(&mut [0; 4096]) {}
    });
    load_with_short_timeout(&server.ws())
        .expect_fault("handshake", "no answer to the upgrade within 3 s");
    server.join();
    let server = BadServer::start(|mut socket| read_request(&mut socket));
    let words = "the server has disconnected without an answer to the upgrade";
    load_at(&server.ws()).expect_fault("handshake", words);
    server.join();
}

#[test]
fn never_answering_at_all_by_websocket() {
    let server = BadServer::websocket(|_, _, _| {});
    let loaded = load_with_short_timeout(&server.ws());
    loaded.expect_fault("lost", "no answer to message 1 within 3 s");
    assert_eq!((loaded.verified(), loaded.number("/messages/unanswered")), (0, 4.0));
    server.join();
}

#[test]
fn never_answering_at_all_without_websockets() {
    let server = raw(|piece| {
        piece.clear();
        true
    });
    load_with_short_timeout(&server.tcp())
        .expect_fault("lost", "no answer to message 1 within 3 s");
    server.join();
}

#[test]
fn no_server_listens() {
    // A port that is reserved by a socket without a listener.
    let taken =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    rustix::net::bind(&taken, &any).expect("there is a free port");
    let address = SocketAddr::try_from(rustix::net::getsockname(&taken).expect("it is bound"))
        .expect("an IP address");
    let loaded = load(&[&format!("ws://{address}/"), "--connections", "11"]);
    loaded.expect_fault("connect", "connection 3: not connected: Connection refused");
    loaded.expect_fault("connect", "windlass: and 3 more\n");
    assert_eq!(loaded.number("/connections/failed"), 11.0);
    let loaded = load(&["unix:/nobody/listens/here", "--connections", "2"]);
    loaded.expect_fault("connect", "No such file or directory");
}

/// A chat room does not echo. One line reports this, and not a wrong byte (issue 13).
#[test]
fn a_chat_room_is_not_measured() {
    let server = Server::start(&["--mode", "chat"]);
    let url = format!("ws://{}/room/lobby", server.address);
    for more in
        [&[][..], &["--workers", "2"], &["--depth", "8", "--text", "utf8"], &["--rate", "1000"]]
    {
        let hour = ["--connections", "8", "--duration", "3600", "--timeout", "3600"];
        let loaded = load(&[&[&*url], &hour[..], more].concat());
        loaded.expect_fault("not_an_echo", "the server does not echo: ");
        assert_eq!((loaded.errors.lines().count(), loaded.verified()), (1, 0), "{}", loaded.errors);
        assert!(loaded.errors.contains("/echo") && loaded.json()["gave_up"] == true, "{loaded:?}");
    }
    // A single member of the room receives nothing.
    let loaded = load(&[&url, "--connections", "1", "--messages", "5", "--timeout", "3"]);
    loaded.expect_fault("lost", "windlass: no message came back; ");
    server.stop_cleanly();
}

#[test]
fn if_no_connection_can_be_opened_not_all_are_tried() {
    let server = Server::start(&["--mode", "chat"]);
    let nowhere = format!("ws://{}/nowhere", server.address);
    let taken =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&taken, &SocketAddr::from(([127, 0, 0, 1], 0)))
        .expect("there is a free port");
    let address = SocketAddr::try_from(rustix::net::getsockname(&taken).expect("it is bound"))
        .expect("an IP address");
    let nobody = format!("ws://{address}/");
    for (url, kind, why) in [
        (&nowhere, "handshake", "the server answers with status 404"),
        (&nobody, "connect", "not connected: Connection refused"),
    ] {
        for workers in ["1", "2"] {
            let loaded =
                load(&[url, "--connections", "1500", "--workers", workers, "--duration", "3600"]);
            loaded.expect_fault(kind, why);
            loaded.expect_fault(kind, "windlass: gave up: none of the first ");
            let failed = loaded.number("/connections/failed");
            // Connections that were being opened fail, too.
            assert!(
                (100.0..500.0).contains(&failed) && loaded.json()["gave_up"] == true,
                "{failed}"
            );
        }
    }
    server.stop_cleanly();
}

/// connect(2) to a Unix socket with a full backlog fails at once, whereas TCP waits.
#[test]
fn a_full_backlog_is_waited_for_and_not_for_ever() {
    let path = std::env::temp_dir().join(format!("windlass-load-backlog-{}", std::process::id()));
    let listening =
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&listening, &SocketAddrUnix::new(&path).expect("a short path"))
        .expect("nobody is there");
    rustix::net::listen(&listening, 0).expect("it is bound");
    let url = format!("unix:{}", path.display());
    let loaded = load(&[&url, "--connections", "3", "--messages", "3", "--timeout", "0.2"]);
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(loaded.status, Some(1));
    assert_eq!(
        loaded.json()["errors"],
        serde_json::json!({ "connect": 2, "lost": 1 }),
        "one fits: {loaded:?}"
    );
    assert!(
        loaded.errors.contains("not connected: Resource temporarily unavailable"),
        "{}",
        loaded.errors
    );
}
