//! The extractor on `windlass-http`, whose runtime is not tokio's.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use axum::{Extension, Router};
use tokio::net::TcpStream;
use windlass_http::HttpServer;
use windlass_task::{block_on, net::TcpListener, spawn, spawn_blocking};
use windlass_websocket::{
    ClientRequest, Config, WebSocket, axum::SocketSpawner, http2::server_settings,
};

use crate::bed::{STREAMS_MAX, ask, client_http2, open, run};

/// Clients of HTTP/1.1 and HTTP/2, in a thread with tokio's runtime.
fn clients(address: SocketAddr) {
    run(async {
        let config = Config::new();
        let connect = async || TcpStream::connect(address).await.expect("it listens");
        let request = ClientRequest::new("localhost", "/echo", config.random_key());
        let socket = WebSocket::client(connect().await, request, &config).await;
        ask(socket.expect("it is accepted")).await;
        let mut sender = client_http2(connect().await).await;
        for _ in 0..3 {
            ask(open(&mut sender, "http", "/echo", &config).await).await;
        }
    });
}

fn serve(app: Router) {
    block_on(async {
        let mut server = HttpServer::new();
        server_settings(server.http2_mut(), STREAMS_MAX);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        spawn(server.serve(listener, app)).detach();
        let clients = spawn_blocking(move || clients(address)).expect("there is room");
        clients.await.expect("the clients are good");
    });
}

#[test]
fn a_program_for_axum_serve_runs_as_it_is_over_both_versions_of_http() {
    serve(crate::axum::app());
}

#[test]
fn a_runtime_of_tokio_that_was_entered_does_not_get_the_sockets() {
    let tokio = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _entered = tokio.enter();
    // Nothing runs the tasks of that runtime.
    serve(crate::axum::app());
}

#[test]
fn a_spawner_comes_before_the_runtime_of_the_thread() {
    let count = Arc::new(AtomicUsize::new(0));
    let spawned = Arc::clone(&count);
    let spawner = SocketSpawner::new(move |task| {
        spawned.fetch_add(1, Relaxed);
        spawn(task).detach();
    });
    serve(crate::axum::app().layer(Extension(spawner)));
    assert_eq!(count.load(Relaxed), 4);
}
