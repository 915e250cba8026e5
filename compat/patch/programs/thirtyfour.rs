//! A client of WebDriver BiDi. The session is opened by HTTP, and its commands go by a WebSocket.

mod peer;

use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use peer::Peer;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let address = peer::serve_all(serve);
    for case in ["close", "violate"] {
        let mut capabilities = DesiredCapabilities::chrome();
        capabilities.enable_bidi().expect("it is JSON");
        let driver = WebDriver::new(format!("http://{address}"), capabilities).await;
        let driver = driver.expect("a session");
        let bidi = driver.bidi().await.expect("it is accepted");
        for length in [10, 70_000] {
            let params = json!({ "text": "x".repeat(length) });
            let result = bidi.send_raw("echo", params.clone()).await;
            println!("{}", result.expect("an echo") == params);
        }
        println!("{}", bidi.send_raw(case, json!({})).await.is_err());
        driver.quit().await.expect("it ends");
    }
}

/// Answers requests until one is for a WebSocket, and then commands.
fn serve(peer: &mut Peer<TcpStream>, address: SocketAddr) {
    while let Some(head) = peer.head() {
        if peer::header(&head, "upgrade").is_some() {
            peer.answer(&head);
            while command(peer) {}
            return;
        }
        let capabilities = json!({ "webSocketUrl": format!("ws://{address}/session/s") });
        let value = match head.starts_with("POST /session ") {
            true => json!({ "sessionId": "s", "capabilities": capabilities }),
            false => Value::Null,
        };
        peer.answer_json(&head, &json!({ "value": value }).to_string());
    }
}

/// Returns whether the connection goes on.
fn command(peer: &mut Peer<TcpStream>) -> bool {
    let Some((peer::TEXT, command)) = peer.read() else { return false };
    let command: Value = serde_json::from_slice(&command).expect("it is JSON");
    match command["method"].as_str() {
        Some("close") => peer.write(peer::CLOSE, &peer::close(1000, "")),
        Some("violate") => peer.write(peer::RESERVED, b""),
        _ => {
            let (id, result) = (&command["id"], &command["params"]);
            let answer = json!({ "type": "success", "id": id, "result": result });
            peer.write(peer::TEXT, answer.to_string().as_bytes());
        }
    }
    true
}
