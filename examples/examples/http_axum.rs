//! An HTTP API of axum and WebSockets of `windlass-server`, on one port and one reactor.
//!
//! `cargo run --example http_axum -- 127.0.0.1:9011`, then `curl 127.0.0.1:9011/count`. The route
//! `/ws` is a chat: each message goes to all others.
//!
//! It shows:
//! - A `Router` is served as it is, with a state that its handlers share.
//! - After the handshake a WebSocket is no task. It belongs to the service of `windlass-server`.
//! - axum asks for handlers that are `Send`. What stays on this thread is in a `Pinned`.
//! - Ctrl-C ends the server gracefully: first its requests, then its WebSockets by Close frames.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    response::Response,
    routing::get,
};
use windlass_http::{HttpServer, websocket::WebSocketRoute};
use windlass_server::{
    Connection, Handler, Message, Options,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_task::{Executor, Pinned, net::TcpListener, signal::ctrl_c};

/// How long WebSockets may take to answer a Close frame at the end.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// What the handlers of requests share.
#[derive(Clone)]
struct Shared {
    requests: Arc<AtomicUsize>,
    chat: Arc<Pinned<WebSocketRoute<Chat>>>,
}

/// Sends each message to all others.
struct Chat;

impl Handler for Chat {
    type Data = ();

    /// Not called here, because axum answers all requests.
    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Err(Reject::status(404))
    }

    fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
        // It fails only for names that are too long or reserved.
        let _ = connection.subscribe("chat");
        // It fails if the connection is closing, and then nobody waits for it.
        let _ = connection.send("welcome");
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        connection.publish_to_others("chat", &message);
    }
}

async fn greet(State(shared): State<Shared>, Path(name): Path<String>) -> String {
    shared.requests.fetch_add(1, Relaxed);
    format!("hello, {name}\n")
}

async fn count(State(shared): State<Shared>) -> String {
    format!("{}\n", shared.requests.load(Relaxed))
}

async fn chat(State(shared): State<Shared>, mut request: Request) -> Response<Body> {
    shared.chat.upgrade(&mut request, ())
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/hello/{name}", get(greet))
        .route("/count", get(count))
        .route("/ws", get(chat))
        .with_state(shared)
}

/// Serves until the future is ready. Then it ends the requests first, which may open WebSockets.
async fn serve(listener: TcpListener, until: impl Future<Output = ()>) -> io::Result<()> {
    let members = WebSocketRoute::new(Chat, &Options::new())?;
    let shared = Shared { requests: Arc::default(), chat: Arc::new(Pinned::new(members)) };
    let server = HttpServer::new().on_event(|event| eprintln!("{event}"));
    server.serve_until(listener, router(shared.clone()), until).await?;
    shared.chat.drain(CLOSE_TIME).await
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9011".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on http://{}/", listener.local_addr()?);
        serve(listener, async { _ = ctrl_c().await }).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpStream as Client},
        time::Duration,
    };
    use tungstenite::{Error, Message as Text, client, protocol::frame::coding::CloseCode};
    use windlass_task::cancel::Cancel;

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = Client::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_and_websockets_share_the_port_and_the_state() {
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let shutdown = Cancel::new();
            let until = shutdown.clone();
            let server = serve(listener, async move { until.cancelled().await });
            let server = windlass_task::spawn(server);
            let clients = windlass_task::spawn_blocking(move || {
                assert!(ask(address, "/hello/Ann").ends_with("\r\n\r\nhello, Ann\n"));
                let url = format!("ws://{address}/ws");
                let connect = || {
                    let stream = Client::connect(address).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                    client(&*url, stream).unwrap().0
                };
                let (mut ann, mut bob) = (connect(), connect());
                for member in [&mut ann, &mut bob] {
                    assert_eq!(member.read().unwrap().into_text().unwrap(), "welcome");
                }
                ann.send(Text::text("hi")).unwrap();
                assert_eq!(bob.read().unwrap().into_text().unwrap(), "hi");
                assert!(ask(address, "/hello/Bob").ends_with("hello, Bob\n"));
                assert!(ask(address, "/count").ends_with("\r\n\r\n2\n"));
                shutdown.cancel();
                for member in [&mut ann, &mut bob] {
                    let close = member.read().unwrap();
                    assert!(
                        matches!(&close, Text::Close(Some(frame)) if frame.code == CloseCode::Away),
                        "{close:?}"
                    );
                    // It answers the Close frame, and then the server ends the connection.
                    assert!(matches!(member.read(), Err(Error::ConnectionClosed)));
                }
            });
            clients.unwrap().await.unwrap();
            server.await.unwrap().unwrap();
        });
    }
}
