//! A hyper server that hands WebSockets over to a reactor.
//!
//! Run `cargo run --example hyper_handover -- 127.0.0.1:9003`, and open the printed address in a
//! browser. The page comes from hyper, which runs under tokio on this thread. When a request asks
//! for a WebSocket, hyper answers it. Then a reactor on another thread takes over the socket,
//! together with the bytes after the request that hyper has already read.
//!
//! In this way a program with another HTTP server can use the WebSocket server and keep its own
//! parts.

use std::{
    convert::Infallible, error::Error, io, net::SocketAddr, os::fd::OwnedFd, sync::Arc, thread,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
    upgrade::{OnUpgrade, Parts},
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use windlass::{Reactor, Stop, Turn, interest};
use windlass_flow::{Bounds, Latch, Mailbox, Sender, mailbox};
use windlass_server::{
    Connection, Handler, Message, Options, Service, Upgraded,
    http::{Accept, Origins, Reject, UpgradeRequest},
};
use windlass_ws::{
    deflate::{Agreement, DeflateConfig},
    handshake::{accept_value, answer_extensions},
};

const PAGE: &str = "<!doctype html><title>hand-over</title><pre id=out></pre><script>
const socket = new WebSocket(location.href.replace(/^http/, 'ws') + 'ws');
const say = text => out.textContent += text + '\\n';
socket.onopen = () => socket.send('hello, reactor');
socket.onmessage = event => say('it says: ' + event.data);
socket.onclose = () => say('closed');
</script>";

/// The message from hyper to the reactor.
struct Handover {
    socket: OwnedFd,
    /// The bytes after the request that hyper has read.
    read_buf: Bytes,
    deflate: Option<Agreement>,
}

/// Echoes every message.
struct Echo;

impl Handler for Echo {
    type Data = ();

    /// Not called here, because hyper answers all requests.
    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Err(Reject::status(404))
    }

    fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
        // This fails if the connection is closing, and then no client waits for the answer.
        let _ = connection.reply_in_place(message);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9003".to_owned());
    let reactor = ReactorThread::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address.parse::<SocketAddr>()?).await?;
        println!("listening on http://{}/", listener.local_addr()?);
        Ok(serve(listener, reactor.door.clone()).await?)
    })
}

/// A reactor with a WebSocket service on its own thread, and the sender for sockets.
struct ReactorThread {
    door: Sender<Handover>,
    stop: Stop,
    thread: Option<thread::JoinHandle<io::Result<()>>>,
}

impl ReactorThread {
    fn start() -> io::Result<Self> {
        // The queue is bounded. If it is full, hyper's side waits.
        let (door, inbox) = mailbox(Bounds::items(64), Arc::new(Latch::new()?));
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let mut reactor = windlass_examples::builder()?.build()?;
            take_over(inbox, &mut reactor)?;
            // The receiver waits for it.
            let _ = ready.send(reactor.stop_handle());
            reactor.run()
        });
        match is_ready.recv() {
            Ok(stop) => Ok(Self { door, stop, thread: Some(thread) }),
            Err(_) => Err(thread
                .join()
                .map_or_else(|_| io::ErrorKind::Other.into(), |ended| ended.unwrap_err())),
        }
    }
}

impl Drop for ReactorThread {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(Err(panic)) = self.thread.take().map(thread::JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

fn options() -> Options {
    let mut options = Options::new();
    options.deflate = Some(DeflateConfig::DEFAULT);
    options
}

/// Makes the reactor take over the sockets from the queue.
fn take_over(inbox: Mailbox<Handover>, reactor: &mut Reactor) -> io::Result<()> {
    let service = Service::new(Echo, &options(), reactor)?;
    inbox.latch().rearm();
    interest()
        .read()
        .edge_triggered()
        .with_fd(inbox)
        .with_handler(move |inbox: &mut Mailbox<Handover>, mut turn: Turn<'_>| {
            inbox.latch().awake();
            for Handover { socket, read_buf, deflate } in inbox.drain(64) {
                let upgraded = Upgraded::new(()).deflate(deflate);
                if let Err(refused) = service.adopt(socket, read_buf, upgraded, &mut turn) {
                    eprintln!("a connection is lost: {refused}");
                }
            }
            inbox.latch().rearm();
        })
        .register_into(reactor)?;
    Ok(())
}

/// The side of hyper.
async fn serve(listener: TcpListener, door: Sender<Handover>) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let door = door.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let door = door.clone();
                async move { Ok::<_, Infallible>(answer(request, door)) }
            });
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            if let Err(error) = connection.await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

