//! Connections that are upgraded to something else.

use std::{cell::Cell, convert::Infallible, rc::Rc};

use hyper::{Method, Request, Response, StatusCode, body::Incoming, header, service::service_fn};
use windlass_http::{HttpServer, upgraded_parts};
use windlass_task::{net::TcpStream, spawn, time::sleep, yield_now};

use crate::{
    scenarios::Build,
    tools::{read_head, run, start},
};

/// Switches to an echo.
async fn upgrade(mut request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let upgrade = hyper::upgrade::on(&mut request);
    spawn(async move {
        let parts = upgraded_parts::<TcpStream>(upgrade.await.unwrap()).unwrap();
        let mut stream = parts.stream;
        stream.write_all(&parts.read_buf).await.unwrap();
        let mut buffer = [0; 64];
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                count => stream.write_all(&buffer[..count]).await.unwrap(),
            }
        }
    })
    .detach();
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
    response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
    Ok(response)
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";

/// Bytes after the request, as many as were read with it, come first.
fn an_upgraded_connection_has_all_bytes(build: Build) {
    run(build, async {
        let server = start(HttpServer::new(), service_fn(upgrade)).await;
        for early in [0, 1, 400, 700, 20_000] {
            let mut stream = server.connect().await;
            let early: Vec<u8> =
                (0..early).map(|place| u8::try_from(place % 251).unwrap()).collect();
            let sent = [REQUEST, &early].concat();
            let (mut back, mut echo) = (vec![0; early.len()], [0; 4]);
            stream.write_all(&sent).await.unwrap();
            let head = read_head(&mut stream).await;
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            stream.read_exact(&mut back).await.unwrap();
            assert_eq!(back, early);
            stream.write_all(b"late").await.unwrap();
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, b"late");
        }
        server.stop().await;
    });
}

fn an_upgraded_connection_outlives_the_server(build: Build) {
    run(build, async {
        let server = start(HttpServer::new().connections_max(1), service_fn(upgrade)).await;
        let mut streams = Vec::new();
        // Upgraded connections do not count.
        for _ in 0..3 {
            let mut stream = server.connect().await;
            stream.write_all(REQUEST).await.unwrap();
            read_head(&mut stream).await;
            streams.push(stream);
        }
        server.stop().await;
        sleep(std::time::Duration::from_millis(1)).await;
        for stream in &mut streams {
            stream.write_all(b"hi").await.unwrap();
            let mut echo = [0; 2];
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, b"hi");
        }
    });
}

fn parts_of_another_type_are_returned(build: Build) {
    run(build, async {
        let service = service_fn(async |mut request: Request<Incoming>| {
            let on_upgrade = hyper::upgrade::on(&mut request);
            spawn(async move {
                let upgraded = on_upgrade.await.unwrap();
                let other = upgraded_parts::<windlass_task::net::UnixStream>(upgraded);
                let parts = upgraded_parts::<TcpStream>(other.unwrap_err()).unwrap();
                let mut stream = parts.stream;
                stream.write_all(b"fine").await.unwrap();
            })
            .detach();
            let mut response = Response::new(String::new());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            Ok::<_, Infallible>(response)
        });
        let server = start(HttpServer::new(), service).await;
        let mut stream = server.connect().await;
        stream.write_all(REQUEST).await.unwrap();
        read_head(&mut stream).await;
        let mut fine = [0; 4];
        stream.read_exact(&mut fine).await.unwrap();
        assert_eq!(&fine, b"fine");
        server.stop().await;
    });
}

/// Bytes of the body would be bytes of the next protocol, or vanish, as they happen to arrive. So
/// the response that switches is replaced.
fn an_upgrade_with_a_body_is_rejected(build: Build) {
    run(build, async {
        let upgraded = Rc::new(Cell::new(0));
        let (count, asked) = (Rc::clone(&upgraded), Rc::new(Cell::new(0)));
        let of_service = Rc::clone(&asked);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (count, asked) = (Rc::clone(&count), Rc::clone(&of_service));
            let upgrade = hyper::upgrade::on(&mut request);
            spawn(async move {
                count.set(count.get() + u32::from(upgrade.await.is_ok()));
                asked.set(asked.get() + 1);
            })
            .detach();
            let mut response = Response::new(String::new());
            if request.method() != Method::CONNECT {
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
                response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
            }
            async { Ok::<_, Infallible>(response) }
        });
        let server = start(HttpServer::new(), service).await;
        let mut requests = 0;
        for first in ["GET /", "POST /", "CONNECT h:1"] {
            for (header, body) in [
                ("Content-Length: 3\r\n", "abc"),
                ("Content-Length: 3\r\n", ""),
                ("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            ] {
                let head = format!(
                    "{first} HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\
                     {header}\r\n"
                );
                let mut stream = server.connect().await;
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                let head = read_head(&mut stream).await.to_ascii_lowercase();
                assert!(head.starts_with("http/1.1 400 "), "{first} {header}{head}");
                assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
                assert!(!head.contains("upgrade"), "{head}");
                // Its end may be a reset, if the body came too late.
                assert!(matches!(stream.read(&mut [0; 8]).await, Ok(0) | Err(_)));
                requests += 1;
                while asked.get() < requests {
                    yield_now().await;
                }
                assert_eq!(upgraded.get(), 0, "the connection was not handed over");
            }
        }
        // An empty body is none.
        let mut stream = server.connect().await;
        let empty = String::from_utf8_lossy(REQUEST).replace("Host", "Content-Length: 0\r\nHost");
        stream.write_all(empty.as_bytes()).await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 101 "));
        server.stop().await;
    });
}

scenarios! {
    an_upgrade_with_a_body_is_rejected,
    an_upgraded_connection_has_all_bytes,
    an_upgraded_connection_outlives_the_server,
    parts_of_another_type_are_returned,
}
