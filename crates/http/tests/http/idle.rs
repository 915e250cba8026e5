//! Idle connections of HTTP/1.1, which have no buffers.

use std::{cell::RefCell, convert::Infallible, io, rc::Rc, time::Duration};

use http_body_util::BodyExt as _;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    service::service_fn,
};
use windlass_http::{HttpServer, upgraded_parts};
use windlass_task::{
    JoinHandle,
    cancel::Cancel,
    net::TcpStream,
    spawn,
    time::{now, sleep, sleep_until},
};

use crate::{
    scenarios::Build,
    tools::{
        AnyBody, Log, answer, client, collect, get, post, read_head, read_to_end, run_paused,
        start, text,
    },
    wire::{End, OneWire, Wire},
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

/// The default of `idle_buffers_timeout`.
const IDLE: Duration = Duration::from_secs(1);

/// Shorter than the others, and longer than what a paused clock needs to run all tasks.
const MOMENT: Duration = Duration::from_millis(1);

struct Served {
    wire: Rc<Wire>,
    stop: Cancel,
    server: JoinHandle<io::Result<()>>,
}

impl Served {
    /// The second request is answered as the first one was, and no byte more is sent.
    async fn is_alive(&self) {
        self.wire.push(REQUEST);
        self.is_answered().await;
    }

    async fn is_answered(&self) {
        sleep(MOMENT).await;
        let answer = self.wire.written();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    }

    async fn stop(self) {
        self.stop.cancel();
        self.server.await.unwrap().unwrap();
    }
}

/// Serves one connection in memory.
fn serve<S>(server: HttpServer, service: S) -> Served
where
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<AnyBody>,
            Error = Infallible,
            Future: 'static,
        > + 'static,
{
    let (wire, stop) = (Rc::new(Wire::default()), Cancel::new());
    let (listener, until) = (OneWire(Some(Rc::clone(&wire))), stop.clone());
    let until = async move { until.cancelled().await };
    let server = spawn(server.serve_until(listener, service, until));
    Served { wire, stop, server }
}

fn serve_answer() -> Served {
    serve(HttpServer::new(), service_fn(answer))
}

fn an_idle_connection_frees_its_buffers_and_is_served_again(build: Build) {
    run_paused(build, async {
        let served = serve_answer();
        for _ in 0..3 {
            served.is_alive().await;
            sleep(IDLE - 3 * MOMENT).await;
            assert!(served.wire.has_buffers(), "it was not idle for long");
            // The time begins anew with each request.
            served.is_alive().await;
            sleep(IDLE - 3 * MOMENT).await;
            assert!(served.wire.has_buffers(), "it was not idle for long");
            sleep(4 * MOMENT).await;
            assert!(!served.wire.has_buffers());
        }
        served.is_alive().await;
        assert!(served.wire.has_buffers());
        served.stop().await;
    });
}

fn buffers_can_be_kept(build: Build) {
    run_paused(build, async {
        let server = HttpServer::new().idle_buffers_timeout(Duration::MAX);
        let served = serve(server, service_fn(answer));
        served.is_alive().await;
        sleep(20 * IDLE).await;
        assert!(served.wire.has_buffers());
        served.is_alive().await;
        served.stop().await;
    });
}

/// The request comes with any of the reads around the moment at which the buffers are freed: just
/// before that read, when nobody was woken, or just behind it.
fn a_request_may_come_while_the_buffers_are_freed(build: Build) {
    run_paused(build, async {
        let mut met = [0, 0];
        for reads in 0..6 {
            for is_behind in [false, true] {
                let served = serve_answer();
                served.is_alive().await;
                served.wire.push_later(reads, is_behind, REQUEST);
                sleep(2 * IDLE).await;
                match served.wire.take_later() {
                    None => met[usize::from(is_behind)] += 1,
                    Some(bytes) => served.wire.push(bytes),
                }
                served.is_answered().await;
                served.is_alive().await;
                served.stop().await;
            }
        }
        // hyper's last read, and the first one without hyper.
        assert!(met[0] >= 2 && met[1] >= 2, "{met:?}");
    });
}

/// A head that comes in two parts, and requests of any size around that of the first read.
fn an_idle_connection_takes_requests_in_any_pieces(build: Build) {
    run_paused(build, async {
        let served = serve_answer();
        served.is_alive().await;
        for cut in 1..REQUEST.len() {
            sleep(2 * IDLE).await;
            assert!(!served.wire.has_buffers());
            served.wire.push(&REQUEST[..cut]);
            // Also longer than an idle connection keeps its buffers.
            sleep(if cut % 4 == 0 { 2 * IDLE } else { MOMENT }).await;
            assert_eq!(served.wire.written(), "");
            assert!(served.wire.has_buffers());
            served.wire.push(&REQUEST[cut..]);
            served.is_answered().await;
        }
        for length in [400, 511, 512, 513, 1024, 5000] {
            sleep(2 * IDLE).await;
            let mut request = b"GET / HTTP/1.1\r\nHost: here\r\nLong: ".to_vec();
            request.resize(length - 4, b'x');
            request.extend_from_slice(b"\r\n\r\n");
            served.wire.push(request);
            served.is_answered().await;
        }
        served.stop().await;
    });
}

/// hyper has read a part of the next head together with the request before.
fn a_part_of_a_head_that_was_read_is_kept(build: Build) {
    run_paused(build, async {
        for cut in [1, 5, REQUEST.len() - 1] {
            let served = serve_answer();
            served.wire.push([REQUEST, &REQUEST[..cut]].concat());
            served.is_answered().await;
            sleep(3 * IDLE).await;
            assert_eq!(served.wire.written(), "");
            served.wire.push(&REQUEST[cut..]);
            served.is_answered().await;
            sleep(2 * IDLE).await;
            assert!(!served.wire.has_buffers());
            served.wire.push([REQUEST, REQUEST, REQUEST].concat());
            sleep(MOMENT).await;
            let answers = served.wire.written();
            assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
            served.stop().await;
        }
    });
}

/// A body that comes after its response is no request, whatever its bytes say.
fn a_late_body_is_no_request(build: Build) {
    run_paused(build, async {
        for is_chunked in [false, true] {
            let bodies: Rc<RefCell<Vec<Result<Bytes, String>>>> = Rc::default();
            let collected = Rc::clone(&bodies);
            let service = service_fn(move |request: Request<Incoming>| {
                let collected = Rc::clone(&collected);
                // The response is complete before the body is.
                spawn(async move {
                    let body = request.into_body().collect().await;
                    let body = body.map(|body| body.to_bytes()).map_err(|e| e.to_string());
                    collected.borrow_mut().push(body);
                })
                .detach();
                async { Ok::<_, Infallible>(Response::new(text("hello"))) }
            });
            let served = serve(HttpServer::new(), service);
            let body = [REQUEST, REQUEST].concat();
            let framing = match is_chunked {
                true => String::from("Transfer-Encoding: chunked"),
                false => format!("Content-Length: {}", body.len()),
            };
            served.wire.push(format!("POST / HTTP/1.1\r\nHost: here\r\n{framing}\r\n\r\n"));
            served.is_answered().await;
            for piece in body.chunks(20) {
                sleep(2 * IDLE).await;
                assert!(served.wire.has_buffers(), "the request has not ended");
                match is_chunked {
                    true => served.wire.push(
                        [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
                    ),
                    false => served.wire.push(piece),
                }
            }
            if is_chunked {
                served.wire.push("0\r\n\r\n");
            }
            sleep(3 * IDLE).await;
            assert_eq!(served.wire.written(), "", "there was one request");
            served.is_alive().await;
            served.stop().await;
            let bodies = bodies.borrow();
            assert_eq!(bodies.iter().filter(|some| some.as_deref() == Ok(&body)).count(), 1);
        }
    });
}

fn a_response_that_is_not_with_the_stream_keeps_the_buffers(build: Build) {
    run_paused(build, async {
        let long = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(text(vec![b'z'; 100_000])))
        });
        // In the middle of a write, and before a flush.
        for is_flush_blocked in [false, true] {
            let served = serve(HttpServer::new(), long);
            served.wire.is_flush_blocked.set(is_flush_blocked);
            served.wire.writable.set((!is_flush_blocked).then_some(50_000));
            served.wire.push(REQUEST);
            sleep(5 * IDLE).await;
            assert!(served.wire.has_buffers());
            served.wire.is_flush_blocked.set(false);
            served.wire.writable.set(None);
            served.wire.wake();
            sleep(MOMENT).await;
            let answer = served.wire.written();
            assert_eq!(answer.matches('z').count(), 100_000);
            served.wire.push(REQUEST);
            sleep(2 * IDLE).await;
            assert_eq!(served.wire.written().matches('z').count(), 100_000);
            assert!(!served.wire.has_buffers());
            served.stop().await;
        }
    });
}

