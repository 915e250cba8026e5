//! Many connections at once.

use hyper::service::service_fn;
use windlass_http::HttpServer;
use windlass_task::net::TcpStream;

use crate::{
    scenarios::Build,
    tools::{answer, read_head, run, start},
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

async fn ask(stream: &mut TcpStream) {
    stream.write_all(REQUEST).await.unwrap();
    let head = read_head(stream).await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    stream.read_exact(&mut [0; 5]).await.unwrap();
}

async fn idle_connections(count: usize) {
    let server = start(HttpServer::new(), service_fn(answer)).await;
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = server.connect().await;
        ask(&mut stream).await;
        streams.push(stream);
    }
    // All of them are alive: some are used again, and the shutdown ends all.
    for stream in streams.iter_mut().step_by(97) {
        ask(stream).await;
    }
    server.stop().await;
    for stream in &mut streams {
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

fn many_idle_connections_are_kept_and_ended(build: Build) {
    run(build, idle_connections(500));
}

/// It needs 10,100 descriptors.
fn five_thousand_idle_connections_are_kept_and_ended(build: Build) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: Some(10_500), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted).unwrap();
    run(build, idle_connections(5000));
}

scenarios! {
    many_idle_connections_are_kept_and_ended,
    #[ignore = "needs 10,500 descriptors, and some seconds: run it with --ignored"]
    five_thousand_idle_connections_are_kept_and_ended,
}
