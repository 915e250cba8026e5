//! What runs on windlass-task: the table of `docs/http.md`.

use std::{
    cell::Cell,
    convert::Infallible,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, Request as AxumRequest, State},
    response::IntoResponse,
    routing::{get as on_get, post as on_post},
};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::{Response, StatusCode, service::service_fn};
use hyper_util::{client::legacy::Client, server::conn::auto};
use tokio_tungstenite::{WebSocketStream, accept_async, client_async, tungstenite::Message};
use windlass_http::{HttpServer, WindlassConnector, local, upgraded_parts};
use windlass_task::{
    Pinned,
    cancel::Cancel,
    net::{TcpListener, TcpStream, UdpSocket, lookup_host},
    rt::{WindlassExecutor, WindlassTimer},
    signal::ctrl_c,
    spawn, spawn_blocking,
    time::{interval, sleep, timeout},
    yield_now,
};

use crate::{
    scenarios::Build,
    tools::{AnyBody, answer, client, collect, get, post, run, start},
};

/// `Router`, with a state that is shared and one that is not `Send`.
fn a_router_of_axum_is_served(build: Build) {
    #[derive(Clone)]
    struct Shared {
        requests: Arc<AtomicUsize>,
        here: Arc<Pinned<Rc<Cell<usize>>>>,
    }
    async fn greet(State(shared): State<Shared>, Path(name): Path<String>) -> String {
        shared.requests.fetch_add(1, Relaxed);
        shared.here.set(shared.here.get() + 1);
        format!("hello, {name}")
    }
    async fn shout(body: String) -> impl IntoResponse {
        (StatusCode::CREATED, body.to_uppercase())
    }
    run(build, async {
        let shared =
            Shared { requests: Arc::default(), here: Arc::new(Pinned::new(Rc::new(Cell::new(0)))) };
        let router = Router::new()
            .route("/hello/{name}", on_get(greet))
            .route("/shout", on_post(shout))
            .with_state(shared.clone());
        let server = start(HttpServer::new(), router).await;
        let mut sender = client(server.connect().await).await;
        for name in ["Ann", "Bob"] {
            let response = sender.send_request(get(&format!("/hello/{name}"))).await.unwrap();
            let (status, body) = collect(response).await;
            assert_eq!((status, body), (StatusCode::OK, format!("hello, {name}").into()));
        }
        let loud = collect(sender.send_request(post("/shout", "quiet")).await.unwrap()).await;
        assert_eq!(loud, (StatusCode::CREATED, "QUIET".into()));
        let missing = sender.send_request(get("/missing")).await.unwrap();
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
        assert_eq!((shared.requests.load(Relaxed), shared.here.get()), (2, 2));
        drop((missing, sender));
        server.stop().await;
    });
}

/// Handlers whose futures hold a socket of this executor, with no, one and several extractors.
fn handlers_of_axum_may_hold_sockets(build: Build) {
    /// A request to the server itself. Without [`local`], axum does not take it.
    async fn relay((State(address), Path(path)): (State<SocketAddr>, Path<String>)) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET /{path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; 512]);
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                count => answer.extend_from_slice(&buffer[..count]),
            }
        }
        let answer = String::from_utf8(answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
    async fn count(State(address): State<SocketAddr>) -> impl IntoResponse {
        let here = Rc::new(Cell::new(1));
        yield_now().await;
        here.set(here.get() + 1);
        (StatusCode::CREATED, format!("{} on {}", here.get(), address.ip()))
    }
    async fn upload((Path(name), body): (Path<String>, String)) -> String {
        let here = Rc::new(name);
        yield_now().await;
        format!("{here}: {body}")
    }
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/relay/{path}", on_get(local(relay)))
            .route("/count", on_get(local(count)))
            .route("/upload/{name}", on_post(local(upload)))
            .route("/hello", on_get(local(async |(): ()| "hello")))
            .with_state(address);
        spawn(HttpServer::new().serve(listener, router)).detach();
        let stream = TcpStream::connect(address).await.unwrap();
        let mut sender = client(stream).await;
        for (request, status, body) in [
            (get("/relay/hello"), StatusCode::OK, "hello"),
            (get("/hello"), StatusCode::OK, "hello"),
            (get("/count"), StatusCode::CREATED, "2 on 127.0.0.1"),
            (post("/upload/Ann", "text"), StatusCode::OK, "Ann: text"),
        ] {
            let response = collect(sender.send_request(request).await.unwrap()).await;
            assert_eq!(response, (status, body.into()));
        }
    });
}

