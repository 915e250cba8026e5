//! Services and bodies that panic, end their own server or lie, in each place that calls them.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    rc::Rc,
};

use http_body_util::BodyExt as _;
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Buf, Bytes, Frame, Incoming, SizeHint},
    header,
    service::service_fn,
    upgrade::Upgraded,
};
use windlass_http::HttpServer;
use windlass_task::{AbortHandle, cancel::Cancel, spawn};

use crate::{
    scenarios::Build,
    tools::{AnyBody, Log, client, collect, get, read_head, read_to_end, run, start, text},
    versions::{client2, get2},
};

/// Where the code of a service is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    Call,
    Poll,
    FutureDrop,
    BodyHint,
    BodyEnd,
    BodyPoll,
    BodyDrop,
    Chunk,
    Advance,
    DataDrop,
}

const PLACES: [Place; 11] = [
    Place::Ready,
    Place::Call,
    Place::Poll,
    Place::FutureDrop,
    Place::BodyHint,
    Place::BodyEnd,
    Place::BodyPoll,
    Place::BodyDrop,
    Place::Chunk,
    Place::Advance,
    Place::DataDrop,
];

type Act = Rc<dyn Fn(Place)>;

/// A service of tower with its future, its body and the data of the body. Each tells where it is.
#[derive(Clone)]
struct Tells(Act);

impl tower_service::Service<Request<Incoming>> for Tells {
    type Response = Response<TellsPart>;
    type Error = Infallible;
    type Future = TellsFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0(Place::Ready);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Incoming>) -> TellsFuture {
        self.0(Place::Call);
        TellsFuture(Rc::clone(&self.0))
    }
}

struct TellsFuture(Act);

impl Future for TellsFuture {
    type Output = Result<Response<TellsPart>, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.0(Place::Poll);
        let body = TellsPart { act: Rc::clone(&self.0), drop: Place::BodyDrop, left: b"hello" };
        Poll::Ready(Ok(Response::new(body)))
    }
}

impl Drop for TellsFuture {
    fn drop(&mut self) {
        self.0(Place::FutureDrop);
    }
}

/// A body, or its data.
struct TellsPart {
    act: Act,
    drop: Place,
    left: &'static [u8],
}

impl Body for TellsPart {
    type Data = TellsPart;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<TellsPart>, Infallible>>> {
        (self.act)(Place::BodyPoll);
        let left = core::mem::take(&mut self.left);
        if left.is_empty() {
            return Poll::Ready(None);
        }
        let data = TellsPart { act: Rc::clone(&self.act), drop: Place::DataDrop, left };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        (self.act)(Place::BodyEnd);
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        (self.act)(Place::BodyHint);
        SizeHint::with_exact(self.left.len() as u64)
    }
}

impl Buf for TellsPart {
    fn remaining(&self) -> usize {
        self.left.len()
    }

    fn chunk(&self) -> &[u8] {
        (self.act)(Place::Chunk);
        self.left
    }

    fn advance(&mut self, count: usize) {
        (self.act)(Place::Advance);
        self.left = &self.left[count..];
    }
}

impl Drop for TellsPart {
    fn drop(&mut self) {
        (self.act)(self.drop);
    }
}

/// Sends a request, and reads the response as far as it comes.
async fn ask(server: &crate::tools::Running, is_http2: bool) -> Option<(StatusCode, Bytes)> {
    let response = match is_http2 {
        true => client2(server).await.send_request(get2("/")).await.ok()?,
        false => client(server.connect().await).await.send_request(get("/")).await.ok()?,
    };
    let status = response.status();
    Some((status, response.into_body().collect().await.ok()?.to_bytes()))
}

