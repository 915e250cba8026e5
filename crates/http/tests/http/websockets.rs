//! WebSockets of `windlass-server` on the port of an HTTP service.

use std::{convert::Infallible, rc::Rc, sync::Arc, time::Duration};

use axum::{Router, extract::State, routing::get as on_get};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use tokio_tungstenite::{client_async, tungstenite::Message as ClientMessage};
use windlass_http::{HttpServer, websocket::WebSocketRoute};
use windlass_server::{
    Connection, Handler, Message, Options,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_task::{Pinned, net::TcpStream, spawn, time::sleep};
use windlass_testkit::frames::{TEXT, masked};
use windlass_ws::deflate::DeflateConfig;

use crate::{
    scenarios::Build,
    tools::{client, collect, get, read_head, run, run_paused, start},
};

/// Echoes, with the data of the connection before.
struct Echo;

impl Handler for Echo {
    type Data = String;

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<String>, Reject> {
        Err(Reject::status(404))
    }

    fn on_message(&self, connection: &mut Connection<'_>, name: &mut String, message: Message<'_>) {
        let text = format!("{name}: {}", message.as_str().unwrap());
        connection.send(text.as_str()).unwrap();
    }
}

const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n\
    Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

async fn receive(stream: &mut TcpStream, expected: &str) {
    let mut frame = vec![0; 2 + expected.len()];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(&frame[2..], expected.as_bytes());
}

fn websockets_and_requests_share_a_port(build: Build) {
    run(build, async {
        let route = Rc::new(WebSocketRoute::new(Echo, &Options::new()).unwrap());
        let inside = Rc::clone(&route);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let response = match request.uri().path() {
                "/ws" => inside.upgrade(&mut request, "Ann".to_owned()),
                _ => Response::new("hello".to_owned()),
            };
            async { Ok::<_, Infallible>(response) }
        });
        let server = start(HttpServer::new(), service).await;
        // Frames in the segment of the request, and after the answer.
        for early in [0, 1, 30, 300] {
            let mut stream = server.connect().await;
            let mut sent = HANDSHAKE.as_bytes().to_vec();
            (0..early)
                .for_each(|number: u32| sent.extend(masked(TEXT, number.to_string().as_bytes())));
            stream.write_all(&sent).await.unwrap();
            let head = read_head(&mut stream).await.to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 101 "), "{head}");
            assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
            for number in 0..early {
                receive(&mut stream, &format!("Ann: {number}")).await;
            }
            stream.write_all(&masked(TEXT, b"late")).await.unwrap();
            receive(&mut stream, "Ann: late").await;
        }
        let mut sender = client(server.connect().await).await;
        let (status, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
        assert_eq!((status, body), (StatusCode::OK, "hello".into()));
        drop(sender);
        server.stop().await;
    });
}

fn a_handshake_that_is_none_is_rejected(build: Build) {
    run(build, async {
        let route = Rc::new(WebSocketRoute::new(Echo, &Options::new()).unwrap());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let response: Response<String> = route.upgrade(&mut request, String::new());
            async { Ok::<_, Infallible>(response) }
        });
        let server = start(HttpServer::new(), service).await;
        for (from, to, status) in [
            ("Upgrade: websocket", "Upgrade: h2c", "400"),
            ("keep-alive, Upgrade", "keep-alive", "400"),
            ("GET", "PUT", "400"),
            ("HTTP/1.1", "HTTP/1.0", "400"),
            ("Host: here\r\n", "Host: here\r\nTransfer-Encoding: chunked\r\n", "400"),
            ("Host: here\r\n", "Host: here\r\nContent-Length: 1\r\n", "400"),
            ("Host: here\r\n", "Host: here\r\nContent-Length: 0\r\n", "101"),
            ("Host: here\r\n", "Host: here\r\nHost: here\r\n", "400"),
            (
                "Host: here\r\n",
                "Host: here\r\nOrigin: http://here\r\nOrigin: http://here\r\n",
                "400",
            ),
            ("Host: here\r\n", "Host: here\r\nSec-WebSocket-Version: 13\r\n", "400"),
            ("Host: here\r\n", "Host: here\r\nSec-WebSocket-Version: 12\r\n", "400"),
            (
                "Host: here\r\n",
                "Host: here\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
                "400",
            ),
            ("Connection: keep-alive, Upgrade", "Connection: close\r\nConnection:upgrade", "101"),
            ("Upgrade: websocket", "Upgrade: h2c\r\nUpgrade: WebSocket ", "101"),
            ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", "400"),
            ("Sec-WebSocket-Version: 13\r\n", "", "426"),
            ("Version: 13", "Version: 12", "426"),
            ("Key: dGhl", "Key: dG", "400"),
            ("Host: here\r\n", "Host: here\r\nOrigin: http://there\r\n", "403"),
            ("Host: here\r\n", "Host: here\r\nOrigin: http://here\r\n", "101"),
        ] {
            let mut stream = server.connect().await;
            stream.write_all(HANDSHAKE.replace(from, to).as_bytes()).await.unwrap();
            let head = read_head(&mut stream).await;
            assert_eq!(&head[9..12], status, "{to}: {head}");
            assert_eq!(head.contains("sec-websocket-accept"), status == "101", "{head}");
            assert_eq!(head.contains("sec-websocket-version: 13"), status == "426", "{head}");
            // RFC 9110 section 15.5.22.
            let names_protocol = head.contains("\r\nupgrade: websocket\r\n")
                && head.contains("\r\nconnection: Upgrade");
            assert_eq!(names_protocol, matches!(status, "101" | "426"), "{head}");
        }
        server.stop().await;
    });
}

