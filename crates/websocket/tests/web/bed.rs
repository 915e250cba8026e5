//! Runtimes, connections and servers.

use std::{convert::Infallible, sync::Arc};

use hyper::{
    Request, Response, body::Incoming, client::conn::http2::SendRequest, server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    spawn,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use windlass_testkit::{
    certificates::{client_config, server_config},
    waiting::WAIT_MAX,
};
use windlass_websocket::{
    ClientRequest, CloseCode, Config, Transport, WebSocket,
    http2::{client_settings, connect, server_settings, watch},
    upgrade::{UpgradedIo, Upgrading, upgrade},
};

pub(crate) const STREAMS_MAX: u32 = 16;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// Runs a test on one thread, for a limited time.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { timeout(2 * WAIT_MAX, test).await }).expect("the test ends in time")
}

/// A server's and a client's stream.
pub(crate) async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (accepted, connected) = tokio::join!(listener.accept(), TcpStream::connect(address));
    (accepted.expect("it is accepted").0, connected.expect("it is connected"))
}

/// Accepts TLS, for HTTP/2.
pub(crate) fn acceptor() -> TlsAcceptor {
    let mut config = server_config("localhost");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Connects with TLS, for HTTP/2.
pub(crate) async fn tls_client(stream: TcpStream) -> client::TlsStream<TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    connector().connect(name, stream).await.expect("a handshake")
}

fn connector() -> TlsConnector {
    let mut config = client_config("ca");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

pub(crate) async fn tls_streams() -> (server::TlsStream<TcpStream>, client::TlsStream<TcpStream>) {
    let (ours, theirs) = streams().await;
    let (ours, theirs) = tokio::join!(acceptor().accept(ours), tls_client(theirs));
    let ours = ours.expect("a handshake");
    assert_eq!(ours.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    (ours, theirs)
}

/// Serves a connection of HTTP/2. Each WebSocket goes to `handle`, with the path of its request.
pub(crate) async fn serve_http2<F>(
    stream: impl Stream,
    config: Config,
    handle: impl Fn(String, Upgrading) -> F + Clone + Send + 'static,
) -> Result<(), hyper::Error>
where
    F: Future<Output = ()> + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        let response = match upgrade(&mut request, &config) {
            Ok((response, upgrading)) => {
                spawn(handle(path, upgrading));
                response
            }
            Err(refused) => refused.into_response(),
        };
        async { Ok::<Response<String>, Infallible>(response) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    server_settings(&mut builder, STREAMS_MAX);
    builder.serve_connection(TokioIo::new(stream), service).await
}

/// Opens a connection of HTTP/2, and runs it in a task.
pub(crate) async fn client_http2(stream: impl Stream) -> SendRequest<String> {
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    client_settings(&mut builder, STREAMS_MAX);
    let (stream, settings) = watch(TokioIo::new(stream));
    let (sender, connection) = builder.handshake(stream).await.expect("a handshake");
    spawn(connection);
    assert!(settings.await.expect("they are received"), "the server accepts WebSockets");
    sender
}

pub(crate) async fn open(
    sender: &mut SendRequest<String>,
    scheme: &str,
    path: &str,
    config: &Config,
) -> WebSocket<UpgradedIo> {
    let request = ClientRequest::new("localhost", path, config.random_key());
    connect(sender, scheme, request, config).await.expect("it is accepted")
}

pub(crate) async fn echo<S: Transport>(mut socket: WebSocket<S>) {
    while let Some(message) = socket.recv().await.expect("the client is good") {
        message.reply().expect("the connection is open");
    }
}

/// Bytes that cannot be compressed.
fn noise(len: usize) -> Vec<u8> {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 24) as u8)
    };
    std::iter::repeat_n((), len).scan(7, |state, ()| next(state)).collect()
}

/// Sends messages of many lengths to an echo, one at a time and then together.
pub(crate) async fn converse<S: Transport>(socket: &mut WebSocket<S>) {
    let messages = [0, 1, 125, 126, 4096, 65_536, 300_000].map(noise);
    for message in &messages {
        socket.send(&message[..]).await.expect("the connection is open");
        let received = socket.recv().await.expect("the server is good").expect("an echo");
        assert!(received.as_bytes() == message);
    }
    for message in &messages[..5] {
        socket.feed(&message[..]).await.expect("the connection is open");
    }
    socket.flush().await.expect("the connection is open");
    for message in &messages[..5] {
        let received = socket.recv().await.expect("the server is good").expect("an echo");
        assert!(received.as_bytes() == message);
    }
}

/// [Converses](converse), and closes.
pub(crate) async fn ask<S: Transport>(mut socket: WebSocket<S>) {
    converse(&mut socket).await;
    close(socket).await;
}

pub(crate) async fn close<S: Transport>(mut socket: WebSocket<S>) {
    socket.close(CloseCode::NORMAL, "done").await.expect("it is answered");
    let code = socket.peer_close().expect("it has answered").code;
    assert_eq!(code, Some(CloseCode::NORMAL));
}
