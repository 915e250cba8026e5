//! What tungstenite does not have.

use std::io::ErrorKind;

use windlass_tungstenite::{
    Agreement, DeflateConfig, Error, Message, WebSocket, accept_with_config,
    client::{IntoClientRequest as _, client_with_config},
    protocol::{LentMessage, Role, WebSocketConfig},
};
use windlass_ws::Violation;

use crate::stream::{Script, Step, frame};

/// The limit that an error is about.
fn violation(error: Error) -> Violation {
    match error {
        Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            *error.get_ref().unwrap().downcast_ref().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_idle_socket_holds_no_buffer() {
    let size = size_of::<WebSocket<()>>();
    assert!(size <= 320, "{size}");
    let script = Script::bytes(frame(true, 0x81, b"hi"));
    let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
    assert_eq!(socket.read().unwrap(), Message::text("hi"));
    assert!(format!("{socket:?}").contains("Input { holds_buffer: false"), "{socket:?}");
}

#[test]
fn fragments_have_a_limit() {
    let config = WebSocketConfig::default().max_fragments(2);
    let bytes =
        [frame(true, 0x01, b"a"), frame(true, 0x00, b"b"), frame(true, 0x80, b"c")].concat();
    let mut socket = WebSocket::from_raw_socket(Script::bytes(bytes), Role::Server, Some(config));
    assert_eq!(violation(socket.read().unwrap_err()), Violation::TooManyFragments);
}

/// The number of messages that a socket receives until an error, and the error.
fn received(bytes: Vec<u8>, config: WebSocketConfig) -> (usize, Error) {
    let mut socket = WebSocket::from_raw_socket(Script::bytes(bytes), Role::Server, Some(config));
    let mut count = 0;
    loop {
        match socket.read() {
            Ok(_) => count += 1,
            Err(error) => return (count, error),
        }
    }
}

#[test]
fn control_frames_have_a_limit_for_each_second() {
    // A machine that needs a second for each of them would be too slow to run this test.
    let pings = [frame(true, 0x89, b""), frame(true, 0x8a, b"")].concat().repeat(2000);
    let limited = WebSocketConfig::default().max_controls_per_second(Some(1));
    let (count, error) = received(pings.clone(), limited);
    assert!(count < 4000, "{count}");
    assert_eq!(violation(error), Violation::TooManyControls);
}

#[test]
fn the_first_control_frame_is_not_of_the_second_of_the_next_one() {
    let limited = WebSocketConfig::default().max_controls_per_second(Some(1));
    let (count, error) = received(frame(true, 0x89, b"").repeat(2), limited);
    assert_eq!(count, 2, "{error:?}");
}

#[test]
fn control_frames_have_no_limit_by_default() {
    let pings = frame(true, 0x89, b"").repeat(70_000);
    // Another socket of the thread has one.
    let limited = WebSocketConfig::default().max_controls_per_second(Some(1));
    drop(received(pings[..60].to_vec(), limited));
    let (count, error) = received(pings, WebSocketConfig::default());
    assert_eq!(count, 70_000, "{error:?}");
}

#[test]
fn the_compression_ratio_has_a_limit() {
    let mut sender = WebSocket::from_raw_socket(Script::default(), Role::Client, None)
        .with_agreement(Agreement::DEFAULT);
    sender.send(Message::binary(vec![0; 1 << 20])).unwrap();
    let bytes = sender.get_ref().written.clone();
    assert!(bytes.len() < 10_000, "{}", bytes.len());
    for (ratio, is_allowed) in [(Some(100), false), (Some(2000), true), (None, true)] {
        let config = WebSocketConfig::default().max_inflate_ratio(ratio);
        let script = Script::bytes(bytes.clone());
        let socket = WebSocket::from_raw_socket(script, Role::Server, Some(config));
        match socket.with_agreement(Agreement::DEFAULT).read() {
            Ok(message) => assert!(is_allowed && message.len() == 1 << 20, "{ratio:?}"),
            Err(error) => {
                assert!(!is_allowed, "{ratio:?}: {error:?}");
                assert_eq!(violation(error), Violation::RatioTooHigh);
            }
        }
    }
}

/// A message as it was lent, or as text what it is.
fn lent(message: LentMessage<'_>) -> (&'static str, Vec<u8>) {
    match message {
        LentMessage::Text(text) => ("text", text.into()),
        LentMessage::Binary(bytes) => ("binary", bytes.into()),
        LentMessage::Control(control) => ("control", format!("{control:?}").into()),
    }
}

#[test]
fn messages_are_lent_however_they_arrive() {
    let long = "zwölf".repeat(40_000);
    let frames = [
        frame(true, 0x81, "zwölf".as_bytes()),
        frame(true, 0x82, b""),
        frame(true, 0x89, b"ping"),
        frame(true, 0x01, b"in two "),
        frame(true, 0x80, b"frames"),
        frame(true, 0x82, b"x"),
        frame(true, 0x81, long.as_bytes()),
        frame(true, 0x88, b"\x03\xe8bye"),
    ]
    .concat();
    let expected = [
        ("text", "zwölf".into()),
        ("binary", vec![]),
        ("control", br#"Ping(b"ping")"#.to_vec()),
        ("text", b"in two frames".to_vec()),
        ("binary", b"x".to_vec()),
        ("text", long.clone().into_bytes()),
    ];
    for piece in [1, 7, 1000, frames.len()] {
        let steps = frames.chunks(piece).map(|bytes| Step::Bytes(bytes.to_vec()));
        let mut socket = WebSocket::from_raw_socket(Script::new(steps), Role::Server, None);
        for expected in &expected {
            let (kind, bytes) = lent(socket.recv().unwrap());
            assert!((kind, &bytes) == (expected.0, &expected.1), "{kind} in pieces of {piece}");
        }
        match socket.recv().unwrap() {
            LentMessage::Control(Message::Close(Some(close))) => assert_eq!(&*close.reason, "bye"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(socket.recv(), Err(Error::ConnectionClosed)));
        assert!(matches!(socket.recv(), Err(Error::AlreadyClosed)));
        let sent = socket.get_ref().frames();
        assert_eq!(sent, [(0x8a, "ping".to_owned()), (0x88, r"\x03\xe8bye".to_owned())]);
    }
}

#[test]
fn a_message_may_be_lent_from_what_was_read_with_the_handshake() {
    let (first, second) = (frame(true, 0x81, b"early"), frame(true, 0x81, &[b'x'; 1000]));
    let script = Script::bytes(second);
    let mut socket = WebSocket::from_partially_read(script, first, Role::Server, None);
    assert_eq!(lent(socket.recv().unwrap()), ("text", b"early".to_vec()));
    assert_eq!(lent(socket.recv().unwrap()), ("text", vec![b'x'; 1000]));
}

#[test]
fn a_buffer_that_was_lent_is_given_back_by_the_next_call() {
    let blocked = Step::Fails(ErrorKind::WouldBlock);
    let bytes = [frame(true, 0x81, b"lent"), frame(true, 0x81, b"owned")].concat();
    let script = Script::new([Step::Bytes(bytes), blocked]);
    let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
    assert_eq!(lent(socket.recv().unwrap()), ("text", b"lent".to_vec()));
    // Sending comes between, and reading gets a copy.
    socket.send(Message::text("answer")).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text("owned"));
    assert!(format!("{socket:?}").contains("Input { holds_buffer: false"), "{socket:?}");
    let script = Script::new([Step::Bytes(frame(true, 0x81, b"x"))]);
    let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
    assert!(socket.recv().is_ok());
    assert!(format!("{socket:?}").contains("Input { holds_buffer: true"), "{socket:?}");
    assert!(socket.recv().is_err(), "the stream ends");
    assert!(format!("{socket:?}").contains("Input { holds_buffer: false"), "{socket:?}");
}

#[test]
fn compressed_messages_are_lent() {
    let text = "a message that repeats itself, ".repeat(100);
    let mut sender = WebSocket::from_raw_socket(Script::default(), Role::Client, None)
        .with_agreement(Agreement::DEFAULT);
    for _ in 0..2 {
        sender.send(Message::text(&text)).unwrap();
    }
    let script = Script::bytes(sender.get_ref().written.clone());
    let socket = WebSocket::from_raw_socket(script, Role::Server, None);
    let mut socket = socket.with_agreement(Agreement::DEFAULT);
    for _ in 0..2 {
        assert_eq!(lent(socket.recv().unwrap()), ("text", text.clone().into_bytes()));
    }
}

/// A handshake over a Unix socket with permessage-deflate on the given sides, and an echo. Returns
/// the extensions of the response.
fn negotiated(client: bool, server: bool) -> Option<String> {
    let config =
        |on: bool| WebSocketConfig::default().deflate(on.then_some(DeflateConfig::DEFAULT));
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let mut socket = accept_with_config(there, Some(config(server))).unwrap();
        let message = socket.read().unwrap();
        socket.send(message).unwrap();
    });
    let request = "ws://localhost/".into_client_request().unwrap();
    let (mut socket, response) = client_with_config(request, here, Some(config(client))).unwrap();
    let message = Message::text("a message that repeats itself, ".repeat(100));
    socket.send(message.clone()).unwrap();
    assert_eq!(socket.read().unwrap(), message);
    server.join().unwrap();
    let extensions = response.headers().get("Sec-WebSocket-Extensions");
    extensions.map(|value| value.to_str().unwrap().to_owned())
}

#[test]
fn deflate_is_used_if_both_sides_have_it() {
    let chosen = negotiated(true, true).unwrap();
    assert!(chosen.starts_with("permessage-deflate"), "{chosen}");
    assert_eq!(negotiated(true, false), None);
    assert_eq!(negotiated(false, true), None);
    assert_eq!(negotiated(false, false), None);
}

#[test]
fn messages_are_compressed_after_an_agreement() {
    let agreement = Agreement::DEFAULT;
    let mut socket =
        WebSocket::from_raw_socket(Script::default(), Role::Server, None).with_agreement(agreement);
    socket.send(Message::text("x".repeat(1000))).unwrap();
    let sent = &socket.get_ref().written;
    assert_eq!(sent[0], 0xc1, "text, compressed");
    assert!(sent.len() < 100);
}