/// Each connection gets a Close frame. The call ends when the last one is gone.
fn a_drain_closes_the_websockets(build: Build) {
    run(build, async {
        let route = Rc::new(WebSocketRoute::new(Echo, &Options::new()).unwrap());
        let inside = Rc::clone(&route);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let response: Response<String> = inside.upgrade(&mut request, "Ann".to_owned());
            async { Ok::<_, Infallible>(response) }
        });
        let server = start(HttpServer::new(), service).await;
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut stream = server.connect().await;
            stream.write_all(HANDSHAKE.as_bytes()).await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(&masked(TEXT, b"hi")).await.unwrap();
            receive(&mut stream, "Ann: hi").await;
            streams.push(stream);
        }
        server.stop().await;
        let drain = spawn(async move { route.drain(Duration::from_secs(60)).await });
        for stream in &mut streams {
            let mut close = [0; 4];
            stream.read_exact(&mut close).await.unwrap();
            assert_eq!((close[0], &close[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
            assert!(!drain.is_finished(), "a connection is open");
        }
        for mut stream in streams {
            stream.write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]).await.unwrap();
        }
        drain.await.unwrap().unwrap();
    });
}

/// What was agreed holds for the frames.
fn compression_is_negotiated(build: Build) {
    run(build, async {
        let mut options = Options::new();
        options.deflate = Some(DeflateConfig::default());
        let route = Rc::new(WebSocketRoute::new(Echo, &options).unwrap());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let response: Response<String> = route.upgrade(&mut request, "Ann".to_owned());
            async { Ok::<_, Infallible>(response) }
        });
        let server = start(HttpServer::new(), service).await;
        let offer = "Host: here\r\nSec-WebSocket-Extensions: permessage-deflate\r\n";
        for (to, is_agreed) in [(offer, true), ("Host: here\r\n", false)] {
            let mut stream = server.connect().await;
            let handshake = HANDSHAKE.replace("Host: here\r\n", to);
            stream.write_all(handshake.as_bytes()).await.unwrap();
            let head = read_head(&mut stream).await;
            assert_eq!(head.contains("permessage-deflate"), is_agreed, "{head}");
            // "Hello" of RFC 7692 section 7.2.3.1, masked with zeros.
            let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
            stream.write_all(&[&[0xc1, 0x87, 0, 0, 0, 0][..], &hello].concat()).await.unwrap();
            let mut first = [0];
            stream.read_exact(&mut first).await.unwrap();
            // A text, or the Close frame for a bit that was not agreed.
            assert_eq!(first[0] & 0xf, if is_agreed { 1 } else { 8 });
        }
        server.stop().await;
    });
}

/// The answer is larger than all buffers, so it leaves when the peer reads.
fn an_answer_that_is_not_read_in_time_ends_the_hand_over(build: Build) {
    let limit = Duration::from_secs(30);
    for (waits, is_open) in [(limit - Duration::from_secs(1), true), (limit, false)] {
        run_paused(build, async move {
            let route = Rc::new(WebSocketRoute::new(Echo, &Options::new()).unwrap());
            let service = service_fn(move |mut request: Request<Incoming>| {
                let mut response: Response<String> = route.upgrade(&mut request, "Ann".to_owned());
                let long = "l".repeat(16 << 20).parse().unwrap();
                response.headers_mut().insert("long", long);
                async { Ok::<_, Infallible>(response) }
            });
            let server = HttpServer::new().write_timeout(10 * limit);
            let server = start(server, service).await;
            let mut stream = server.connect().await;
            stream.write_all(&[HANDSHAKE.as_bytes(), &masked(TEXT, b"hi")].concat()).await.unwrap();
            sleep(waits).await;
            let (mut buffer, mut end) = (vec![0; 1 << 20], Vec::new());
            while !end.ends_with(b"Ann: hi") {
                match stream.read(&mut buffer).await {
                    Ok(count @ 1..) => end.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
            assert_eq!(end.ends_with(b"Ann: hi"), is_open);
        });
    }
}

fn a_router_of_axum_hands_websockets_over(build: Build) {
    type Route = Arc<Pinned<WebSocketRoute<Echo>>>;
    async fn upgrade(
        State(route): State<Route>,
        mut request: axum::extract::Request,
    ) -> Response<axum::body::Body> {
        route.upgrade(&mut request, "Bob".to_owned())
    }
    run(build, async {
        let route = WebSocketRoute::new(Echo, &Options::new()).unwrap();
        let route: Route = Arc::new(Pinned::new(route));
        let router = Router::new().route("/ws", on_get(upgrade)).with_state(route);
        let server = start(HttpServer::new(), router).await;
        let (mut socket, _) = client_async("ws://here/ws", server.connect().await).await.unwrap();
        for text in ["one", "two"] {
            socket.send(ClientMessage::text(text)).await.unwrap();
            let back = socket.next().await.unwrap().unwrap();
            assert_eq!(back.into_text().unwrap(), format!("Bob: {text}").as_str());
        }
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
        server.stop().await;
    });
}

scenarios! {
    websockets_and_requests_share_a_port,
    a_drain_closes_the_websockets,
    a_handshake_that_is_none_is_rejected,
    compression_is_negotiated,
    an_answer_that_is_not_read_in_time_ends_the_hand_over,
    a_router_of_axum_hands_websockets_over,
}
