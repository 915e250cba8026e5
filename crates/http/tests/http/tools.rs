//! Servers and clients that tests are made of.

use std::{
    cell::RefCell, convert::Infallible, future::Future, io, net::SocketAddr, rc::Rc, time::Duration,
};

use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
};
use windlass_http::{HttpServer, IntoHttpService};
use windlass_task::{
    Executor, JoinHandle,
    cancel::Cancel,
    net::{TcpListener, TcpStream},
    spawn,
    time::timeout,
};

use crate::scenarios::Build;

/// The limit of a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a future on an executor of its own. A test that hangs fails.
pub(crate) fn run<F: Future>(build: Build, future: F) -> F::Output {
    let mut executor = Executor::builder().reactor(build()).build().unwrap();
    executor.block_on(async { timeout(LIMIT, future).await.expect("the test hangs") })
}

/// The same with a paused clock, which passes the time when nothing else can run.
pub(crate) fn run_paused<F: Future>(build: Build, future: F) -> F::Output {
    let mut executor = Executor::builder().reactor(build()).paused_clock(true).build().unwrap();
    executor.block_on(future)
}

/// The lines of a server's log.
#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Without those of connections: a client of HTTP/2 that is dropped may reset its own.
    pub(crate) fn other_lines(&self) -> Vec<String> {
        self.lines().into_iter().filter(|line| !line.contains("connection failed")).collect()
    }

    pub(crate) fn push(&self, line: String) {
        self.0.borrow_mut().push(line);
    }

    pub(crate) fn server(&self) -> HttpServer {
        let log = self.clone();
        HttpServer::new().on_event(move |event| log.push(event.to_string()))
    }
}

/// A server in a task.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Cancel,
    pub(crate) server: JoinHandle<io::Result<()>>,
}

impl Running {
    /// Shuts it down and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.server.await.unwrap().unwrap();
    }

    /// A connection without Nagle's algorithm: with a paused clock, the time would pass before the
    /// kernel sends.
    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

/// Starts a server on a port of its own.
pub(crate) async fn start<S, Kind>(server: HttpServer, service: S) -> Running
where
    S: IntoHttpService<Kind> + 'static,
    S::Body: hyper::body::Body<Data: 'static, Error: Into<BoxError>> + 'static,
    S::Error: Into<BoxError>,
    S::Future: 'static,
    Kind: 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Cancel::new();
    let until = stop.clone();
    let until = async move { until.cancelled().await };
    let server = spawn(server.serve_until(listener, service, until));
    Running { address, stop, server }
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type AnyBody = BoxBody<Bytes, hyper::Error>;

pub(crate) fn text(body: impl Into<Bytes>) -> AnyBody {
    Full::new(body.into()).map_err(|never| match never {}).boxed()
}

/// `GET /` greets, `POST /echo` streams the body back, `POST /collect` reads the body first.
/// Anything else is not found.
pub(crate) async fn answer(request: Request<Incoming>) -> Result<Response<AnyBody>, Infallible> {
    let mut response = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/") => Response::new(text("hello")),
        (&Method::POST, "/echo") => Response::new(request.into_body().boxed()),
        (&Method::POST, "/collect") => {
            let body = request.into_body().collect().await;
            Response::new(text(body.map(|body| body.to_bytes()).unwrap_or_default()))
        }
        _ => Response::new(text("")),
    };
    if response.body().size_hint_is_empty() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}

trait SizeHintIsEmpty {
    fn size_hint_is_empty(&self) -> bool;
}

impl SizeHintIsEmpty for AnyBody {
    fn size_hint_is_empty(&self) -> bool {
        hyper::body::Body::size_hint(self).exact() == Some(0)
    }
}

/// A client of HTTP/1.1, whose connection is driven by a task.
pub(crate) async fn client<B>(stream: TcpStream) -> SendRequest<B>
where
    B: hyper::body::Body<Error: Into<BoxError>> + 'static,
    B::Data: Send,
{
    let (sender, connection) = handshake(stream).await.unwrap();
    spawn(async move { _ = connection.await }).detach();
    sender
}

pub(crate) fn get(path: &str) -> Request<AnyBody> {
    Request::get(path).header("host", "here").body(text("")).unwrap()
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<AnyBody> {
    Request::post(path).header("host", "here").body(text(body)).unwrap()
}

pub(crate) async fn collect(response: Response<Incoming>) -> (StatusCode, Bytes) {
    let status = response.status();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

/// Everything until the peer ends the connection.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => return String::from_utf8(all).unwrap(),
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Reads until the end of a head.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}