/// The time begins when the connection waits for the head, and ends as if hyper had waited.
fn an_idle_connection_is_closed_in_time(build: Build) {
    run_paused(build, async {
        let limit = 5 * IDLE;
        let mut lines = Vec::new();
        for (buffers_timeout, part) in
            [(Duration::MAX, None), (IDLE, None), (Duration::ZERO, None), (IDLE, Some(3 * IDLE))]
        {
            let log = Log::default();
            let server = log.server().header_timeout(limit).idle_buffers_timeout(buffers_timeout);
            let server = start(server, service_fn(answer)).await;
            let mut stream = server.connect().await;
            stream.write_all(REQUEST).await.unwrap();
            read_head(&mut stream).await;
            let begin = now();
            if let Some(wait) = part {
                // A part of a head does not begin the time anew.
                stream.read_exact(&mut [0; 5]).await.unwrap();
                sleep(wait).await;
                stream.write_all(&REQUEST[..9]).await.unwrap();
            }
            read_to_end(&mut stream).await;
            assert_eq!(now() - begin, limit);
            let peer = stream.local_addr().unwrap().to_string();
            server.stop().await;
            assert_eq!(log.lines().len(), 1);
            lines.push(log.lines()[0].replace(&peer, "peer"));
        }
        assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    });
}

