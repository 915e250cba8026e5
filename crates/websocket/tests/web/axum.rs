//! The extractor beside axum's own: one source, compiled with both imports, and compared.

use axum::Router;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    spawn,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Message as TheirMessage,
        client::IntoClientRequest as _,
        protocol::{CloseFrame as TheirClose, frame::coding::CloseCode as TheirCode},
    },
};
use windlass_websocket::{Config, Transport, WebSocket};

use crate::bed::{client_http2, open, run};

/// The common programs with axum's WebSockets, as a module for one of the two.
macro_rules! programs {
    ($name:ident, $($ws:tt)+) => {
        mod $name {
            use axum::{
                Router,
                extract::{Path, State},
                response::{IntoResponse, Response},
                routing::any,
            };
            use futures_util::{SinkExt as _, StreamExt as _, stream::FusedStream as _};
            use $($ws)+::{
                CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code,
                rejection::WebSocketUpgradeRejection,
            };

            /// An echo, with every setting.
            async fn echo(ws: WebSocketUpgrade) -> Response {
                let requested: Vec<_> = ws.requested_protocols().cloned().collect();
                let ws = ws
                    .protocols(["best", "echo"])
                    .max_message_size(1 << 20)
                    .max_frame_size(1 << 20)
                    .write_buffer_size(0)
                    .max_write_buffer_size(1 << 20)
                    .on_failed_upgrade(|error: axum::Error| panic!("{error}"));
                assert_eq!(ws.selected_protocol().is_some(), !requested.is_empty());
                let selected = ws.selected_protocol().cloned();
                ws.on_upgrade(move |mut socket: WebSocket| async move {
                    assert_eq!(socket.protocol(), selected.as_ref());
                    while let Some(Ok(message)) = socket.recv().await {
                        match message {
                            Message::Text(_) | Message::Binary(_) => {
                                if socket.send(message).await.is_err() {
                                    return;
                                }
                            }
                            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {}
                        }
                    }
                })
            }

            /// Two tasks, one for each half. Says what was received, and closes at the end.
            async fn split(
                ws: WebSocketUpgrade,
                Path(user): Path<String>,
                State(greeting): State<&'static str>,
            ) -> impl IntoResponse {
                ws.on_upgrade(move |socket| async move {
                    let (mut sender, mut receiver) = socket.split();
                    let (give, mut take) = tokio::sync::mpsc::channel::<Message>(16);
                    let sending = tokio::spawn(async move {
                        let hello = Message::text(format!("{greeting} {user}"));
                        sender.send(hello).await.expect("it is open");
                        while let Some(message) = take.recv().await {
                            if sender.send(message).await.is_err() {
                                return;
                            }
                        }
                    });
                    while let Some(Ok(message)) = receiver.next().await {
                        let text = match &message {
                            Message::Text(text) if *text == "close" => {
                                let code = close_code::AWAY;
                                let reason = Utf8Bytes::from_static("as you wish");
                                let close = Message::Close(Some(CloseFrame { code, reason }));
                                give.send(close).await.expect("it is awaited");
                                continue;
                            }
                            Message::Text(text) if *text == "ping" => {
                                let ping = Message::Ping(b"are you there"[..].to_vec().into());
                                give.send(ping).await.expect("it is awaited");
                                continue;
                            }
                            Message::Close(Some(CloseFrame { code, reason })) => {
                                format!("close {code} {reason}")
                            }
                            Message::Close(None) => "close".to_owned(),
                            Message::Text(text) => format!("text {text}"),
                            Message::Binary(bytes) => {
                                format!("binary {bytes:?} {}", message.to_text().is_ok())
                            }
                            Message::Ping(bytes) => format!("ping {bytes:?}"),
                            Message::Pong(bytes) => format!("pong {bytes:?}"),
                        };
                        let _ = give.send(Message::from(text)).await;
                    }
                    drop(give);
                    sending.await.expect("it runs");
                })
            }

            /// Says how the socket ended, as the server saw it.
            async fn ends(ws: WebSocketUpgrade, State(_): State<&'static str>) -> Response {
                ws.on_upgrade(async |mut socket| {
                    let close = Message::Close(None);
                    assert!(socket.send(Message::Pong(b"hi"[..].to_vec().into())).await.is_ok());
                    assert!(socket.send(close).await.is_ok());
                    // Nothing follows a Close frame.
                    assert!(socket.send(Message::text("late")).await.is_err());
                    assert!(matches!(socket.recv().await, Some(Ok(Message::Close(_)))));
                    assert!(socket.recv().await.is_none());
                    assert!(socket.is_terminated());
                    assert!(socket.recv().await.is_none());
                })
            }

            /// Answers with the name of the rejection.
            async fn rejected(
                ws: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
            ) -> Response {
                match ws {
                    Ok(ws) => ws.on_upgrade(|_| async {}),
                    Err(rejection) => {
                        let name = format!("{rejection:?}");
                        let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
                        (rejection.status(), format!("{name}: {}", rejection.body_text()))
                            .into_response()
                    }
                }
            }

            pub(super) fn app() -> Router {
                Router::new()
                    .route("/echo", any(echo))
                    .route("/split/{user}", any(split))
                    .route("/ends", any(ends))
                    .route("/rejected", any(rejected))
                    .with_state("hello")
            }
        }
    };
}

programs!(theirs, axum::extract::ws);
programs!(ours, windlass_websocket::axum);

/// Our programs, for tests of other servers.
pub(crate) fn app() -> Router {
    ours::app()
}

async fn serve(app: Router) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    spawn(async { axum::serve(listener, app).await });
    address
}

