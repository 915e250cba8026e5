//! What the request says, and what comes of the response.

use windlass_websocket::client::Client;
#[cfg(feature = "deflate")]
use windlass_websocket::{Config, DeflateConfig};

use crate::server::{answering, echo_server};

fn run<F: Future>(test: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(test)
}

/// The request of a client for a path, without its key.
fn request_of(path: &str, edit: impl FnOnce(Client) -> Client) -> String {
    let (address, server) = answering(b"HTTP/1.1 404 No\r\n\r\n");
    let client = edit(Client::new(&format!("ws://me:pw@{address}{path}")));
    run(client.connect()).expect_err("it is refused");
    let request = server.join().expect("the server is good");
    let lines = request.replace(&address.to_string(), "HOST");
    lines
        .lines()
        .filter(|line| !line.starts_with("Sec-WebSocket-Key"))
        .collect::<Vec<_>>()
        .join("|")
}

#[test]
fn the_request_has_what_the_client_was_told() {
    let plain = request_of("/a?b=c", |client| client);
    assert_eq!(
        plain,
        "GET /a?b=c HTTP/1.1|Host: HOST|Upgrade: websocket|Connection: Upgrade|\
         Sec-WebSocket-Version: 13|Authorization: Basic bWU6cHc=|"
    );
    let full = request_of("", |client| {
        client
            .header("X-Room", "0")
            .header("x-room", "1")
            .header("Authorization", "Bearer t")
            .protocol("chat")
            .protocol("superchat")
            .origin("https://a.example")
    });
    assert_eq!(
        full,
        "GET / HTTP/1.1|Host: HOST|Upgrade: websocket|Connection: Upgrade|\
         Sec-WebSocket-Version: 13|Origin: https://a.example|\
         Sec-WebSocket-Protocol: chat, superchat|x-room: 1|Authorization: Bearer t|"
    );
}

#[cfg(feature = "deflate")]
#[test]
fn compression_is_offered_if_the_configuration_has_it() {
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let request = request_of("/", |client| client.config(config));
    assert!(request.contains("|Sec-WebSocket-Extensions: permessage-deflate"), "{request}");
}

#[test]
fn the_response_comes_with_the_socket_if_it_is_asked_for() {
    let address = echo_server(false);
    let client = Client::new(&format!("ws://{address}/cookie")).protocol("chat");
    let (socket, response) = run(client.connect().with_response()).expect("it is accepted");
    assert_eq!(socket.protocol(), Some("chat"));
    assert_eq!((response.status, response.header("set-cookie")), (101, Some("a=b")));
}
