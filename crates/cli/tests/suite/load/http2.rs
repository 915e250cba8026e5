//! `windlass load --http2`: WebSockets and requests as streams of HTTP/2, against servers by hyper,
//! one in Python, and servers that have no HTTP/2.

use std::{
    cell::Cell,
    convert::Infallible,
    future::Future,
    net::{SocketAddr, TcpListener},
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use hyper::{
    Request, Response, StatusCode, body::Incoming, server::conn::http2::Builder,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustix::process::{Signal, kill_process};
use tokio_rustls::TlsAcceptor;
use windlass_task::{
    block_on, cancel::Cancel, net::TcpListener as TaskListener, race, rt::WindlassExecutor, spawn,
};
use windlass_testkit::{
    certificates::{certificate, server_config},
    hypercorn::{BODY, Hypercorn},
    waiting::until,
};
use windlass_websocket::{
    CloseCode, Config, DeflateConfig,
    http2::server_settings,
    upgrade::{UpgradedIo, upgrade},
};

use super::runs::{Load, load};
use crate::harness::Server;

/// How the server differs from a good one.
#[derive(Clone, Copy, Default)]
struct Behaviour {
    has_tls: bool,
    has_no_websockets: bool,
    /// Answers so many requests of a connection, and then says GOAWAY.
    requests_max: Option<u64>,
    /// Waits with its answers until so many requests are there.
    requests_together: u64,
    /// The number of a message on each WebSocket that is not echoed.
    bad_message: u64,
    answers_bad_message: Option<BadAnswer>,
}

#[derive(Clone, Copy)]
enum BadAnswer {
    Other,
    None,
    Close,
}

/// A server on a thread of its own, until the process ends.
struct Http2Server {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
}

impl Http2Server {
    fn start(behaviour: Behaviour) -> Self {
        let (told, heard) = std::sync::mpsc::channel();
        let connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            block_on(async {
                let listener = TaskListener::bind("127.0.0.1:0").await.expect("a free port");
                told.send(listener.local_addr().expect("it is bound")).expect("it is awaited");
                let mut config = server_config("localhost");
                config.alpn_protocols = vec![b"h2".to_vec()];
                let acceptor = TlsAcceptor::from(Arc::new(config));
                loop {
                    let (stream, _) = listener.accept().await.expect("a client connects");
                    counted.fetch_add(1, Relaxed);
                    let acceptor = acceptor.clone();
                    spawn(async move {
                        match behaviour.has_tls {
                            false => serve(stream, behaviour).await,
                            true => {
                                if let Ok(stream) = acceptor.accept(stream).await {
                                    serve(TokioIo::new(stream), behaviour).await;
                                }
                            }
                        }
                    })
                    .detach();
                }
            });
        });
        Self { address: heard.recv().expect("it listens"), connections }
    }

    fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://localhost:{}{path}", self.address.port())
    }

    fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }
}

async fn serve<S>(stream: S, behaviour: Behaviour)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
{
    let mut builder = Builder::new(WindlassExecutor);
    if !behaviour.has_no_websockets {
        server_settings(&mut builder, 64);
    }
    let requests = Rc::new(Requests { behaviour, ..Requests::default() });
    let last = requests.last.clone();
    let service = service_fn(move |request| answer(request, Rc::clone(&requests)));
    let mut connection = pin!(builder.serve_connection(stream, service));
    if let windlass_task::Either::Second(()) = race(connection.as_mut(), last.cancelled()).await {
        connection.as_mut().graceful_shutdown();
        // Its end is that of the client.
        let _ = connection.await;
    }
}

