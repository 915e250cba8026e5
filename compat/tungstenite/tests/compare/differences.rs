//! Where this crate differs on purpose: both behaviours, each as it is. The page
//! `docs/tungstenite-interface.md` has the reasons.

use std::io::ErrorKind;

use bytes::Bytes;
use windlass_ws::Violation;

use crate::stream::{Script, Step, frame};

/// The expression with tungstenite and with this crate, as `ws`.
macro_rules! both {
    ($body:expr) => {{
        let theirs = {
            use ::tungstenite as ws;
            $body
        };
        let ours = {
            use ::windlass_tungstenite as ws;
            $body
        };
        (theirs, ours)
    }};
}

#[test]
fn a_violation_ends_the_connection_with_a_close_frame() {
    let (theirs, ours) = both!({
        let script = Script::bytes(frame(true, 0x83, b""));
        let mut socket = ws::WebSocket::from_raw_socket(script, ws::protocol::Role::Server, None);
        assert!(socket.read().is_err());
        (socket.can_write(), socket.get_ref().frames())
    });
    assert_eq!(theirs, (true, vec![]));
    assert_eq!(ours, (false, vec![(0x88, r"\x03\xea".to_owned())]));
}

#[test]
fn control_frames_that_are_too_long_are_not_sent() {
    let (theirs, ours) = both!({
        use ws::{Error, Message, error::ProtocolError::ControlFrameTooBig, protocol::Role};
        let mut socket = ws::WebSocket::from_raw_socket(Script::default(), Role::Server, None);
        let mut is_refused = |message| match socket.send(message) {
            Ok(()) => false,
            Err(Error::Protocol(ControlFrameTooBig)) => true,
            Err(error) => panic!("{error}"),
        };
        let long = Bytes::from(vec![b'x'; 126]);
        [is_refused(Message::Ping(long.clone())), is_refused(Message::Pong(long))]
    });
    assert_eq!((theirs, ours), ([false; 2], [true; 2]));
}

#[test]
fn close_codes_that_must_not_be_sent_are_not_sent() {
    let (theirs, ours) = both!({
        use ws::protocol::{CloseFrame, Role, frame::coding::CloseCode};
        [CloseCode::Status, CloseCode::Abnormal, CloseCode::Bad(7)].map(|code| {
            let mut socket = ws::WebSocket::from_raw_socket(Script::default(), Role::Server, None);
            match socket.close(Some(CloseFrame { code, reason: "".into() })) {
                Ok(()) => true,
                Err(ws::Error::Protocol(ws::error::ProtocolError::InvalidCloseSequence)) => {
                    assert!(socket.can_write(), "nothing has happened");
                    false
                }
                Err(error) => panic!("{error}"),
            }
        })
    });
    assert_eq!((theirs, ours), ([true; 3], [false; 3]));
}

#[test]
fn the_code_1014_is_a_code() {
    let (theirs, ours) = both!({
        let script = Script::bytes(frame(true, 0x88, &1014_u16.to_be_bytes()));
        let mut socket = ws::WebSocket::from_raw_socket(script, ws::protocol::Role::Server, None);
        match socket.read() {
            Ok(ws::Message::Close(Some(close))) => u16::from(close.code),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!((theirs, ours), (1002, 1014));
}

#[test]
fn lengths_must_be_in_their_shortest_form() {
    let bytes = b"\x82\xfe\0\x01\0\0\0\0x";
    let (theirs, ours) = both!({
        let mut socket =
            ws::WebSocket::from_raw_socket(Script::bytes(*bytes), ws::protocol::Role::Server, None);
        match socket.read() {
            Ok(message) => message.len(),
            Err(ws::Error::Io(error)) => {
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                let violation = error.get_ref().and_then(|error| error.downcast_ref());
                assert_eq!(violation, Some(&Violation::BadLength));
                0
            }
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!((theirs, ours), (1, 0));
}

#[test]
fn a_message_has_a_limited_number_of_fragments() {
    let mut bytes = frame(true, 0x02, b"");
    bytes.extend(frame(true, 0x00, b"").repeat(1 << 18));
    bytes.extend(frame(true, 0x80, b""));
    let (theirs, ours) = both!({
        let script = Script::bytes(bytes.clone());
        let mut socket = ws::WebSocket::from_raw_socket(script, ws::protocol::Role::Server, None);
        match socket.read() {
            Ok(_) => None,
            Err(ws::Error::Io(error)) => {
                error.get_ref().unwrap().downcast_ref::<Violation>().copied()
            }
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!((theirs, ours), (None, Some(Violation::TooManyFragments)));
}

#[test]
fn the_last_answer_is_flushed() {
    let (theirs, ours) = both!({
        let script = Script::bytes(frame(true, 0x88, b""));
        let mut socket = ws::WebSocket::from_raw_socket(script, ws::protocol::Role::Server, None);
        assert!(socket.read().is_ok());
        assert!(matches!(socket.read(), Err(ws::Error::ConnectionClosed)));
        (socket.get_ref().written.len(), socket.get_ref().flushes)
    });
    assert_eq!((theirs, ours), ((2, 0), (2, 1)));
}

/// A response, with more lines.
fn response(lines: &str) -> Script {
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    Script::bytes(format!("{head}{lines}\r\n\r\n"))
}

/// Whether a client takes that response.
macro_rules! takes {
    ($ws:ident, $response:expr) => {{
        use $ws::client::IntoClientRequest as _;
        let mut request = "ws://a/".into_client_request().unwrap();
        let key = "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap();
        request.headers_mut().insert("Sec-WebSocket-Key", key);
        $ws::client(request, $response).is_ok()
    }};
}

#[test]
fn connection_of_a_response_is_a_list() {
    let (theirs, ours) = both!(takes!(ws, response("Connection: keep-alive, Upgrade")));
    assert_eq!((theirs, ours), (false, true));
}

#[test]
fn a_response_with_an_extension_that_was_not_offered_is_refused() {
    let lines = "Connection: Upgrade\r\nSec-WebSocket-Extensions: permessage-deflate";
    let (theirs, ours) = both!(takes!(ws, response(lines)));
    assert_eq!((theirs, ours), (true, false));
}

#[test]
fn a_header_of_the_handshake_is_sent_once() {
    let (theirs, ours) = both!({
        use ws::client::IntoClientRequest as _;
        let mut request = "ws://a/".into_client_request().unwrap();
        request.headers_mut().append("Host", "b".parse().unwrap());
        match ws::handshake::client::generate_request(request) {
            Ok((bytes, _)) => String::from_utf8(bytes).unwrap().matches("Host: ").count(),
            Err(ws::Error::Protocol(ws::error::ProtocolError::InvalidHeader(_))) => 0,
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!((theirs, ours), (1, 0), "theirs drops the others");
}

#[test]
fn a_handshake_may_come_byte_by_byte() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let steps = || request.bytes().map(|byte| Step::Bytes(vec![byte]));
    let (theirs, ours) = both!(ws::accept(Script::new(steps())).is_ok());
    assert_eq!((theirs, ours), (false, true));
}

#[test]
fn a_stream_that_takes_no_bytes_of_a_handshake_is_an_error() {
    /// It never takes a byte.
    struct Full;
    impl std::io::Read for Full {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Ok(0)
        }
    }
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Ok(0)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    // Theirs panics.
    match windlass_tungstenite::client("ws://a/", Full) {
        Err(windlass_tungstenite::HandshakeError::Failure(windlass_tungstenite::Error::Io(
            error,
        ))) => {
            assert_eq!(error.kind(), ErrorKind::WriteZero);
        }
        _ => panic!("the request was not sent"),
    }
}