async fn connect(
    address: std::net::SocketAddr,
    path: &str,
    protocol: Option<&'static str>,
) -> WebSocketStream<TcpStream> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let mut request = format!("ws://{address}{path}").into_client_request().expect("a URI");
    if let Some(protocol) = protocol {
        let value = protocol.parse().expect("a value");
        request.headers_mut().insert("sec-websocket-protocol", value);
    }
    let (socket, response) = client_async(request, stream).await.expect("it is accepted");
    let chosen = response.headers().get("sec-websocket-protocol");
    // The server's order counts.
    assert_eq!(chosen.map(|value| value.as_bytes()), protocol.map(|_| &b"best"[..]));
    socket
}

/// A message, and how many messages it is answered with.
type Step = (TheirMessage, usize);

/// Sends messages, and notes what comes back until the end.
async fn transcript(app: Router, path: &str, script: &[Step]) -> Vec<String> {
    let mut socket = connect(serve(app).await, path, None).await;
    let mut noted = Vec::new();
    for (message, answers) in script {
        socket.send(message.clone()).await.expect("it is open");
        for _ in 0..*answers {
            let answer = socket.next().await.expect("an answer").expect("it is good");
            noted.push(format!("{answer:?}"));
        }
    }
    while let Some(message) = socket.next().await {
        noted.push(format!("{message:?}"));
    }
    // The pong and the answer to a ping are sent by two tasks.
    noted.sort();
    noted
}

#[test]
fn both_have_the_same_conversation() {
    let text = TheirMessage::text;
    let away = TheirClose { code: TheirCode::Away, reason: "bye".into() };
    let close = (TheirMessage::Close(Some(away)), 0);
    let bytes = TheirMessage::binary(vec![0, 255]);
    let ping = TheirMessage::Ping(b"p".to_vec().into());
    let pong = TheirMessage::Pong(b"q".to_vec().into());
    let scripts: [(&str, Vec<Step>); 4] = [
        ("/echo", vec![(text("one"), 1), (bytes.clone(), 1), (text(""), 1), close.clone()]),
        ("/split/you", vec![(text("one"), 2), (bytes, 1), close]),
        ("/split/you", vec![(ping, 3), (pong, 1), (text("close"), 0)]),
        ("/split/you", vec![(text("ping"), 3), (TheirMessage::Close(None), 0)]),
    ];
    run(async {
        for (path, script) in scripts {
            let theirs = transcript(theirs::app(), path, &script).await;
            let ours = transcript(ours::app(), path, &script).await;
            assert_eq!(ours, theirs, "{path}: {script:?}");
        }
    });
}

#[test]
fn both_end_in_the_same_way() {
    run(async {
        for app in [theirs::app(), ours::app()] {
            let mut socket = connect(serve(app).await, "/ends", None).await;
            let mut seen = Vec::new();
            while let Some(Ok(message)) = socket.next().await {
                seen.push(message);
            }
            assert!(matches!(&seen[..], [TheirMessage::Pong(_), TheirMessage::Close(_)]));
        }
    });
}

#[test]
fn both_select_a_protocol() {
    run(async {
        for app in [theirs::app(), ours::app()] {
            let mut socket = connect(serve(app).await, "/echo", Some("other, echo, best")).await;
            socket.send(TheirMessage::text("hi")).await.expect("it is open");
            let message = socket.next().await.expect("an echo").expect("it is good");
            assert_eq!(message, TheirMessage::text("hi"));
        }
    });
}

#[test]
fn both_reject_with_the_same_status_and_reason() {
    let all = [
        "Host: a",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
    ];
    let without = |name: &str| {
        let left = all.iter().filter(|line| !line.starts_with(name));
        left.map(|line| format!("{line}\r\n")).collect::<String>()
    };
    let requests = [
        format!("POST /rejected HTTP/1.1\r\n{}", without("None")),
        format!("GET /rejected HTTP/1.0\r\n{}", without("None")),
        format!("GET /rejected HTTP/1.1\r\n{}", without("Connection")),
        format!("GET /rejected HTTP/1.1\r\n{}", without("Upgrade")),
        format!("GET /rejected HTTP/1.1\r\n{}", without("Sec-WebSocket-Key")),
        format!("GET /rejected HTTP/1.1\r\n{}", without("Sec-WebSocket-Version")),
    ];
    run(async {
        for request in requests {
            let mut answers = Vec::new();
            for app in [theirs::app(), ours::app()] {
                let mut stream = TcpStream::connect(serve(app).await).await.expect("it listens");
                stream.write_all(request.as_bytes()).await.expect("it is open");
                stream.write_all(b"\r\n").await.expect("it is open");
                stream.shutdown().await.expect("it is open");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.expect("an answer");
                let status = answer.lines().next().unwrap_or_default().to_owned();
                answers
                    .push((status, answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()));
            }
            assert!(answers[0].0.contains(" 4"), "{answers:?}");
            assert_eq!(answers[0], answers[1], "{request}");
        }
    });
}

async fn say<S: Transport>(mut socket: WebSocket<S>) {
    for text in ["one", "two"] {
        socket.send(text).await.expect("it is open");
        let message = socket.recv().await.expect("it is good").expect("an echo");
        assert_eq!(message.as_str(), Some(text));
    }
}

#[test]
fn both_serve_http2() {
    run(async {
        for app in [theirs::app(), ours::app()] {
            let stream = TcpStream::connect(serve(app).await).await.expect("it listens");
            let mut sender = client_http2(stream).await;
            for _ in 0..3 {
                say(open(&mut sender, "http", "/echo", &Config::new()).await).await;
            }
        }
    });
}
