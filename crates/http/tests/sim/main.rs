//! Servers and clients of HTTP in a simulation: requests between hosts, under faults.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode, Version,
    body::{Bytes, Incoming},
    client::conn::{http1, http2},
    header,
    service::service_fn,
};
use windlass::{
    Reactor,
    sim::{Faults, Kernel, Running, Sim},
};
use windlass_http::{HttpServer, upgraded_parts};
use windlass_task::{
    Executor,
    cancel::Cancel,
    net::{TcpListener, TcpStream},
    rt::WindlassExecutor,
    spawn,
    time::{now, sleep, timeout},
    yield_now,
};

const CLIENTS: u8 = 3;
const SHUTDOWN: Duration = Duration::from_secs(10);

/// A loss is known by then: all limits of the server are shorter.
const PATIENCE: Duration = Duration::from_secs(300);

const EMFILE: i32 = 24;
const ENOBUFS: i32 = 105;

fn address() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

/// An executor at the host 10.0.0.`last`. A fault may strike its building.
fn executor(sim: &Sim, last: u8) -> Executor {
    let host = sim.host([10, 0, 0, last].into());
    loop {
        let builder = Executor::builder().reactor(Reactor::builder().sim(&host));
        if let Ok(made) = builder.build() {
            return made;
        }
    }
}

/// Connects. A fault of this host is no loss.
async fn connect() -> io::Result<TcpStream> {
    loop {
        match TcpStream::connect(address()).await {
            Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENOBUFS)) => {
                yield_now().await;
            }
            outcome => return outcome,
        }
    }
}

/// Repeats what a fault may strike.
async fn again<T, E, F: Future<Output = Result<T, E>>>(mut call: impl FnMut() -> F) -> T {
    loop {
        match call().await {
            Ok(made) => return made,
            Err(_) => yield_now().await,
        }
    }
}

/// The body of a request, which says whose it is.
fn body_of(client: u8, request: u8, len: usize) -> Vec<u8> {
    let byte = |place: usize| (place as u8).wrapping_mul(31) ^ client.wrapping_mul(17) ^ request;
    (0..len).map(byte).collect()
}

async fn echo(
    calls: Rc<Cell<usize>>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, Infallible> {
    calls.set(calls.get() + 1);
    Ok(Response::new(request.into_body().boxed()))
}

/// What the clients and the server have seen.
#[derive(Default)]
struct Seen {
    whole: Cell<usize>,
    failed: Cell<usize>,
    calls: Rc<Cell<usize>>,
    events: RefCell<Vec<String>>,
    /// How long the server has taken to end.
    shutdown: Cell<Option<Duration>>,
}

impl Seen {
    fn has_reported(&self, part: &str) -> bool {
        self.events.borrow().iter().any(|event| event.contains(part))
    }
}

/// A time that the seed chooses.
fn chosen(sim: &Sim, longest: Duration) -> Duration {
    Duration::from_nanos(sim.kernel().choose(longest.as_nanos() as u64))
}

/// Starts a server, which shuts down at this time.
fn start_server(sim: &Sim, seen: &Rc<Seen>, until: Duration) -> Running {
    let seen = Rc::clone(seen);
    executor(sim, 2).simulate(sim, async move {
        let listener = again(|| TcpListener::bind(address())).await;
        let (log, calls) = (Rc::clone(&seen), Rc::clone(&seen.calls));
        let server = HttpServer::new()
            .shutdown_timeout(SHUTDOWN)
            .on_event(move |event| log.events.borrow_mut().push(event.to_string()));
        let stop = Cancel::new();
        let stopped = stop.clone();
        let stopped = async move { stopped.cancelled().await };
        let service = service_fn(move |request| echo(Rc::clone(&calls), request));
        let serving = spawn(server.serve_until(listener, service, stopped));
        sleep(until).await;
        let begin = now();
        stop.cancel();
        serving.await.unwrap().unwrap();
        seen.shutdown.set(Some(now() - begin));
    })
}

/// Sends a request and compares the answer. An error is a loss that was reported.
macro_rules! exchange {
    ($sender:expr, $kernel:expr, $client:expr, $number:expr) => {{
        let len = usize::try_from($kernel.choose(40_000)).unwrap();
        let sent = body_of($client, $number, len);
        let request = Request::post("http://host/").header("host", "host");
        let request = request.body(Full::new(Bytes::from(sent.clone()))).unwrap();
        let exchange = async {
            $sender.ready().await.ok()?;
            let response = $sender.send_request(request).await.ok()?;
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers().get("date"), None, "of the real clock");
            let received = response.into_body().collect().await.ok()?.to_bytes();
            // A body has a length, or is chunked, or ends its stream: so a part is an error.
            assert!(received == sent, "{} bytes came of {len}", received.len());
            Some(())
        };
        exchange.await
    }};
}

