//! Requests of HTTP/1.1.

use std::convert::Infallible;

use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use windlass_http::{ConnectionInfo, HttpServer};
use windlass_task::{
    net::{TcpStream, UnixListener, UnixStream},
    spawn,
};

use crate::{
    scenarios::Build,
    tools::{answer, client, collect, get, post, read_to_end, run, start, text},
};

fn many_requests_share_a_connection(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        let mut sender = client(server.connect().await).await;
        for round in 0..50 {
            let (status, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
            let sent = vec![b'x'; round * 997];
            let response = sender.send_request(post("/echo", sent.clone())).await.unwrap();
            if round > 0 {
                assert_eq!(collect(response).await, (StatusCode::OK, sent.into()));
            }
            sender.ready().await.unwrap();
        }
        let missing = sender.send_request(get("/elsewhere")).await.unwrap();
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
        drop((missing, sender));
        server.stop().await;
    });
}

fn pipelined_requests_are_answered_in_order(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        let mut stream = server.connect().await;
        let mut sent = String::new();
        for round in 0..20 {
            let body = "y".repeat(round);
            sent +=
                &format!("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: {round}\r\n\r\n");
            sent += &body;
        }
        sent += "GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
        stream.write_all(sent.as_bytes()).await.unwrap();
        let answers = read_to_end(&mut stream).await;
        let lengths: Vec<usize> = answers
            .lines()
            .filter_map(|line| line.strip_prefix("content-length: "))
            .map(|length| length.parse().unwrap())
            .collect();
        let expected: Vec<usize> = (0..20).chain([5]).collect();
        assert_eq!(lengths, expected, "{answers}");
        assert!(answers.ends_with("\r\n\r\nhello"));
        server.stop().await;
    });
}

fn a_request_may_come_byte_by_byte(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        let mut stream = server.connect().await;
        stream.set_nodelay(true).unwrap();
        // It begins as the preface of HTTP/2 does.
        let request = "POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\
                       Connection: close\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        for byte in request.as_bytes() {
            stream.write_all(&[*byte]).await.unwrap();
            windlass_task::yield_now().await;
        }
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("abc") && answer.ends_with("0\r\n\r\n"), "{answer}");
        server.stop().await;
    });
}

fn old_and_broken_requests_are_answered(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        for (request, start) in [
            ("GET / HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK"),
            ("HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK"),
            ("PRI / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "HTTP/1.1 404"),
            ("nonsense\r\n\r\n", "HTTP/1.1 400"),
        ] {
            let mut stream = server.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = read_to_end(&mut stream).await;
            assert!(answer.starts_with(start), "{request}: {answer}");
            assert_eq!(answer.ends_with("hello"), start.contains("1.0"), "{answer}");
        }
        // A connection that says nothing.
        drop(server.connect().await);
        server.stop().await;
    });
}

fn unix_sockets_are_served(build: Build) {
    run(build, async {
        let path = std::env::temp_dir().join(format!(
            "windlass-http-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let listener = UnixListener::bind(&path).unwrap();
        spawn(HttpServer::new().serve(listener, service_fn(answer))).detach();
        let stream = UnixStream::connect(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        spawn(async move { _ = connection.await }).detach();
        let (status, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
        assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
    });
}

fn a_request_knows_its_peer(build: Build) {
    run(build, async {
        let peer = service_fn(async |request: Request<Incoming>| {
            let info = request.extensions().get::<ConnectionInfo>();
            let peer = info.map(|info| (info.peer.unwrap(), info.is_encrypted));
            Ok::<_, Infallible>(Response::new(format!("{peer:?}")))
        });
        for is_on in [true, false] {
            let server = start(HttpServer::new().connection_info(is_on), peer).await;
            let stream = server.connect().await;
            let expected = is_on.then(|| (stream.local_addr().unwrap(), false));
            let mut sender = client(stream).await;
            let (_, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!(String::from_utf8(body.to_vec()).unwrap(), format!("{expected:?}"));
            drop(sender);
            server.stop().await;
        }
    });
}

fn a_service_of_tower_is_polled_until_it_is_ready(build: Build) {
    #[derive(Clone)]
    struct LateTower(u8);

    impl tower_service::Service<Request<Incoming>> for LateTower {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(
            &mut self,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.0 += 1;
            if self.0 < 3 {
                context.waker().wake_by_ref();
                return std::task::Poll::Pending;
            }
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Incoming>) -> Self::Future {
            std::future::ready(Ok(Response::new(self.0.to_string())))
        }
    }

    run(build, async {
        let server = start(HttpServer::new(), LateTower(0)).await;
        let mut sender = client(server.connect().await).await;
        for _ in 0..2 {
            let (_, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!(body, "3");
        }
        drop(sender);
        server.stop().await;
    });
}

/// Two requests of one connection have different tasks' states: a panic ends the connection alone.
fn a_panic_of_a_service_ends_its_connection(build: Build) {
    run(build, async {
        let log = crate::tools::Log::default();
        let panics = service_fn(async |request: Request<Incoming>| {
            assert_ne!(request.uri().path(), "/panic", "on purpose");
            Ok::<_, Infallible>(Response::new(text("fine")))
        });
        let server = start(log.server(), panics).await;
        let mut other = client(server.connect().await).await;
        collect(other.send_request(get("/")).await.unwrap()).await;
        let mut stream: TcpStream = server.connect().await;
        stream.write_all(b"GET /panic HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, "");
        let (status, _) = collect(other.send_request(get("/")).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK);
        drop(other);
        server.stop().await;
        assert_eq!(log.lines(), ["a service has panicked"]);
    });
}

scenarios! {
    many_requests_share_a_connection,
    pipelined_requests_are_answered_in_order,
    a_request_may_come_byte_by_byte,
    old_and_broken_requests_are_answered,
    unix_sockets_are_served,
    a_request_knows_its_peer,
    a_service_of_tower_is_polled_until_it_is_ready,
    a_panic_of_a_service_ends_its_connection,
}
