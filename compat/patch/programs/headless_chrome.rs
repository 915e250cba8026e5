//! A client of a browser's DevTools, on blocking sockets.

mod peer;

use headless_chrome::Browser;
use serde_json::{Value, json};

fn main() {
    let (address, peer) = peer::serve([
        |peer| {
            peer.upgrade();
            // Discovery, and a version.
            answer(peer);
            answer(peer);
            let call = peer.read().expect("a call").1;
            peer.write(peer::PING, b"ping");
            respond(peer, &call);
            // It is before the next call.
            let pong = peer.read().expect("an answer");
            peer.write(peer::CLOSE, &peer::close(1000, ""));
            while peer.read().is_some() {}
            format!("{pong:?}")
        },
        |peer| {
            peer.upgrade();
            answer(peer);
            peer.read().expect("a call");
            peer.write(peer::RESERVED, b"");
            while peer.read().is_some() {}
            String::new()
        },
        |peer| {
            peer.refuse();
            String::new()
        },
    ]);
    let connect = || Browser::connect(format!("ws://{address}/devtools/browser/b"));

    let browser = connect().expect("it is accepted");
    for _ in 0..2 {
        let version = browser.get_version().expect("an answer");
        println!("{} {}", version.product, version.user_agent.len());
    }
    // It fails as soon as the Close frame has arrived.
    while browser.get_version().is_ok() {}
    drop(browser);

    let browser = connect().expect("it is accepted");
    println!("{}", browser.get_version().is_err());
    drop(browser);

    println!("{}", connect().is_err());
    peer::report(peer);
}

fn answer(peer: &mut peer::Peer<std::net::TcpStream>) {
    let call = peer.read().expect("a call").1;
    respond(peer, &call);
}

fn respond(peer: &mut peer::Peer<std::net::TcpStream>, call: &[u8]) {
    let call: Value = serde_json::from_slice(call).expect("it is JSON");
    let result = match call["method"].as_str() {
        Some("Browser.getVersion") => json!({
            "protocolVersion": "1.3", "product": "peer", "revision": "", "jsVersion": "",
            "userAgent": "x".repeat(70_000),
        }),
        _ => json!({}),
    };
    let answer = json!({ "id": call["id"], "result": result });
    peer.write(peer::TEXT, answer.to_string().as_bytes());
}