/// A client with one request after the other on a connection.
async fn client_of_http1(kernel: Kernel, seen: Rc<Seen>, client: u8) {
    for number in 0..4 {
        let Ok(stream) = connect().await else {
            seen.failed.set(seen.failed.get() + 1);
            yield_now().await;
            continue;
        };
        let Ok((mut sender, connection)) = http1::handshake(stream).await else { continue };
        let driver = spawn(async move { _ = connection.await });
        for request in 0..3 {
            // Longer than the server keeps the buffers of an idle connection, now and then.
            sleep(Duration::from_millis(kernel.choose(6) * kernel.choose(4_000))).await;
            let exchange = exchange!(sender, kernel, client, number * 3 + request);
            match exchange {
                Some(()) => seen.whole.set(seen.whole.get() + 1),
                None => {
                    seen.failed.set(seen.failed.get() + 1);
                    break;
                }
            }
        }
        drop(sender);
        driver.abort();
    }
}

/// A client with several requests at once on a connection.
async fn client_of_http2(kernel: Kernel, seen: Rc<Seen>, client: u8) {
    for number in 0..2 {
        let Ok(stream) = connect().await else {
            seen.failed.set(seen.failed.get() + 1);
            yield_now().await;
            continue;
        };
        let handshake = http2::handshake(WindlassExecutor, stream).await;
        let Ok((sender, connection)) = handshake else { continue };
        let driver = spawn(async move { _ = connection.await });
        let requests: Vec<_> = (0..4)
            .map(|request| {
                let (mut sender, seen) = (sender.clone(), Rc::clone(&seen));
                let kernel = kernel.clone();
                spawn(async move {
                    let exchange = exchange!(sender, kernel, client, number * 4 + request);
                    let count = if exchange.is_some() { &seen.whole } else { &seen.failed };
                    count.set(count.get() + 1);
                })
            })
            .collect();
        for request in requests {
            request.await.unwrap();
        }
        drop(sender);
        driver.abort();
    }
}

/// Clients and a server that shuts down while they work.
fn session(sim: &Sim, version: Version, until: Duration) -> Rc<Seen> {
    let seen = Rc::<Seen>::default();
    let server = start_server(sim, &seen, until);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (kernel, seen) = (sim.kernel().clone(), Rc::clone(&seen));
            executor(sim, 3 + client).simulate(sim, async move {
                let work = async {
                    if version == Version::HTTP_2 {
                        client_of_http2(kernel, seen, client).await;
                    } else {
                        client_of_http1(kernel, seen, client).await;
                    }
                };
                timeout(PATIENCE, work).await.expect("a loss is not reported to the client");
            })
        })
        .collect();
    sim.run_until(|| clients.iter().all(Running::has_ended)).unwrap();
    sim.run_until(|| server.has_ended()).unwrap();
    // The clocks of turns and the end of tasks take a while.
    let took = seen.shutdown.get().expect("the server has ended by itself");
    assert!(took <= SHUTDOWN + Duration::from_millis(100), "the shutdown took {took:?}");
    assert!(seen.calls.get() >= seen.whole.get(), "an answer without a call");
    assert!(!seen.has_reported("panicked"), "{:?}", seen.events);
    seen
}

/// How many requests the clients send.
fn requests(version: Version) -> usize {
    usize::from(CLIENTS) * if version == Version::HTTP_2 { 8 } else { 12 }
}

/// Without another owner of a socket, who ends its output behind the stream's back.
fn whole(faults: Faults) -> Faults {
    Faults { half_close: 0, ..faults }
}

#[test]
fn every_request_is_answered_in_calm_weather() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let sim = Sim::new(1, Faults::calm());
        let seen = session(&sim, version, Duration::from_secs(3600));
        assert_eq!((seen.failed.get(), seen.whole.get()), (0, requests(version)));
    }
}