/// An earlier alarm comes between two requests, and with one of them.
fn the_time_of_a_busy_connection_begins_with_its_last_request(build: Build) {
    run_paused(build, async {
        let limit = 5 * IDLE;
        for pause in [IDLE / 2, IDLE - 2 * MOMENT, IDLE / 7] {
            let log = Log::default();
            let served = serve(log.server().header_timeout(limit), service_fn(answer));
            for _ in 0..20 {
                served.is_alive().await;
                sleep(pause - MOMENT).await;
            }
            served.is_alive().await;
            sleep(IDLE - 2 * MOMENT).await;
            assert!(served.wire.has_buffers(), "it was not idle for long");
            sleep(2 * MOMENT).await;
            assert!(!served.wire.has_buffers(), "{pause:?}");
            sleep(limit - IDLE - 3 * MOMENT).await;
            assert!(log.lines().is_empty(), "{:?}", log.lines());
            sleep(4 * MOMENT).await;
            assert_eq!(log.lines().len(), 1, "{pause:?}");
            served.stop().await;
        }
    });
}

/// hyper may find a head in the poll that was to end the connection. Then it waits for the next.
fn a_head_that_comes_when_it_is_late_is_answered(build: Build) {
    run_paused(build, async {
        let limit = 5 * IDLE;
        let mut answered = 0;
        for reads in 0..4 {
            let log = Log::default();
            let server = log.server().header_timeout(limit).idle_buffers_timeout(Duration::MAX);
            let served = serve(server, service_fn(answer));
            served.is_alive().await;
            served.wire.push_later(reads, false, REQUEST);
            sleep(limit).await;
            // The connection has ended without it otherwise.
            if served.wire.take_later().is_none() {
                served.is_answered().await;
                sleep(limit - 3 * MOMENT).await;
                assert!(log.lines().is_empty(), "after {reads} reads: {:?}", log.lines());
                answered += 1;
            }
            served.stop().await;
        }
        assert!(answered >= 2, "{answered}");
    });
}

/// hyper waits for its head, and finds it without a read.
fn a_pipelined_request_may_take_long(build: Build) {
    run_paused(build, async {
        let service = service_fn(|request| async {
            sleep(3 * IDLE).await;
            answer(request).await
        });
        let served = serve(HttpServer::new(), service);
        served.wire.push([REQUEST, REQUEST].concat());
        sleep(7 * IDLE).await;
        let answers = served.wire.written();
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
        served.stop().await;
    });
}

fn a_shutdown_ends_idle_connections(build: Build) {
    run_paused(build, async {
        let served = serve_answer();
        served.is_alive().await;
        sleep(2 * IDLE).await;
        assert!(!served.wire.has_buffers());
        let (wire, begin) = (Rc::clone(&served.wire), now());
        served.stop().await;
        assert!(wire.is_shut_down() && wire.is_dropped());
        assert_eq!((now() - begin, wire.written()), (Duration::ZERO, String::new()));
        // A request that is there already is answered.
        let served = serve_answer();
        served.is_alive().await;
        sleep(2 * IDLE).await;
        let wire = Rc::clone(&served.wire);
        wire.push(REQUEST);
        served.stop().await;
        let answer = wire.written();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"), "{answer}");
    });
}

fn ends_and_errors_of_idle_connections_are_those_of_others(build: Build) {
    run_paused(build, async {
        let mut logs = Vec::new();
        for wait in [IDLE / 2, 2 * IDLE] {
            for input in [Ok(Vec::new()), Err(io::ErrorKind::ConnectionReset.into())] {
                let log = Log::default();
                let served = serve(log.server(), service_fn(answer));
                served.is_alive().await;
                sleep(wait).await;
                assert_eq!(served.wire.has_buffers(), wait < IDLE);
                served.wire.put(input);
                sleep(MOMENT).await;
                assert!(served.wire.is_dropped());
                logs.push((served.wire.is_shut_down(), log.lines()));
                served.stop().await;
            }
        }
        // hyper is content with both between two requests.
        assert!(logs.iter().all(|log| *log == (true, Vec::new())), "{logs:?}");
    });
}