/// The requests of a connection.
#[derive(Default)]
struct Requests {
    behaviour: Behaviour,
    count: Cell<u64>,
    /// So many are there as are to come together.
    together: Cancel,
    /// The last one is there.
    last: Cancel,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>>>>;

fn answer(mut request: Request<Incoming>, requests: Rc<Requests>) -> Answer {
    Box::pin(async move {
        let behaviour = requests.behaviour;
        let config = Config::new().deflate(DeflateConfig::DEFAULT);
        if request.uri().path() == "/echo" {
            return Ok(match upgrade(&mut request, &config) {
                Ok((response, upgrading)) => {
                    spawn(async move {
                        echo(upgrading.await.expect("it is upgraded"), behaviour).await;
                    })
                    .detach();
                    response
                }
                Err(refused) => refused.into_response(),
            });
        }
        requests.count.set(requests.count.get() + 1);
        if behaviour.requests_max == Some(requests.count.get()) {
            requests.last.cancel();
        }
        if requests.count.get() >= behaviour.requests_together {
            requests.together.cancel();
        }
        requests.together.cancelled().await;
        let mut response = Response::new("Hello, World!".to_owned());
        if request.uri().path() == "/third" && requests.count.get() == 3 {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Ok(response)
    })
}

async fn echo(mut socket: windlass_websocket::WebSocket<UpgradedIo>, behaviour: Behaviour) {
    let mut number = 0;
    while let Ok(Some(message)) = socket.recv().await {
        number += 1;
        match behaviour.answers_bad_message.filter(|_| number == behaviour.bad_message) {
            None => message.reply().expect("it is open"),
            Some(BadAnswer::None) => {}
            Some(BadAnswer::Other) => {
                let mut bytes = message.as_bytes().to_vec();
                bytes[5] ^= 1;
                socket.send(bytes).await.expect("it is open");
            }
            Some(BadAnswer::Close) => {
                let _ = socket.close(CloseCode::POLICY_VIOLATION, "enough").await;
                return;
            }
        }
    }
}

fn authority() -> String {
    certificate("ca.pem").to_str().expect("it is text").to_owned()
}

#[test]
fn websockets_share_connections() {
    for tls in [false, true] {
        let server = Http2Server::start(Behaviour { has_tls: tls, ..Behaviour::default() });
        let url = server.url(if tls { "wss" } else { "ws" }, "/echo");
        let authority = authority();
        let tls_options = if tls { vec!["--cacert", &*authority] } else { vec![] };
        for (index, options) in [
            &["--size", "0"][..],
            &["--size", "100000", "--depth", "3"],
            &["--text", "utf8", "--rate", "20000"],
            &["--deflate", "--size", "1000", "--depth", "8"],
        ]
        .into_iter()
        .enumerate()
        {
            let counts = "--http2 --connections 3 --streams 5 --workers 2 --messages 400";
            let counts: Vec<&str> = counts.split(' ').collect();
            let loaded = load(&[&[&*url][..], &counts, options, &tls_options].concat());
            assert_eq!(loaded.expect_clean().verified(), 400);
            let json = loaded.json();
            assert_eq!(json["connections"]["opened"], 15);
            assert_eq!(json["parameters"]["streams"], 5);
            assert_eq!(json["tls"]["handshakes"].as_u64(), tls.then_some(3));
            assert_eq!(server.connections(), 3 * (index as u64 + 1));
        }
    }
}

#[test]
fn requests_are_concurrent_up_to_the_depth() {
    for tls in [false, true] {
        let behaviour = Behaviour { has_tls: tls, requests_together: 7, ..Behaviour::default() };
        let server = Http2Server::start(behaviour);
        let url = server.url(if tls { "https" } else { "http" }, "/page?a=b");
        let authority = authority();
        let tls_options = if tls { vec!["--cacert", &*authority] } else { vec![] };
        let options = "--http2 --connections 2 --depth 7 --messages 100 --body-size 13";
        let options: Vec<&str> = options.split(' ').collect();
        let loaded = load(&[&[&*url][..], &options, &tls_options].concat());
        assert_eq!(loaded.expect_clean().verified(), 100);
        assert_eq!((server.connections(), loaded.number("/connections/opened")), (2, 2.0));
        let bytes = loaded.number("/bytes_per_s") * loaded.number("/elapsed_s");
        assert!((bytes - 100.0 * 13.0).abs() < 1e-6, "{bytes}");
    }
}

#[test]
fn a_fixed_rate_measures_from_the_moments() {
    let server = Http2Server::start(Behaviour::default());
    let options = ["--http2", "--connections", "2", "--messages", "50", "--rate", "5000"];
    for url in [server.url("http", "/"), server.url("ws", "/echo")] {
        let loaded = load(&[&[&*url], &options[..]].concat());
        assert_eq!(loaded.expect_clean().verified(), 50);
        assert_eq!(loaded.json()["latency"]["corrected_for_coordinated_omission"], true);
        // The last one is due 49 intervals after the first.
        assert!(loaded.number("/elapsed_s") >= 49.0 / 5000.0, "{loaded:?}");
    }
}

#[test]
fn a_connection_that_the_server_ends_is_opened_again() {
    let server = Http2Server::start(Behaviour { requests_max: Some(5), ..Behaviour::default() });
    let url = server.url("http", "/");
    let options = ["--http2", "--connections", "1", "--depth", "2", "--messages", "20"];
    let loaded = load(&[&[&*url], &options[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 20);
    // Requests that come between the two GOAWAYs of hyper are answered.
    let reconnects = server.connections() - 1;
    assert!(reconnects >= 1);
    assert_eq!(loaded.json()["connections"]["reconnects"], reconnects);
}

#[test]
fn other_statuses_and_bodies_are_not_right() {
    let server = Http2Server::start(Behaviour::default());
    let url = server.url("http", "/third");
    let options = ["--http2", "--connections", "1", "--messages", "10"];
    let loaded = load(&[&[&*url], &options[..]].concat());
    assert_eq!((loaded.status, loaded.verified()), (Some(1), 9));
    assert_eq!(loaded.json()["other_statuses"], serde_json::json!({ "404": 1 }));
    let loaded =
        load(&[&[&*server.url("http", "/")], &options[..], &["--body-size", "5"]].concat());
    loaded.expect_fault("wrong_content", "the body of response 1 has 13 bytes instead of 5");
}

#[test]
fn a_bad_echo_is_a_fault() {
    for (answer, kind, words) in [
        (BadAnswer::Other, "wrong_content", "the answer to message 4 has a wrong byte"),
        (BadAnswer::None, "lost", "no answer to message 4 within 0.3 s"),
        (BadAnswer::Close, "closed_early", "has closed the connection with code 1008: enough"),
    ] {
        let server = Http2Server::start(Behaviour {
            bad_message: 4,
            answers_bad_message: Some(answer),
            ..Behaviour::default()
        });
        let url = server.url("ws", "/echo");
        let options = ["--http2", "--connections", "1", "--messages", "20", "--timeout", "0.3"];
        let options = if kind == "lost" { &options[..] } else { &options[..5] };
        let loaded = load(&[&[&*url], options].concat());
        assert_eq!(loaded.expect_fault(kind, words).verified(), 3);
    }
}

#[test]
fn a_server_without_websockets_over_http2_is_told_from_one_without_http2() {
    let server = Http2Server::start(Behaviour { has_no_websockets: true, ..Behaviour::default() });
    let options = ["--http2", "--connections", "1", "--messages", "1"];
    let loaded = load(&[&[&*server.url("ws", "/echo")], &options[..]].concat());
    loaded.expect_fault("handshake", "the server offers no WebSockets over HTTP/2");
    let loaded = load(&[&[&*server.url("http", "/")], &options[..]].concat());
    loaded.expect_clean();

    let words = "the server does not speak HTTP/2 on this port";
    let plain = Server::start(&[]);
    let loaded = load(&[&[&*format!("http://{}/", plain.address)], &options[..]].concat());
    assert!(loaded.errors.contains(words), "{loaded:?}");
    assert_eq!(loaded.status, Some(1));
    plain.stop_cleanly();
    let (certificate, key) = (certificate("localhost.pem"), certificate("localhost.key"));
    let files = [certificate, key].map(|path| path.to_str().expect("it is text").to_owned());
    let secure = Server::start(&["--tls-cert", &files[0], "--tls-key", &files[1]]);
    for scheme in ["wss", "https"] {
        let url = format!("{scheme}://localhost:{}/echo", secure.address.port());
        let loaded = load(&[&[&*url, "--insecure"], &options[..]].concat());
        loaded.expect_fault("handshake", words);
    }
    secure.stop_cleanly();
}

#[test]
fn a_certificate_that_is_not_trusted_is_named() {
    let server = Http2Server::start(Behaviour { has_tls: true, ..Behaviour::default() });
    let other = certificate("other-ca.pem");
    let options = ["--http2", "--cacert", other.to_str().expect("it is text")];
    let loaded = load(&[&[&*server.url("wss", "/echo")], &options[..]].concat());
    loaded.expect_fault("tls", "the issuer of the server's certificate is not trusted");
}

#[test]
fn a_closed_port_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let loaded = load(&[&format!("ws://{address}/"), "--http2", "--connections", "1"]);
    loaded.expect_fault("connect", &format!("cannot connect to {address}: "));
}

#[test]
fn a_signal_ends_the_measurement_in_order() {
    let server = Http2Server::start(Behaviour::default());
    for url in [server.url("http", "/"), server.url("ws", "/echo")] {
        let options = ["--http2", "--connections", "2", "--duration", "600", "--json", "-"];
        let running = Load::start(&[&[&*url], &options[..]].concat());
        let before = server.connections();
        until(|| (server.connections() > before).then_some(()), || "a connection".to_owned());
        kill_process(running.running().pid(), Signal::INT).expect("it runs");
        let loaded = running.wait();
        assert_eq!(loaded.status, Some(128 + Signal::INT.as_raw()), "{loaded:?}");
        assert_eq!(loaded.errors.matches("windlass:").count(), 0, "{loaded:?}");
    }
}

/// hypercorn 0.18 fails with a `KeyError`, and its connection with it, when a closed socket's
/// stream ends. So each connection has one WebSocket.
#[test]
fn hypercorn_echoes_and_answers() {
    let files = ["localhost.pem", "localhost.key"].map(certificate);
    let Some(server) = Hypercorn::start("load::http2::hypercorn_echoes_and_answers", &files) else {
        return;
    };
    let port = server.address.port();
    let body_size = BODY.len().to_string();
    let (options, authority) = (["--http2", "--connections", "3", "--messages", "60"], authority());
    for (url, more) in [
        (format!("wss://localhost:{port}/"), &["--deflate", "--depth", "4"][..]),
        (format!("https://localhost:{port}/"), &["--body-size", &body_size, "--depth", "4"]),
    ] {
        let loaded = load(&[&[&*url, "--cacert", &authority], &options[..], more].concat());
        assert_eq!(loaded.expect_clean().verified(), 60);
    }
}
