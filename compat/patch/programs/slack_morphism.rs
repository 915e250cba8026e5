//! A client of Slack's socket mode. It asks for the URL by HTTP, and connects again after each end.

mod peer;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::json;
use slack_morphism::prelude::*;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use peer::Peer;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (sender, mut came) = unbounded_channel();
    let sockets = Arc::new(AtomicUsize::new(0));
    let address = peer::serve_all(move |peer, address| serve(peer, address, &sockets, &sender));
    let connector = SlackClientHyperConnector::with_connector(HttpConnector::new());
    let connector = connector.with_slack_api_url(&format!("http://{address}/api"));
    let client = Arc::new(SlackClient::new(connector));
    let listener = SlackClientSocketModeListener::new(
        &SlackClientSocketModeConfig::new().with_max_connections_count(1),
        Arc::new(SlackClientEventsListenerEnvironment::new(client)),
        SlackSocketModeListenerCallbacks::new(),
    );
    let token = SlackApiToken::new(SlackApiTokenValue("token".to_owned()));
    listener.listen_for(&token).await.expect("a client more");
    listener.start().await;
    for _ in ["a Close frame", "an error", "the end"] {
        println!("{}", came.recv().await.expect("the listener runs"));
    }
}

/// Answers requests for the URL. Of the sockets, the first one gets a Close frame, and the second
/// one a violation, each after an envelope that the client acknowledges.
fn serve(
    peer: &mut Peer<TcpStream>,
    address: SocketAddr,
    sockets: &AtomicUsize,
    came: &UnboundedSender<String>,
) {
    while let Some(head) = peer.head() {
        if peer::header(&head, "upgrade").is_none() {
            let url = format!("ws://{address}/socket");
            peer.answer_json(&head, &json!({ "ok": true, "url": url }).to_string());
            continue;
        }
        peer.answer(&head);
        let number = sockets.fetch_add(1, Ordering::Relaxed);
        let envelope = json!({ "type": "unknown", "envelope_id": format!("envelope {number}") });
        peer.write(peer::TEXT, envelope.to_string().as_bytes());
        let acknowledged = peer.read().expect("an acknowledgement").1;
        match number {
            0 => peer.write(peer::CLOSE, &peer::close(1000, "")),
            1 => peer.write(peer::RESERVED, b""),
            _ => {}
        }
        let acknowledged = String::from_utf8_lossy(&acknowledged).into_owned();
        came.send(acknowledged).expect("it is waited for");
        while peer.read().is_some() {}
        return;
    }
}
