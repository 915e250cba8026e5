//! A TLS server with two reactors: one accepts connections and does their handshakes, the other one
//! serves them on a thread of its own.
//!
//! `cargo run --example tls_handover -- CERTIFICATE.pem KEY.pem 127.0.0.1:9017`
//!
//! It shows:
//! - `release` ends a stream and leaves its connection as it is. It returns the socket, the TLS
//!   session, what was received and no handler was told of, and what was not sent.
//! - `with_released_tls` makes a stream of that, on a reactor of another thread.
//! - A stream is not released in its own callback, so `on_open` defers that to the next turn.
//! - A posted closure registers the stream. If the other thread's queue is full, the closure is
//!   dropped and the connection with it.

use std::{
    error::Error,
    io,
    sync::{Arc, mpsc},
    thread,
};

use windlass::stream::{Input, Listener, Released, Stream, StreamHandler, StreamOptions};
use windlass::{Builder, Key, Reactor, Remote, Stop, Turn};
use windlass_tls::TlsAcceptor;

/// A stream of the first reactor, until its handshake is over.
struct Handover(Remote);

impl StreamHandler for Handover {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        // Input that comes with the handshake is for the other handler.
        stream.pause();
        let (key, other) = (stream.key(), self.0.clone());
        if stream.turn().defer(move |turn| hand_over(key, turn, &other)).is_err() {
            stream.abort();
        }
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {
        unreachable!("the stream is paused as long as it is open");
    }
}

/// Moves a stream to another reactor.
fn hand_over(key: Key, mut turn: Turn<'_>, other: &Remote) {
    // It may have failed since.
    let released = turn.stream(key).ok().and_then(|mut stream| stream.release());
    let Some(released) = released else { return };
    let posted = other.post(move |turn| {
        if let Err(error) = take_over(released, turn) {
            eprintln!("a connection is lost: {error}");
        }
    });
    if let Err(error) = posted {
        eprintln!("a connection is lost: {error}");
    }
}

/// Goes on with a connection that another reactor has released.
fn take_over(released: Released, mut turn: Turn<'_>) -> io::Result<()> {
    let Released { socket, read_buf, unsent, tls, error, .. } = released;
    if let Some(error) = error {
        return Err(error.into());
    }
    let (Some(socket), Some(tls)) = (socket, tls) else {
        unreachable!("the reactor owned the socket, and its streams have TLS");
    };
    let connection = StreamOptions::new().with_fd(socket).with_read_buf(read_buf);
    let key = connection.with_released_tls(tls).with_handler(Greeter).register_into(&mut turn)?;
    // It precedes what the new handler sends.
    turn.stream(key)?.send(&unsent).map_err(io::Error::other)
}

/// A stream of the second reactor: it names the protocol and sends its input back.
struct Greeter;

impl StreamHandler for Greeter {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let alpn = stream.tls().and_then(|tls| tls.alpn()).unwrap_or(b"no protocol");
        let greeting = format!("{}\n", String::from_utf8_lossy(alpn));
        // An error means that the stream is closed, and `on_close` follows.
        let _ = stream.send(greeting.as_bytes());
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let _ = stream.reply(input, ..);
    }
}

/// The second reactor, on its thread. Dropping this ends it.
struct Server {
    remote: Remote,
    stop: Stop,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> io::Result<Self> {
        let (parts, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut reactor = match windlass_examples::builder().map(Builder::build) {
                Ok(Ok(reactor)) => reactor,
                Ok(Err(error)) => return drop(parts.send(Err(error.into()))),
                Err(error) => return drop(parts.send(Err(io::Error::other(error)))),
            };
            let _ = parts.send(Ok((reactor.remote(), reactor.stop_handle())));
            if let Err(error) = reactor.run() {
                eprintln!("the server has failed: {error}");
            }
        });
        let (remote, stop) = started.recv().map_err(io::Error::other)??;
        Ok(Self { remote, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Accepts connections for the second reactor.
fn listen(
    reactor: &mut Reactor,
    listener: Listener,
    tls: TlsAcceptor,
    server: &Server,
) -> io::Result<()> {
    let other = server.remote.clone();
    let listener = listener.with_tls(Arc::new(tls));
    listener.with_handler(move |_| Some(Handover(other.clone()))).register_into(reactor)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = windlass_examples::words();
    let [certificate, key, address] = &words[..] else {
        return Err("usage: tls_handover CERTIFICATE.pem KEY.pem ADDRESS".into());
    };
    let tls = TlsAcceptor::builder().certificate(certificate, key).build()?;
    let server = Server::start()?;
    let mut reactor = windlass_examples::builder()?.build()?;
    listen(&mut reactor, Listener::tcp(address.parse()?)?, tls, &server)?;
    Ok(reactor.run()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
    };
    use tokio_rustls::rustls::{
        ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types,
    };

    struct StopAtEnd(Stop);

    impl Drop for StopAtEnd {
        fn drop(&mut self) {
            self.0.stop();
        }
    }

    #[test]
    fn a_connection_outlives_the_reactor_that_has_accepted_it() {
        let file = |name| {
            format!("{}/../crates/tls/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"))
        };
        let tls = TlsAcceptor::builder().certificate(file("localhost.pem"), file("localhost.key"));
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap().socket_addr().unwrap();
        let server = Server::start().unwrap();
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        listen(&mut reactor, listener, tls.build().unwrap(), &server).unwrap();
        let mut roots = RootCertStore::empty();
        let pem = std::fs::read(file("ca.pem")).unwrap();
        roots.add(pki_types::pem::PemObject::from_pem_slice(&pem).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stop = StopAtEnd(reactor.stop_handle());
        let (is_dropped, dropped) = mpsc::channel();
        let client = thread::spawn(move || {
            let name = "localhost".try_into().unwrap();
            let session = ClientConnection::new(Arc::new(config), name).unwrap();
            let mut client = StreamOwned::new(session, TcpStream::connect(address).unwrap());
            client.write_all(b"hello").unwrap();
            let mut got = [0; 17];
            client.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"no protocol\nhello");
            drop(stop);
            dropped.recv().unwrap();
            client.write_all(b"again").unwrap();
            client.read_exact(&mut got[..5]).unwrap();
            assert_eq!(&got[..5], b"again");
        });
        reactor.run().unwrap();
        drop(reactor);
        // The client may have panicked.
        let _ = is_dropped.send(());
        client.join().unwrap();
    }
}
