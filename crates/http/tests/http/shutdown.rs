//! Graceful shutdown.

use std::{future::Future, io, pin::Pin, rc::Rc, time::Duration};

use hyper::{StatusCode, service::service_fn};
use windlass_http::{AcceptedConnection, Handshaken, HttpListener, HttpServer};
use windlass_task::{
    cancel::Cancel,
    net::{TcpListener, TcpStream},
    spawn, yield_now,
};

use crate::{
    scenarios::Build,
    tools::{Log, answer, client, collect, get, read_head, read_to_end, run, run_paused, start},
};

/// A service whose requests wait for a signal.
struct Gate {
    entered: Cancel,
    open: Cancel,
}

fn a_shutdown_ends_idle_connections_and_waits_for_requests(build: Build) {
    run(build, async {
        let gate = Rc::new(Gate { entered: Cancel::new(), open: Cancel::new() });
        let log = Log::default();
        let inside = Rc::clone(&gate);
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let gate = Rc::clone(&inside);
            async move {
                if request.uri().path() == "/" && request.headers().contains_key("slow") {
                    gate.entered.cancel();
                    gate.open.cancelled().await;
                }
                answer(request).await
            }
        });
        let server = start(log.server(), service).await;
        let mut silent = server.connect().await;
        let mut idle = server.connect().await;
        idle.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        read_head(&mut idle).await;
        idle.read_exact(&mut [0; 5]).await.unwrap();
        let mut busy = server.connect().await;
        busy.write_all(b"GET / HTTP/1.1\r\nHost: here\r\nSlow: yes\r\n\r\n").await.unwrap();
        gate.entered.cancelled().await;
        server.stop.cancel();
        // Both end at once, while the third one works.
        assert_eq!(read_to_end(&mut silent).await, "");
        assert_eq!(read_to_end(&mut idle).await, "");
        assert!(TcpStream::connect(server.address).await.is_err(), "the port is free");
        assert!(!server.server.is_finished());
        gate.open.cancel();
        let answer = read_to_end(&mut busy).await;
        assert!(answer.contains("connection: close") && answer.ends_with("hello"), "{answer}");
        server.server.await.unwrap().unwrap();
        assert_eq!(log.lines(), [""; 0]);
    });
}

/// Its connections have a request already, which is seen when the gate is open.
struct Gated {
    listener: TcpListener,
    accepted: Cancel,
    open: Cancel,
}

impl HttpListener for Gated {
    type Stream = TcpStream;
    type Handshake = Pin<Box<dyn Future<Output = io::Result<Handshaken<TcpStream>>>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let (stream, peer) = TcpListener::accept(&self.listener).await?;
        self.accepted.cancel();
        let open = self.open.clone();
        let handshake = Box::pin(async move {
            open.cancelled().await;
            let request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec();
            let stream = TcpStream::from_std_with_read_buf(stream.into_std()?, request)?;
            Ok(Handshaken { stream, version: None, is_encrypted: false })
        });
        Ok(AcceptedConnection { handshake, peer: Some(peer) })
    }
}

fn a_request_that_comes_with_the_shutdown_is_answered(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, open, stop) = (Cancel::new(), Cancel::new(), Cancel::new());
        let listener = Gated { listener, accepted: accepted.clone(), open: open.clone() };
        let until = stop.clone();
        let until = async move { until.cancelled().await };
        let server = HttpServer::new().serve_until(listener, service_fn(answer), until);
        let server = spawn(server);
        accepted.cancelled().await;
        // The connection waits at the gate.
        for _ in 0..3 {
            yield_now().await;
        }
        stop.cancel();
        open.cancel();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"), "{answer}");
        server.await.unwrap().unwrap();
    });
}

fn a_request_that_does_not_end_is_cut_off(build: Build) {
    run_paused(build, async {
        struct Tells(Cancel);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.cancel();
            }
        }
        let (log, dropped, entered) = (Log::default(), Cancel::new(), Cancel::new());
        let (tells, enters) = (dropped.clone(), entered.clone());
        let never = service_fn(move |request| {
            let _tells = Tells(tells.clone());
            let enters = enters.clone();
            async move {
                let _tells = _tells;
                enters.cancel();
                std::future::pending::<()>().await;
                answer(request).await
            }
        });
        let server = log.server().shutdown_timeout(Duration::from_secs(3));
        let server = start(server, never).await;
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        entered.cancelled().await;
        let begin = windlass_task::time::now();
        server.stop().await;
        assert_eq!(windlass_task::time::now() - begin, Duration::from_secs(3));
        assert!(dropped.is_cancelled(), "the service's future is gone");
        assert_eq!(read_to_end(&mut stream).await, "");
        assert!(log.lines()[0].starts_with("1 connections did not end in time"));
    });
}

/// Clients ask on and on. A request is answered as a whole, or not at all.
fn a_shutdown_cuts_no_response(build: Build) {
    run(build, async {
        let asked = Rc::new(std::cell::Cell::new(0));
        let count = Rc::clone(&asked);
        let service = service_fn(move |request| {
            count.set(count.get() + 1);
            async move {
                yield_now().await;
                answer(request).await
            }
        });
        let log = Log::default();
        let server = start(log.server(), service).await;
        let mut clients = windlass_task::JoinSet::new();
        for number in 0..12 {
            let stream = server.connect().await;
            let mut sender = client(stream).await;
            clients.spawn(async move {
                let body = vec![b'u'; 1 + number * 10_007];
                let mut answered = 0;
                loop {
                    let request = crate::tools::post("/echo", body.clone());
                    let Ok(response) = sender.send_request(request).await else { break };
                    assert_eq!(collect(response).await, (StatusCode::OK, body.clone().into()));
                    answered += 1;
                    if sender.ready().await.is_err() {
                        break;
                    }
                }
                answered
            });
        }
        while asked.get() < 100 {
            yield_now().await;
        }
        server.stop().await;
        let answered: usize = clients.join_all().await.into_iter().map(Result::unwrap).sum();
        assert_eq!(answered, asked.get());
        assert_eq!(log.lines(), [""; 0]);
    });
}

fn dropping_the_server_closes_everything(build: Build) {
    run(build, async {
        let server = start(Log::default().server(), service_fn(answer)).await;
        let mut sender = client(server.connect().await).await;
        let (status, _) = collect(sender.send_request(get("/")).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK);
        server.server.abort();
        assert!(server.server.await.unwrap_err().is_cancelled());
        assert!(sender.ready().await.is_err() || sender.send_request(get("/")).await.is_err());
        // Once, under load, somebody answered a moment longer: perhaps another test had the port.
        while TcpStream::connect(server.address).await.is_ok() {
            yield_now().await;
        }
    });
}

scenarios! {
    a_shutdown_ends_idle_connections_and_waits_for_requests,
    a_request_that_comes_with_the_shutdown_is_answered,
    a_request_that_does_not_end_is_cut_off,
    a_shutdown_cuts_no_response,
    dropping_the_server_closes_everything,
}
