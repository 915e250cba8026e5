//! What runs on windlass-task: the table of `docs/http.md`.

use std::{
    cell::Cell,
    convert::Infallible,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
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
use windlass_http::{HttpServer, WindlassConnector, upgraded_parts};
use windlass_task::{
    Pinned,
    net::{TcpListener, TcpStream},
    rt::{WindlassExecutor, WindlassTimer},
    spawn,
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

/// axum's own `ws` calls `tokio::spawn`. `hyper::upgrade` and tokio-tungstenite take its place.
fn a_websocket_route_of_axum_is_served(build: Build) {
    async fn upgrade(mut request: AxumRequest) -> impl IntoResponse {
        let key = request.headers()["sec-websocket-key"].as_bytes();
        let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key);
        let upgrade = hyper::upgrade::on(&mut request);
        spawn(async move {
            let parts = upgraded_parts::<TcpStream>(upgrade.await.unwrap()).unwrap();
            let role = tokio_tungstenite::tungstenite::protocol::Role::Server;
            let mut socket =
                WebSocketStream::from_partially_read(parts.stream, parts.read.into(), role, None)
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
    a_websocket_route_of_axum_is_served,
    tokio_tungstenite_runs_as_server_and_client,
    the_client_of_hyper_util_keeps_connections,
    auto_of_hyper_util_runs,
    services_need_not_be_send,
}