/// The shutdown comes in the turn in which the idle time is over, and the output does not end at
/// once, as with TLS. Then hyper is done, and is not taken apart.
fn a_connection_that_ends_is_not_taken_apart(build: Build) {
    run_paused(build, async {
        let begin = now() + MOMENT;
        let wire = Rc::new(Wire::default());
        wire.is_end_blocked.set(true);
        // It waits before the connection does, so it is ready before it.
        let until = async move { sleep_until(begin + IDLE).await };
        let listener = OneWire(Some(Rc::clone(&wire)));
        let server = HttpServer::new().serve_until(listener, service_fn(answer), until);
        let server = spawn(server);
        sleep_until(begin).await;
        wire.push(REQUEST);
        sleep(IDLE + MOMENT).await;
        assert!(wire.written().ends_with("hello"));
        assert_eq!((wire.is_shut_down(), wire.has_buffers()), (true, true));
        // So there are no more answers.
        wire.push(REQUEST);
        sleep(2 * IDLE).await;
        assert_eq!((wire.is_dropped(), wire.is_read_after_end()), (false, false));
        wire.is_end_blocked.set(false);
        wire.wake();
        server.await.unwrap().unwrap();
        assert!(wire.is_dropped());
        assert_eq!(wire.written(), "");
    });
}

fn an_idle_connection_can_be_upgraded(build: Build) {
    run_paused(build, async {
        let upgraded: Rc<RefCell<Vec<u8>>> = Rc::default();
        let read = Rc::clone(&upgraded);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let read = Rc::clone(&read);
            let mut response = Response::new(text("hello"));
            if request.headers().contains_key("upgrade") {
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                let upgrade = hyper::upgrade::on(&mut request);
                spawn(async move {
                    let parts = upgraded_parts::<End>(upgrade.await.unwrap()).unwrap();
                    read.borrow_mut().extend_from_slice(&parts.read_buf);
                })
                .detach();
            }
            async { Ok::<_, Infallible>(response) }
        });
        let served = serve(HttpServer::new(), service);
        served.is_alive().await;
        sleep(2 * IDLE).await;
        assert!(!served.wire.has_buffers());
        let mut request = String::from("GET / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\n");
        request += "Upgrade: other\r\n\r\nand more";
        served.wire.push(request);
        sleep(MOMENT).await;
        let answer = served.wire.written();
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert_eq!(&*upgraded.borrow(), b"and more");
        served.stop().await;
    });
}

/// The same with a client of hyper on a real connection, with bodies.
fn idle_clients_on_tcp_are_served_again(build: Build) {
    run_paused(build, async {
        let server = start(HttpServer::new(), service_fn(answer)).await;
        let mut sender = client(server.connect().await).await;
        for length in [1, 700, 100_000] {
            let (status, body) = collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
            sleep(2 * IDLE).await;
            let sent = vec![b'q'; length];
            let response = sender.send_request(post("/echo", sent.clone())).await.unwrap();
            assert_eq!(collect(response).await, (StatusCode::OK, sent.into()));
            sleep(2 * IDLE).await;
        }
        let mut idle: TcpStream = server.connect().await;
        idle.write_all(REQUEST).await.unwrap();
        read_head(&mut idle).await;
        idle.read_exact(&mut [0; 5]).await.unwrap();
        sleep(2 * IDLE).await;
        drop(sender);
        server.stop().await;
        assert_eq!(read_to_end(&mut idle).await, "");
    });
}

scenarios! {
    an_idle_connection_frees_its_buffers_and_is_served_again,
    buffers_can_be_kept,
    a_request_may_come_while_the_buffers_are_freed,
    an_idle_connection_takes_requests_in_any_pieces,
    a_part_of_a_head_that_was_read_is_kept,
    a_late_body_is_no_request,
    a_response_that_is_not_with_the_stream_keeps_the_buffers,
    an_idle_connection_is_closed_in_time,
    the_time_of_a_busy_connection_begins_with_its_last_request,
    a_head_that_comes_when_it_is_late_is_answered,
    a_pipelined_request_may_take_long,
    a_shutdown_ends_idle_connections,
    ends_and_errors_of_idle_connections_are_those_of_others,
    a_connection_that_ends_is_not_taken_apart,
    an_idle_connection_can_be_upgraded,
    idle_clients_on_tcp_are_served_again,
}