/// Tells at compile time whether a type is `Send`: the method of the type comes before that of the
/// trait, if there is one.
struct Probe<'a, T>(#[expect(dead_code, reason = "its type is what counts")] &'a T);

impl<T: Send> Probe<'_, T> {
    fn is_send(&self) -> bool {
        true
    }
}

trait OtherProbe {
    fn is_send(&self) -> bool {
        false
    }
}

impl<T> OtherProbe for &Probe<'_, T> {}

/// The table in docs/http.md.
fn the_futures_that_are_send_are_known(build: Build) {
    macro_rules! send {
        ($($future:expr,)*) => { [$((stringify!($future), (&Probe(&$future)).is_send())),*] };
    }
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let cancel = Cancel::new();
        let mut interval = interval(Duration::from_secs(1));
        let pinned = Pinned::new(async { Rc::new(1) });
        let task = spawn(async {});
        let blocking = spawn_blocking(|| ()).unwrap();
        let second = Duration::from_secs(1);
        let send = send![
            sleep(second),
            timeout(second, sleep(second)),
            interval.tick(),
            cancel.cancelled(),
            yield_now(),
            blocking,
            pinned,
            lookup_host("localhost:1"),
            TcpListener::bind("127.0.0.1:0"),
        ];
        for (future, is_send) in send {
            assert!(is_send, "{future}");
        }
        let others = send![
            task,
            ctrl_c(),
            TcpStream::connect(address),
            listener.accept(),
            stream.read(&mut []),
            udp.recv_from(&mut []),
        ];
        for (future, is_send) in others {
            assert!(!is_send, "{future}");
        }
    });
}

/// The table in the documentation of `windlass-task`. There is no runtime of tokio.
fn libraries_without_a_runtime_run(build: Build) {
    use futures_util::{future::select_all, stream::FuturesUnordered};
    use tokio_stream::wrappers::ReceiverStream;
    run(build, async {
        let numbers: FuturesUnordered<_> = (0..3).map(|number| async move { number }).collect();
        assert_eq!(numbers.fold(0, |sum, number| async move { sum + number }).await, 3);
        let sleeps = [1, 3600].map(|seconds| Box::pin(sleep(Duration::from_millis(seconds))));
        assert_eq!(select_all(sleeps).await.1, 0, "the shorter one");

        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let (other, inbox) = async_channel::bounded(1);
        let producer = spawn(async move {
            for number in 0..100 {
                sender.send(number).await.unwrap();
                other.send(number).await.unwrap();
            }
        });
        let mut numbers = ReceiverStream::new(receiver);
        for number in 0..100 {
            assert_eq!(numbers.next().await, Some(number));
            assert_eq!(inbox.recv().await, Ok(number));
        }
        producer.await.unwrap();

        let token = tokio_util::sync::CancellationToken::new();
        let ended = token.clone();
        let task = spawn(async move {
            tokio::select! {
                () = ended.cancelled() => "cancelled",
                () = sleep(Duration::from_secs(3600)) => "late",
            }
        });
        token.cancel();
        assert_eq!(task.await.unwrap(), "cancelled");
    });
}

/// axum's own `ws` calls `tokio::spawn`. `hyper::upgrade` and tokio-tungstenite take its place.
fn a_websocket_route_of_axum_is_served(build: Build) {
    async fn upgrade(mut request: AxumRequest) -> impl IntoResponse {
        let key = request.headers()["sec-websocket-key"].as_bytes();
        let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key);
        let upgrade = hyper::upgrade::on(&mut request);
        spawn(async move {
            let parts = upgraded_parts::<TcpStream>(upgrade.await.unwrap()).unwrap();
            let role = tokio_tungstenite::tungstenite::protocol::Role::Server;
            let mut socket = WebSocketStream::from_partially_read(
                parts.stream,
                parts.read_buf.into(),
                role,
                None,
            )
            .await;
            while let Some(Ok(message)) = socket.next().await {
                if message.is_text() {
                    socket.send(message).await.unwrap();
                }
            }
        })
        .detach();
        let headers = [
            ("upgrade", "websocket".to_owned()),
            ("connection", "upgrade".to_owned()),
            ("sec-websocket-accept", accept),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers)
    }
    run(build, async {
        let router = Router::new().route("/ws", on_get(upgrade));
        let server = start(HttpServer::new(), router).await;
        echo_as_client(server.connect().await).await;
        server.stop().await;
    });
}