fn a_panic_in_any_place_ends_no_other_connection(build: Build) {
    run(build, async {
        for is_http2 in [false, true] {
            for place in PLACES {
                let (log, is_armed) = (Log::default(), Rc::new(Cell::new(false)));
                let armed = Rc::clone(&is_armed);
                let act: Act = Rc::new(move |here| {
                    if here == place && armed.replace(false) {
                        panic!("on purpose");
                    }
                });
                let server = start(log.server(), Tells(act)).await;
                let mut other = client(server.connect().await).await;
                collect(other.send_request(get("/")).await.unwrap()).await;
                is_armed.set(true);
                let answer = ask(&server, is_http2).await;
                assert!(!is_armed.get(), "{place:?} was not reached with HTTP/2 {is_http2}");
                // These may be called when everything was sent.
                let is_late = matches!(place, Place::Advance | Place::BodyDrop | Place::DataDrop);
                assert!(answer.is_none() || is_late, "{place:?} with HTTP/2 {is_http2}");
                for is_http2 in [false, true] {
                    let good = ask(&server, is_http2).await;
                    assert_eq!(good, Some((StatusCode::OK, "hello".into())), "{place:?}");
                }
                collect(other.send_request(get("/")).await.unwrap()).await;
                drop(other);
                server.stop().await;
                let lines = log.other_lines();
                assert_eq!(lines, ["a service has panicked"], "{place:?} with HTTP/2 {is_http2}");
            }
        }
    });
}

fn a_service_may_end_its_own_server_in_any_place(build: Build) {
    run(build, async {
        for is_http2 in [false, true] {
            for place in PLACES {
                for is_abort in [false, true] {
                    let handle: Rc<RefCell<Option<(AbortHandle, Cancel)>>> = Rc::default();
                    let ends = Rc::clone(&handle);
                    let act: Act = Rc::new(move |here| {
                        let taken = if here == place { ends.borrow_mut().take() } else { None };
                        match taken {
                            Some((server, _)) if is_abort => server.abort(),
                            Some((_, stop)) => stop.cancel(),
                            None => {}
                        }
                    });
                    let server = start(HttpServer::new(), Tells(act)).await;
                    let ends = (server.server.abort_handle(), server.stop.clone());
                    *handle.borrow_mut() = Some(ends);
                    let answer = ask(&server, is_http2).await;
                    assert!(handle.borrow().is_none(), "{place:?} was not reached");
                    match is_abort {
                        true => assert!(server.server.await.is_err_and(|e| e.is_cancelled())),
                        false => {
                            // The request was there before the shutdown.
                            assert_eq!(answer, Some((StatusCode::OK, "hello".into())), "{place:?}");
                            server.server.await.unwrap().unwrap();
                        }
                    }
                }
            }
        }
    });
}

/// A body whose size is not what it says.
struct Lies {
    said: SizeHint,
    is_end: bool,
    pieces: usize,
}

impl Body for Lies {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.pieces == 0 {
            return Poll::Ready(None);
        }
        self.pieces -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"HTTP/1.1 ")))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_end
    }

    fn size_hint(&self) -> SizeHint {
        self.said
    }
}

/// What the body has too much, or too little, is never taken for the next response.
fn a_body_that_lies_about_its_size_ends_its_response_alone(build: Build) {
    run(build, async {
        let unknown = SizeHint::new();
        let mut at_most = SizeHint::new();
        at_most.set_upper(3);
        let exactly = SizeHint::with_exact;
        for (said, is_end, pieces) in [
            (exactly(20), false, 1),
            (exactly(20), false, 0),
            (exactly(4), false, 1),
            (exactly(9), false, 3),
            (exactly(0), false, 2),
            (exactly(u64::MAX), false, 1),
            (at_most, false, 2),
            (unknown, true, 2),
            (exactly(9), true, 1),
        ] {
            let service = service_fn(move |request: Request<Incoming>| {
                let body: AnyBody = match request.uri().path() {
                    "/lie" => Lies { said, is_end, pieces }.map_err(|n| match n {}).boxed(),
                    _ => text("true"),
                };
                async { Ok::<_, Infallible>(Response::new(body)) }
            });
            let server = start(HttpServer::new(), service).await;
            // The streams of HTTP/2 are apart in any case.
            let mut sender = client2(&server).await;
            if let Ok(response) = sender.send_request(get2("/lie")).await {
                let _ = response.into_body().collect().await;
            }
            let response = client2(&server).await.send_request(get2("/")).await.unwrap();
            assert_eq!(collect(response).await, (StatusCode::OK, "true".into()));
            drop(sender);
            // Both in one segment. The second response is whole, or the connection has ended.
            let mut stream = server.connect().await;
            let lie = "GET /lie HTTP/1.1\r\nHost: h\r\n\r\n";
            let last = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            stream.write_all(format!("{lie}{last}").as_bytes()).await.unwrap();
            let answers = read_to_end(&mut stream).await;
            let Some((head, rest)) = answers.split_once("\r\n\r\n") else {
                assert_eq!(answers, "");
                server.stop().await;
                continue;
            };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let after = match length {
                Some(length) => rest.get(length.parse().unwrap()..),
                None => rest.split_once("0\r\n\r\n").map(|(_, after)| after),
            };
            let after = after.unwrap_or_default();
            let is_whole = after.starts_with("HTTP/1.1 200 OK\r\n") && after.ends_with("\r\ntrue");
            assert!(after.is_empty() || is_whole, "{answers}");
            server.stop().await;
        }
    });
}

