//! What a server reports of HTTP/2, whose streams fail alone.

use core::{
    pin::Pin,
    task::{Context, Poll},
};
use std::future::{Ready, ready};

use futures_util::future::{Either, LocalBoxFuture};
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming},
    service::{Service, service_fn},
};

use crate::{
    scenarios::Build,
    tools::{AnyBody, BoxError, Log, Running, collect, run, start, text},
    versions::{client2, get2},
};

/// A body that fails after its first bytes.
struct Failing {
    panics: bool,
    is_sent: bool,
}

impl Body for Failing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.is_sent {
            self.is_sent = true;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"some")))));
        }
        assert!(!self.panics, "on purpose: in the body");
        Poll::Ready(Some(Err("the body is broken".into())))
    }
}

/// Fails as the path of a request says.
struct FailingService;

type Answer = Result<Response<http_body_util::Either<AnyBody, Failing>>, BoxError>;

impl Service<Request<Incoming>> for FailingService {
    type Response = Response<http_body_util::Either<AnyBody, Failing>>;
    type Error = BoxError;
    type Future = Either<Ready<Answer>, LocalBoxFuture<'static, Answer>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let failing = |panics| {
            let body = Failing { panics, is_sent: false };
            Either::Left(ready(Ok(Response::new(http_body_util::Either::Right(body)))))
        };
        match request.uri().path() {
            "/call" => panic!("on purpose: in the call"),
            "/future" => Either::Right(Box::pin(async { panic!("on purpose: in the future") })),
            "/body" => failing(true),
            "/error" => Either::Left(ready(Err("the service is broken".into()))),
            "/body-error" => failing(false),
            _ => {
                let body = http_body_util::Either::Left(text("fine"));
                Either::Left(ready(Ok(Response::new(body))))
            }
        }
    }
}

/// Asks for a path that fails, between two requests that do not.
async fn fails_alone(server: &Running, path: &str) {
    let mut sender = client2(server).await;
    let fine = (StatusCode::OK, Bytes::from_static(b"fine"));
    assert_eq!(collect(sender.send_request(get2("/")).await.unwrap()).await, fine);
    let error = match sender.send_request(get2(path)).await {
        Err(error) => error,
        Ok(response) => {
            use http_body_util::BodyExt as _;
            response.into_body().collect().await.unwrap_err()
        }
    };
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("stream error received: unexpected internal error"), "{reason}");
    assert_eq!(collect(sender.send_request(get2("/")).await.unwrap()).await, fine);
}

fn a_panic_in_http2_is_reported_and_resets_its_stream(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server(), FailingService).await;
        for (count, path) in ["/call", "/future", "/body"].into_iter().enumerate() {
            fails_alone(&server, path).await;
            assert_eq!(log.other_lines(), vec!["a service has panicked"; count + 1], "{path}");
        }
        server.stop().await;
    });
}

fn an_error_of_a_service_in_http2_is_reported_and_resets_its_stream(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server(), FailingService).await;
        for (path, text) in [("/error", "the service"), ("/body-error", "the body")] {
            fails_alone(&server, path).await;
            let line = log.other_lines().pop().unwrap();
            assert!(line.starts_with("127.0.0.1:"), "{line}");
            assert!(
                line.ends_with(&format!(": stream of HTTP/2 failed: {text} is broken")),
                "{line}"
            );
        }
        assert_eq!(log.other_lines().len(), 2);
        server.stop().await;
    });
}

/// With HTTP/1.1 an error ends the connection, and is that of the connection.
fn an_error_of_a_service_in_http1_is_reported_once(build: Build) {
    run(build, async {
        let log = Log::default();
        let broken = service_fn(async |_: Request<Incoming>| {
            Err::<Response<String>, BoxError>("the service is broken".into())
        });
        let server = start(log.server(), broken).await;
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        assert_eq!(crate::tools::read_to_end(&mut stream).await, "");
        server.stop().await;
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(": connection failed: ") && lines[0].ends_with("is broken"));
    });
}

scenarios! {
    a_panic_in_http2_is_reported_and_resets_its_stream,
    an_error_of_a_service_in_http2_is_reported_and_resets_its_stream,
    an_error_of_a_service_in_http1_is_reported_once,
}
