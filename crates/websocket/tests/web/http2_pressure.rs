//! Back-pressure of sockets on one connection: each has its own, and memory is bounded.

use futures_util::FutureExt as _;
use tokio::{spawn, sync::mpsc, task::yield_now};
use windlass_websocket::{Config, http2::STREAM_WINDOW, upgrade::UpgradedIo};

use crate::bed::{ask, client_http2, echo, open, run, serve_http2, streams};

type Socket = windlass_websocket::WebSocket<UpgradedIo>;

/// The most that lies between two ends that do not read: the outputs, the pieces on their way to
/// hyper, what hyper holds, and the window.
const HELD_MAX: usize = 2 * (64 << 10) + 4 * (32 << 10) + 3 * STREAM_WINDOW as usize;

/// Sends until the socket waits and nothing moves any more. Returns how many bytes it took.
async fn fill(socket: &mut Socket) -> usize {
    let message = [7; 4096];
    let (mut sent, mut waits) = (0, 0);
    while waits < 1000 {
        match socket.feed(&message[..]).now_or_never() {
            Some(result) => {
                result.expect("the connection is open");
                (sent, waits) = (sent + message.len(), 0);
            }
            None => {
                waits += 1;
                yield_now().await;
            }
        }
        assert!(sent <= HELD_MAX, "{sent} bytes were taken");
    }
    sent
}

#[test]
fn sockets_that_are_not_read_stop_no_other_one() {
    run(async {
        let (ours, theirs) = streams().await;
        let (give, mut stalled) = mpsc::unbounded_channel();
        let config = Config::new();
        spawn(serve_http2(ours, config.clone(), move |path, upgrading| {
            let give = give.clone();
            async move {
                let socket = upgrading.await.expect("it is upgraded");
                match &path[..] {
                    "/stall" => give.send(socket).expect("the test waits"),
                    _ => echo(socket).await,
                }
            }
        }));
        let mut sender = client_http2(theirs).await;
        // hyper's default window of a connection is as large as one of a stream.
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut client = open(&mut sender, "http", "/stall", &config).await;
            let mut server: Socket = stalled.recv().await.expect("it is accepted");
            let (from_client, from_server) = (fill(&mut client).await, fill(&mut server).await);
            assert!(from_client >= STREAM_WINDOW as usize, "{from_client} bytes");
            assert!(from_server >= STREAM_WINDOW as usize, "{from_server} bytes");
            held.push((client, server, from_client));
        }
        ask(open(&mut sender, "http", "/echo", &config).await).await;

        // Nothing is lost: what was sent arrives when it is read.
        let (mut client, mut server, sent) = held.pop().expect("one of them");
        let reader = spawn(async move {
            let mut received = 0;
            while received < sent {
                let message = server.recv().await.expect("it is good").expect("it is open");
                assert!(message.as_bytes() == [7; 4096]);
                received += 4096;
            }
            received
        });
        let client = spawn(async move { while let Ok(Some(_)) = client.recv().await {} });
        assert_eq!(reader.await.expect("all messages"), sent);
        client.abort();
    });
}