#[test]
fn rough_weather_costs_no_request() {
    for (version, seeds) in [(Version::HTTP_11, 10), (Version::HTTP_2, 6)] {
        windlass::sim::check(|sim| {
            let seen = session(sim, version, Duration::from_secs(3600));
            assert_eq!((seen.failed.get(), seen.whole.get()), (0, requests(version)));
        })
        .seeds(seeds)
        .faults(Faults { too_many_files: 20_000, ..Faults::rough() })
        .run();
    }
}

fn check(version: Version, faults: Faults, seeds: u64) {
    let whole_ones = AtomicUsize::new(0);
    windlass::sim::check(|sim| {
        let seen = session(sim, version, chosen(sim, Duration::from_secs(20)));
        // A peer that is away may need the whole time, and bad luck does not last so long.
        let may_be_late = faults == Faults::hostile();
        assert!(may_be_late || !seen.has_reported("shutdown_timeout"), "{:?}", seen.events);
        whole_ones.fetch_add(seen.whole.get(), Ordering::Relaxed);
    })
    .seeds(seeds)
    .faults(whole(faults.clone()))
    .run();
    assert!(whole_ones.into_inner() > 0, "some requests are answered");
}

#[test]
fn requests_of_http1_are_answered_or_fail_and_a_shutdown_ends() {
    check(Version::HTTP_11, Faults::rough(), 15);
    check(Version::HTTP_11, Faults::hostile(), 20);
}

#[test]
fn requests_of_http2_are_answered_or_fail_and_a_shutdown_ends() {
    check(Version::HTTP_2, Faults::rough(), 8);
    check(Version::HTTP_2, Faults::hostile(), 12);
}

/// A peer that says nothing, or stops in the middle of a request, costs a time that is bounded.
#[test]
fn silent_peers_are_closed_within_the_time_limits() {
    windlass::sim::check(|sim| {
        let seen = Rc::<Seen>::default();
        let server = start_server(sim, &seen, chosen(sim, Duration::from_millis(1)));
        let log = Rc::clone(&seen);
        executor(sim, 9).simulate(sim, async {
            let listener = again(|| TcpListener::bind("10.0.0.9:80")).await;
            let server = HttpServer::new()
                .header_timeout(Duration::from_secs(5))
                .on_event(move |event| log.events.borrow_mut().push(event.to_string()));
            let service = service_fn(|request| echo(Rc::default(), request));
            server.serve(listener, service).await.unwrap();
        });
        let kernel = sim.kernel().clone();
        let client = executor(sim, 3).simulate(sim, async move {
            for _ in 0..3 {
                let mut stream = again(|| TcpStream::connect("10.0.0.9:80")).await;
                let begin = now();
                let text = b"POST / HTTP/1.1\r\nhost: host\r\ncontent-length: 9\r\n";
                let part = usize::try_from(kernel.choose(text.len() as u64)).unwrap();
                let mut room = [0; 256];
                if stream.write_all(&text[..part]).await.is_ok() {
                    while let Ok(1..) = stream.read(&mut room).await {}
                }
                assert!(now() - begin < Duration::from_secs(20));
            }
        });
        sim.run_until(|| client.has_ended() && server.has_ended()).unwrap();
        assert!(!seen.has_reported("panicked"), "{:?}", seen.events);
    })
    .seeds(30)
    .faults(whole(Faults::rough()))
    .run();
}