fn answer(mut request: Request<Incoming>, door: Sender<Handover>) -> Response<Full<Bytes>> {
    if request.method() == Method::GET && request.uri().path() == "/" {
        let mut page = Response::new(Full::from(PAGE));
        page.headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        return page;
    }
    let mut response = Response::new(Full::default());
    if request.uri().path() != "/ws" {
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    // A page of another origin must not use a browser user's rights (RFC 6455 section 10.2).
    let origin = request.headers().get(header::ORIGIN).map(HeaderValue::as_bytes);
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if !Origins::Same.allow(origin, host) {
        *response.status_mut() = StatusCode::FORBIDDEN;
        return response;
    }
    match upgrade(&request, response.headers_mut()) {
        Some(deflate) => {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            tokio::spawn(hand_over(hyper::upgrade::on(&mut request), deflate, door));
        }
        None => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    response
}

/// Answers the handshake (RFC 6455 section 4.2), if it is one.
fn upgrade(
    request: &Request<Incoming>,
    answer: &mut header::HeaderMap,
) -> Option<Option<Agreement>> {
    let headers = request.headers();
    let lists = |name, wanted: &str| {
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            value.split(',').any(|element| element.trim().eq_ignore_ascii_case(wanted))
        })
    };
    let is_upgrade = request.method() == Method::GET
        && lists(header::UPGRADE, "websocket")
        && lists(header::CONNECTION, "upgrade")
        && headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| is_upgrade)?;
    let accept = HeaderValue::try_from(accept_value(key.as_bytes())?).ok()?;
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    let offers =
        headers.get_all(header::SEC_WEBSOCKET_EXTENSIONS).iter().map(HeaderValue::as_bytes);
    let agreed = options().deflate.and_then(|config| answer_extensions(offers, &config));
    let Some((value, agreement)) = agreed else { return Some(None) };
    answer.insert(header::SEC_WEBSOCKET_EXTENSIONS, HeaderValue::try_from(value).ok()?);
    Some(Some(agreement))
}

/// Takes the socket from hyper after the answer was sent.
async fn hand_over(upgraded: OnUpgrade, deflate: Option<Agreement>, door: Sender<Handover>) {
    let handover = async {
        let upgraded = upgraded.await?;
        let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<TcpStream>>() else {
            return Err("this is not the socket that was passed to hyper".into());
        };
        // This ends tokio's registration. The descriptor stays open.
        let socket = OwnedFd::from(io.into_inner().into_std()?);
        Ok::<_, Box<dyn Error + Send + Sync>>(Handover { socket, read_buf, deflate })
    };
    match handover.await {
        // This waits while the queue is full. It fails if the reactor has ended.
        Ok(handover) => _ = door.push_async(handover).await,
        Err(error) => eprintln!("a connection is lost: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read as _, Write as _},
        net,
        time::Duration,
    };

    /// Runs the server until the client ends.
    fn with_client(client: impl FnOnce(SocketAddr) + Send + 'static) {
        let reactor = ReactorThread::start().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let client = tokio::task::spawn_blocking(move || client(address));
            tokio::select! {
                ended = serve(listener, reactor.door.clone()) => panic!("{ended:?}"),
                outcome = client => outcome.unwrap(),
            }
        });
    }

    fn connect(address: SocketAddr) -> net::TcpStream {
        let stream = net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    const REQUEST: &str = "GET /ws HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    #[test]
    fn frames_that_came_with_the_request_are_handed_over_too() {
        with_client(|address| {
            let mut stream = connect(address);
            // "one", masked with a key of zeros, is in the same segment as the request, and "two"
            // follows after the answer.
            let first = [REQUEST.as_bytes(), b"\x81\x83\0\0\0\0one"].concat();
            stream.write_all(&first).unwrap();
            let mut answer = Vec::new();
            let mut byte = [0];
            while !answer.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
            assert!(answer.starts_with("http/1.1 101"), "{answer}");
            assert!(
                answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="),
                "{answer}"
            );
            let mut echo = [0; 5];
            stream.read_exact(&mut echo).unwrap();
            assert_eq!(&echo, b"\x81\x03one");
            stream.write_all(b"\x82\x83\0\0\0\0two").unwrap();
            stream.read_exact(&mut echo).unwrap();
            assert_eq!(&echo, b"\x82\x03two");
        });
    }

    #[test]
    fn hyper_answers_everything_else() {
        with_client(|address| {
            for (request, status) in [
                ("GET / HTTP/1.1\r\nHost: here\r\n\r\n", "200"),
                ("GET /ws HTTP/1.1\r\nHost: here\r\n\r\n", "400"),
                ("GET /elsewhere HTTP/1.1\r\nHost: here\r\n\r\n", "404"),
                ("GET /ws HTTP/1.1\r\nHost: here\r\nOrigin: http://there\r\n\r\n", "403"),
            ] {
                let mut stream = connect(address);
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = [0; 12];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(&answer[9..], status.as_bytes(), "{request}");
            }
        });
    }
}
