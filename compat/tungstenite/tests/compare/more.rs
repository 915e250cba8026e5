//! What tungstenite does not have.

use windlass_tungstenite::{
    DeflateConfig, Error, Message, WebSocket, accept_with_config,
    client::{IntoClientRequest as _, client_with_config},
    protocol::{Role, WebSocketConfig},
};

use crate::stream::{Script, frame};

#[test]
fn an_idle_socket_holds_no_buffer() {
    let size = size_of::<WebSocket<()>>();
    assert!(size <= 320, "{size}");
    let script = Script::bytes(frame(true, 0x81, b"hi"));
    let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
    assert_eq!(socket.read().unwrap(), Message::text("hi"));
    assert!(format!("{socket:?}").contains("Input { len: 0"), "{socket:?}");
}

#[test]
fn fragments_have_a_limit() {
    let config = WebSocketConfig::default().max_fragments(2);
    let bytes =
        [frame(true, 0x01, b"a"), frame(true, 0x00, b"b"), frame(true, 0x80, b"c")].concat();
    let mut socket = WebSocket::from_raw_socket(Script::bytes(bytes), Role::Server, Some(config));
    assert!(matches!(socket.read(), Err(Error::Io(_))));
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
    let agreement = windlass_tungstenite::Agreement::DEFAULT;
    let mut socket =
        WebSocket::from_raw_socket(Script::default(), Role::Server, None).with_agreement(agreement);
    socket.send(Message::text("x".repeat(1000))).unwrap();
    let sent = &socket.get_ref().written;
    assert_eq!(sent[0], 0xc1, "text, compressed");
    assert!(sent.len() < 100);
}