/// `HttpServer::write_timeout` resets the connection: a part of a response has no clean end.
#[test]
fn a_peer_that_does_not_read_gets_no_part_for_the_whole() {
    const LEN: usize = 600_000;
    let stalled = AtomicUsize::new(0);
    windlass::sim::check(|sim| {
        executor(sim, 2).simulate(sim, async {
            let listener = again(|| TcpListener::bind(address())).await;
            let server = HttpServer::new().write_timeout(Duration::from_secs(5));
            let service = service_fn(|_| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![7; LEN]))))
            });
            server.serve(listener, service).await.unwrap();
        });
        let pause = chosen(sim, Duration::from_secs(20));
        let has_stalled = Rc::new(Cell::new(false));
        let noted = Rc::clone(&has_stalled);
        let client = executor(sim, 3).simulate(sim, async move {
            let mut stream = again(|| TcpStream::connect(address())).await;
            stream.write_all(b"GET / HTTP/1.0\r\nhost: host\r\n\r\n").await.unwrap();
            sleep(pause).await;
            let (mut len, mut room) = (0, vec![0; 9_000]);
            loop {
                match stream.read(&mut room).await {
                    Ok(0) => return assert!(len > LEN, "{len} bytes, and a clean end"),
                    Ok(count) => len += count,
                    Err(_) => return noted.set(true),
                }
            }
        });
        sim.run_until(|| client.has_ended()).unwrap();
        stalled.fetch_add(usize::from(has_stalled.get()), Ordering::Relaxed);
    })
    .seeds(30)
    .faults(whole(Faults::rough()))
    .run();
    assert!(stalled.into_inner() > 0, "no connection has stalled");
}

/// Switches to an echo.
async fn switch(mut request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let upgrade = hyper::upgrade::on(&mut request);
    spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut parts = upgraded_parts::<TcpStream>(upgraded).unwrap();
        let mut room = [0; 64];
        while parts.stream.write_all(&parts.read_buf).await.is_ok() {
            let Ok(count @ 1..) = parts.stream.read(&mut room).await else { return };
            parts.read_buf = Bytes::copy_from_slice(&room[..count]);
        }
    })
    .detach();
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
    response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
    Ok(response)
}

/// Asks for the echo, in two parts, and says something to it. Returns what comes back.
async fn ask_for_echo(kernel: &Kernel, body: &str, said: &str) -> String {
    let request = format!(
        "POST / HTTP/1.1\r\nhost: host\r\nupgrade: echo\r\nconnection: upgrade\r\n\
         content-length: {}\r\n\r\n{body}{said}",
        body.len()
    );
    let (first, rest) = request.split_at(kernel.choose(request.len() as u64) as usize);
    let mut stream = again(|| TcpStream::connect(address())).await;
    stream.write_all(first.as_bytes()).await.unwrap();
    sleep(Duration::from_micros(kernel.choose(2_000))).await;
    // It may have been answered, and closed.
    let _ = stream.write_all(rest.as_bytes()).await;
    let (mut answer, mut room) = (Vec::new(), [0; 256]);
    while !answer.ends_with(said.as_bytes()) {
        let Ok(count @ 1..) = stream.read(&mut room).await else { break };
        answer.extend_from_slice(&room[..count]);
    }
    String::from_utf8(answer).unwrap()
}

/// No byte of a body becomes one of the next protocol, and none of that is lost.
#[test]
fn a_request_with_a_body_does_not_switch_the_protocol() {
    let refused = Arc::new(AtomicUsize::new(0));
    windlass::sim::check(|sim| {
        executor(sim, 2).simulate(sim, async {
            let listener = again(|| TcpListener::bind(address())).await;
            HttpServer::new().serve(listener, service_fn(switch)).await.unwrap();
        });
        let (kernel, noted) = (sim.kernel().clone(), Arc::clone(&refused));
        let client = executor(sim, 3).simulate(sim, async move {
            let answer = ask_for_echo(&kernel, "", "to the echo").await;
            let (head, echo) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            assert_eq!(echo, "to the echo");
            // hyper may drop the rest of the response: docs/http.md, "Limits".
            let (answer, wanted) =
                (ask_for_echo(&kernel, "of the body", "to the echo").await, "HTTP/1.1 400 ");
            let len = answer.len().min(wanted.len());
            assert_eq!(answer[..len], wanted[..len], "{answer}");
            noted.fetch_add(usize::from(len == wanted.len()), Ordering::Relaxed);
        });
        sim.run_until(|| client.has_ended()).unwrap();
    })
    .seeds(30)
    .faults(whole(Faults::rough()))
    .run();
    assert!(refused.load(Ordering::Relaxed) > 0, "no client has read its refusal");
}

#[test]
fn a_session_has_the_same_trace_again() {
    let hash = |version| {
        let sim = Sim::new(5, whole(Faults::hostile()));
        session(&sim, version, Duration::from_secs(1));
        sim.kernel().hash()
    };
    for version in [Version::HTTP_11, Version::HTTP_2] {
        assert_eq!(hash(version), hash(version));
    }
}
