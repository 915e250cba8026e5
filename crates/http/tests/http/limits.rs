//! Limits of connections and times.

use std::time::Duration;

use hyper::service::service_fn;
use windlass_task::time::{now, sleep};

use crate::{
    scenarios::Build,
    tools::{Log, answer, client, collect, get, read_head, read_to_end, run, run_paused, start},
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

fn connections_beyond_the_limit_wait(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server().connections_max(2), service_fn(answer)).await;
        let mut first = client(server.connect().await).await;
        let mut second = client(server.connect().await).await;
        for sender in [&mut first, &mut second] {
            collect(sender.send_request(get("/")).await.unwrap()).await;
        }
        let mut third = server.connect().await;
        third.write_all(REQUEST).await.unwrap();
        // The others are served, and the third one is not.
        for _ in 0..5 {
            collect(first.send_request(get("/")).await.unwrap()).await;
        }
        let mut byte = [0];
        {
            let mut early = Box::pin(third.read(&mut byte));
            std::future::poll_fn(|context| {
                assert!(early.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            drop(second);
            assert_eq!(early.await.unwrap(), 1);
        }
        assert_eq!(&byte, b"H");
        drop((first, third));
        server.stop().await;
        let limit = "connection limit 2 reached; raise `connections_max`, or let clients wait";
        assert!(log.lines().iter().all(|line| line == limit), "{:?}", log.lines());
        assert!(!log.lines().is_empty());
    });
}

/// The clock passes when nothing else can run, so the times are exact.
fn slow_heads_and_silent_connections_are_closed(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let limit = Duration::from_secs(7);
        let server = start(log.server().header_timeout(limit), service_fn(answer)).await;
        // Nothing at all.
        let mut silent = server.connect().await;
        let begin = now();
        assert_eq!(read_to_end(&mut silent).await, "");
        assert_eq!(now() - begin, limit);
        // A part of a head, and of the preface of HTTP/2.
        for part in [&b"GET / HTTP/1.1\r\nHost:"[..], b"PRI * HTT"] {
            let mut slow = server.connect().await;
            slow.write_all(part).await.unwrap();
            let begin = now();
            read_to_end(&mut slow).await;
            assert!(now() - begin <= 2 * limit);
        }
        // Idle after a request.
        let mut idle = server.connect().await;
        idle.write_all(REQUEST).await.unwrap();
        read_head(&mut idle).await;
        let begin = now();
        assert!(read_to_end(&mut idle).await.ends_with("hello"));
        assert_eq!(now() - begin, limit);
        server.stop().await;
        assert!(log.lines()[0].contains("no request came within"), "{:?}", log.lines());
    });
}

/// A request that takes long is no slow head, and each head has the whole time.
fn requests_may_take_longer_than_their_heads(build: Build) {
    run_paused(build, async {
        let limit = Duration::from_secs(5);
        let slow = service_fn(move |request| async move {
            sleep(3 * limit).await;
            answer(request).await
        });
        let server = start(windlass_http::HttpServer::new().header_timeout(limit), slow).await;
        let mut sender = client(server.connect().await).await;
        for _ in 0..4 {
            let begin = now();
            collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!(now() - begin, 3 * limit);
            sleep(limit / 2).await;
        }
        drop(sender);
        server.stop().await;
    });
}

fn a_head_that_is_too_large_is_rejected(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server().head_bytes_max(8192), service_fn(answer)).await;
        let mut stream = server.connect().await;
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\nLong: {}", "x".repeat(8192));
        stream.write_all(head.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
        drop(stream);
        server.stop().await;
        assert!(log.lines()[0].contains("connection failed: message head is too large"));
    });
}

scenarios! {
    connections_beyond_the_limit_wait,
    slow_heads_and_silent_connections_are_closed,
    requests_may_take_longer_than_their_heads,
    a_head_that_is_too_large_is_rejected,
}
