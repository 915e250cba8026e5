//! A client of JSON-RPC by alloy-transport-ws.

mod peer;

use alloy_json_rpc::{Id, Request, Response};
use alloy_pubsub::{PubSubConnect as _, PubSubFrontend};
use alloy_transport::TransportResult;
use alloy_transport_ws::WsConnect;
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (address, peer) = peer::serve([
        |peer| {
            peer.upgrade();
            answer(peer);
            answer(peer);
            // The client ends it.
            format!("{:?}", peer.read().map(|(opcode, _)| opcode))
        },
        // The client connects again after a Close frame, and after an error.
        |peer| {
            peer.upgrade();
            let (_, request) = peer.read().expect("a request");
            peer.write(peer::CLOSE, &peer::close(1000, ""));
            while peer.read().is_some() {}
            String::from_utf8_lossy(&request).into_owned()
        },
        |peer| {
            peer.upgrade();
            let (_, request) = peer.read().expect("the request again");
            peer.write(peer::RESERVED, b"");
            while peer.read().is_some() {}
            String::from_utf8_lossy(&request).into_owned()
        },
        |peer| {
            peer.upgrade();
            answer(peer);
            String::new()
        },
        |peer| {
            peer.refuse();
            String::new()
        },
    ]);
    let connect = || WsConnect::new(format!("ws://{address}/")).into_service();

    let client = connect().await.expect("it is accepted");
    for (id, length) in [(1, 10), (2, 70_000)] {
        let answer = call(&client, id, length).await.expect("an answer");
        println!("{:?} of {} bytes", answer.id, answer.payload.as_success().map_or(0, length_of));
    }
    drop(client);

    let client = connect().await.expect("it is accepted");
    println!("{:?}", call(&client, 3, 10).await.expect("an answer").id);
    drop(client);
    println!("{:?}", connect().await.map(|_| ()).map_err(|error| error.is_transport_error()));
    peer::report(peer);
}

async fn call(client: &PubSubFrontend, id: u64, length: usize) -> TransportResult<Response> {
    let request = Request::new("echo", Id::Number(id), ["x".repeat(length)]);
    client.send(request.serialize().expect("it is JSON")).await
}

fn length_of(result: &impl AsRef<serde_json::value::RawValue>) -> usize {
    result.as_ref().get().len()
}

fn answer(peer: &mut peer::Peer<std::net::TcpStream>) {
    let (_, request) = peer.read().expect("a request");
    let request: Value = serde_json::from_slice(&request).expect("it is JSON");
    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": request["params"][0] });
    peer.write(peer::TEXT, answer.to_string().as_bytes());
}