/// What becomes of an upgraded connection.
type Ends = fn(Upgraded);

/// `None` drops the future before it is ready. The server has one place, which is free again.
fn an_upgrade_that_nobody_takes_closes_its_connection(build: Build) {
    const ENDS: [Option<Ends>; 4] = [
        None,
        Some(drop::<Upgraded>),
        Some(|upgraded| std::thread::spawn(move || drop(upgraded)).join().unwrap()),
        Some(|upgraded| {
            let ends = std::thread::spawn(move || {
                let _upgraded = upgraded;
                panic!("on purpose");
            });
            assert!(ends.join().is_err());
        }),
    ];
    run(build, async {
        for ends in ENDS {
            let service = service_fn(move |mut request: Request<Incoming>| {
                let upgrade = hyper::upgrade::on(&mut request);
                if let Some(ends) = ends {
                    spawn(async move { ends(upgrade.await.unwrap()) }).detach();
                }
                let mut response = Response::new(String::new());
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
                response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
                async { Ok::<_, Infallible>(response) }
            });
            let server = start(HttpServer::new().connections_max(1), service).await;
            for _ in 0..3 {
                let mut stream = server.connect().await;
                let head =
                    "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 101 "));
                assert_eq!(read_to_end(&mut stream).await, "");
            }
            server.stop().await;
        }
    });
}

/// An error whose conversion panics.
#[derive(Debug)]
struct ExplosiveError;

impl From<ExplosiveError> for Box<dyn std::error::Error + Send + Sync> {
    fn from(_: ExplosiveError) -> Self {
        panic!("on purpose");
    }
}

fn a_panic_in_the_conversion_of_an_error_is_reported(build: Build) {
    run(build, async {
        let log = Log::default();
        let service = service_fn(async |_| Err::<Response<String>, _>(ExplosiveError));
        let server = start(log.server(), service).await;
        assert_eq!(ask(&server, true).await, None);
        server.stop().await;
        assert_eq!(log.other_lines(), ["a service has panicked"]);
    });
}

/// hyper drops the body of the response, which is not sent.
fn a_panic_in_the_body_of_a_tunnel_is_reported_and_nothing_leaks(build: Build) {
    run(build, async {
        let log = Log::default();
        let probe = Rc::new(());
        let service = service_fn(async |_| {
            let act: Act = Rc::new(|place| assert_ne!(place, Place::BodyDrop, "on purpose"));
            let body = TellsPart { act, drop: Place::BodyDrop, left: b"hello" };
            Ok::<_, Infallible>(Response::new(body))
        });
        let (lines, held) = (log.clone(), Rc::clone(&probe));
        let limits = HttpServer::new().on_event(move |event| {
            let _ = &held;
            lines.push(event.to_string());
        });
        let server = start(limits, service).await;
        let request = Request::connect("here:80").body(text("")).unwrap();
        let response = client2(&server).await.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        drop(response);
        server.stop().await;
        assert_eq!(log.other_lines(), ["a service has panicked"]);
        assert_eq!(Rc::strong_count(&probe), 1, "the connection has kept the server");
    });
}

scenarios! {
    a_panic_in_the_conversion_of_an_error_is_reported,
    a_panic_in_the_body_of_a_tunnel_is_reported_and_nothing_leaks,
    a_panic_in_any_place_ends_no_other_connection,
    a_service_may_end_its_own_server_in_any_place,
    a_body_that_lies_about_its_size_ends_its_response_alone,
    an_upgrade_that_nobody_takes_closes_its_connection,
}
