//! HTTP/2, and the choice between versions.

use std::{cell::Cell, rc::Rc};

use hyper::{StatusCode, Version, client::conn::http2, service::service_fn};
use windlass_http::HttpServer;
use windlass_task::{
    JoinSet,
    cancel::Cancel,
    rt::{WindlassExecutor, WindlassTimer},
    spawn,
};

use crate::{
    scenarios::Build,
    tools::{AnyBody, Running, answer, client, collect, get, post, read_to_end, run, start},
};

pub(crate) async fn client2(server: &Running) -> http2::SendRequest<AnyBody> {
    let (sender, connection) = http2::Builder::new(WindlassExecutor)
        .timer(WindlassTimer::new())
        .handshake(server.connect().await)
        .await
        .unwrap();
    spawn(async move { _ = connection.await }).detach();
    sender
}

pub(crate) fn get2(path: &str) -> hyper::Request<AnyBody> {
    let mut request = get(&format!("http://here{path}"));
    request.headers_mut().remove("host");
    request
}

fn both_versions_are_served_on_one_port(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        let mut old = client(server.connect().await).await;
        let mut new = client2(&server).await;
        for _ in 0..3 {
            let response = old.send_request(get("/")).await.unwrap();
            assert_eq!(response.version(), Version::HTTP_11);
            collect(response).await;
            let response = new.send_request(get2("/")).await.unwrap();
            assert_eq!(response.version(), Version::HTTP_2);
            assert_eq!(response.headers()["content-length"], "5");
            assert_eq!(collect(response).await, (StatusCode::OK, "hello".into()));
        }
        drop((old, new));
        server.stop().await;
    });
}

fn streams_of_a_connection_run_at_once(build: Build) {
    run(build, async {
        const COUNT: usize = 40;
        let (inside, open) = (Rc::new(Cell::new(0)), Cancel::new());
        let service = {
            let (inside, open) = (Rc::clone(&inside), open.clone());
            service_fn(move |request| {
                inside.set(inside.get() + 1);
                if inside.get() == COUNT {
                    open.cancel();
                }
                let open = open.clone();
                async move {
                    open.cancelled().await;
                    answer(request).await
                }
            })
        };
        let server = start(HttpServer::new(), service).await;
        let sender = client2(&server).await;
        let mut requests = JoinSet::new();
        for number in 0..COUNT {
            let mut sender = sender.clone();
            requests.spawn(async move {
                let body = vec![b'z'; 1 + number * 3001];
                let mut request = post("http://here/echo", body.clone());
                request.headers_mut().remove("host");
                let response = sender.send_request(request).await.unwrap();
                assert_eq!(collect(response).await, (StatusCode::OK, body.into()));
            });
        }
        for outcome in requests.join_all().await {
            outcome.unwrap();
        }
        assert_eq!(inside.get(), COUNT);
        drop(sender);
        server.stop().await;
    });
}

fn a_shutdown_ends_http2_after_its_streams(build: Build) {
    run(build, async {
        let (entered, open) = (Cancel::new(), Cancel::new());
        let (enters, opens) = (entered.clone(), open.clone());
        let service = service_fn(move |request| {
            let (enters, opens) = (enters.clone(), opens.clone());
            async move {
                enters.cancel();
                opens.cancelled().await;
                answer(request).await
            }
        });
        let server = start(HttpServer::new(), service).await;
        let mut sender = client2(&server).await;
        let response = spawn({
            let mut sender = sender.clone();
            async move { sender.send_request(get2("/")).await.map(|response| response.status()) }
        });
        entered.cancelled().await;
        server.stop.cancel();
        for _ in 0..10 {
            windlass_task::yield_now().await;
        }
        assert!(!server.server.is_finished());
        open.cancel();
        assert_eq!(response.await.unwrap().unwrap(), StatusCode::OK);
        server.server.await.unwrap().unwrap();
        assert!(sender.send_request(get2("/")).await.is_err());
    });
}

fn a_version_can_be_switched_off(build: Build) {
    run(build, async {
        let server = start(HttpServer::new().http2_only(), service_fn(answer)).await;
        let mut sender = client2(&server).await;
        assert_eq!(sender.send_request(get2("/")).await.unwrap().status(), StatusCode::OK);
        drop(sender);
        let mut old = server.connect().await;
        old.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        let mut all = Vec::new();
        let mut buffer = [0; 256];
        while let Ok(count @ 1..) = old.read(&mut buffer).await {
            all.extend_from_slice(&buffer[..count]);
        }
        assert!(!all.starts_with(b"HTTP/1.1"), "{}", String::from_utf8_lossy(&all));
        server.stop().await;
        let server = start(HttpServer::new().http1_only(), service_fn(answer)).await;
        let mut stream = server.connect().await;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(!answer.contains("200"), "{answer}");
        server.stop().await;
    });
}

scenarios! {
    both_versions_are_served_on_one_port,
    streams_of_a_connection_run_at_once,
    a_shutdown_ends_http2_after_its_streams,
    a_version_can_be_switched_off,
}