async fn echo_as_client(stream: TcpStream) {
    let (mut socket, _) = client_async("ws://here/ws", stream).await.unwrap();
    for length in [0, 1, 125, 126, 70_000] {
        let text = "w".repeat(length);
        socket.send(Message::text(text.clone())).await.unwrap();
        let back = socket.next().await.unwrap().unwrap();
        assert_eq!(back.into_text().unwrap(), text.as_str());
    }
    socket.close(None).await.unwrap();
    while let Some(Ok(_)) = socket.next().await {}
}

fn tokio_tungstenite_runs_as_server_and_client(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = accept_async(stream).await.unwrap();
            while let Some(Ok(message)) = socket.next().await {
                if message.is_text() {
                    socket.send(message).await.unwrap();
                }
            }
        });
        echo_as_client(TcpStream::connect(address).await.unwrap()).await;
        server.await.unwrap();
    });
}

fn the_client_of_hyper_util_keeps_connections(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        let client: Client<_, AnyBody> = Client::builder(WindlassExecutor)
            .pool_timer(WindlassTimer::new())
            .build(WindlassConnector);
        for _ in 0..5 {
            let request = get(&format!("http://{}/", server.address));
            let (status, body) = collect(client.request(request).await.unwrap()).await;
            assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
        }
        // Where there is IPv6, its addresses are in brackets.
        if let Ok(listener) = TcpListener::bind("[::1]:0").await {
            let port = listener.local_addr().unwrap().port();
            spawn(HttpServer::new().serve(listener, service_fn(answer))).detach();
            let request = get(&format!("http://[::1]:{port}/"));
            assert_eq!(client.request(request).await.unwrap().status(), StatusCode::OK);
        }
        let tls = client.request(get("https://here/")).await.unwrap_err();
        let source = std::error::Error::source(&tls).unwrap().to_string();
        assert!(source.contains("no TLS"), "{source}");
        drop(client);
        server.stop().await;
    });
}

/// `auto` of hyper-util, as programs use it that have an accept loop of their own.
fn auto_of_hyper_util_runs(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = spawn(async move {
            for _ in 0..2 {
                let (stream, _) = listener.accept().await.unwrap();
                let mut builder = auto::Builder::new(WindlassExecutor);
                builder.http1().timer(WindlassTimer::new());
                builder.http2().timer(WindlassTimer::new());
                let router = Router::new().route("/", on_get(async || "hello"));
                let service = hyper_util::service::TowerToHyperService::new(router);
                spawn(async move { _ = builder.serve_connection(stream, service).await }).detach();
            }
        });
        let mut old = client(TcpStream::connect(address).await.unwrap()).await;
        let response = old.send_request(get("/")).await.unwrap();
        assert_eq!(collect(response).await, (StatusCode::OK, "hello".into()));
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut new, connection) =
            hyper::client::conn::http2::handshake(WindlassExecutor, stream).await.unwrap();
        spawn(async move { _ = connection.await }).detach();
        let mut request = get("http://here/");
        request.headers_mut().remove("host");
        let response = new.send_request(request).await.unwrap();
        assert_eq!(collect(response).await, (StatusCode::OK, "hello".into()));
        server.await.unwrap();
    });
}

/// Services and bodies that are not `Send`.
fn services_need_not_be_send(build: Build) {
    run(build, async {
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        let service = service_fn(move |_| {
            counted.set(counted.get() + 1);
            let text = Rc::new(counted.get().to_string());
            async move {
                windlass_task::yield_now().await;
                Ok::<_, Infallible>(Response::new(String::clone(&text)))
            }
        });
        let server = start(HttpServer::new(), service).await;
        let mut sender = client(server.connect().await).await;
        for expected in ["1", "2"] {
            let (_, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!(body, expected);
        }
        drop(sender);
        server.stop().await;
    });
}

scenarios! {
    a_router_of_axum_is_served,
    handlers_of_axum_may_hold_sockets,
    the_futures_that_are_send_are_known,
    libraries_without_a_runtime_run,
    a_websocket_route_of_axum_is_served,
    tokio_tungstenite_runs_as_server_and_client,
    the_client_of_hyper_util_keeps_connections,
    auto_of_hyper_util_runs,
    services_need_not_be_send,
}
