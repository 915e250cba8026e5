//! TLS by rustls, with the certificates of the tests of `windlass-tls`. The server is one of
//! tungstenite, so that the client alone is another crate.

use std::{
    error::Error as _,
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
};

use rustls::{ServerConnection, StreamOwned};
use windlass_testkit::{
    certificates::{certificate, client_config, server_config},
    own_process::is_own_process_with,
};

/// A server's end with TLS, whose certificate is for `localhost` and 127.0.0.1.
fn server_end<S: Read + Write>(stream: S) -> StreamOwned<ServerConnection, S> {
    let session = ServerConnection::new(Arc::new(server_config("localhost"))).unwrap();
    StreamOwned::new(session, stream)
}

/// Answers one message in a thread, if the handshakes succeed, and the Close frame.
fn serve<S: Read + Write + Send + 'static>(stream: S) -> thread::JoinHandle<Option<String>> {
    thread::spawn(move || {
        let mut socket = tungstenite::accept(server_end(stream)).ok()?;
        let message = socket.read().ok()?;
        socket.send(message).ok()?;
        socket.read().ok().map(|message| message.to_string())
    })
}

/// rustls takes the cryptography of the process, if it is told which, or else if there is only one.
fn choose_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The cause of an error: its kind, and rustls's own text.
fn cause(error: &io::Error) -> (ErrorKind, String) {
    (error.kind(), error.get_ref().map(ToString::to_string).unwrap_or_default())
}

/// A stream that would block at every other read.
#[derive(Debug)]
struct Hesitant {
    stream: UnixStream,
    hesitates: bool,
}

impl Read for Hesitant {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.hesitates = !self.hesitates;
        match self.hesitates {
            true => Err(ErrorKind::WouldBlock.into()),
            false => self.stream.read(buffer),
        }
    }
}

impl Write for Hesitant {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

compare! {
    fn connectors(log) {
        use ws::{Connector, Error, HandshakeError, Message, client_tls, client_tls_with_config};
        use ws::{error::TlsError, protocol::WebSocketConfig, stream::MaybeTlsStream};
        choose_cryptography();
        let trusts = |authority| Some(Connector::Rustls(Arc::new(client_config(authority))));
        for (name, url, connector) in [
            ("trusted", "wss://localhost/", trusts("ca")),
            ("an address", "wss://127.0.0.1:7/", trusts("ca")),
            ("another authority", "wss://localhost/", trusts("other-ca")),
            ("another name", "wss://example.org/", trusts("ca")),
            ("no name", "wss://a..b/", trusts("ca")),
            ("plain", "wss://localhost/", Some(Connector::Plain)),
            ("none", "wss://localhost/", None),
            ("no scheme", "localhost/", trusts("ca")),
            ("another scheme", "https://localhost/", trusts("ca")),
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            let server = serve(there);
            let config = Some(WebSocketConfig::default().max_frame_size(Some(7)));
            match client_tls_with_config(url, here, config, connector) {
                Ok((mut socket, response)) => {
                    log.note(name, (response.status(), socket.get_config().max_frame_size));
                    socket.send(Message::text("a text")).unwrap();
                    log.note(name, socket.read().unwrap());
                    let MaybeTlsStream::Rustls(stream) = socket.get_ref() else {
                        panic!("it has TLS")
                    };
                    log.note(name, stream.conn.protocol_version());
                    socket.close(None).unwrap();
                }
                Err(HandshakeError::Failure(Error::Io(error))) => log.note(name, cause(&error)),
                Err(HandshakeError::Failure(error @ Error::Tls(TlsError::InvalidDnsName))) => {
                    log.note(name, (&error, error.source().is_some()));
                }
                Err(HandshakeError::Failure(error)) => log.note(name, error),
                Err(HandshakeError::Interrupted(_)) => panic!("{name}: the stream blocks"),
            }
            log.note("the server has", server.join().unwrap());
        }
        let (here, there) = UnixStream::pair().unwrap();
        let server = serve(there);
        match client_tls("wss://localhost/", here) {
            Err(HandshakeError::Failure(Error::Io(error))) => log.note("default", cause(&error)),
            _ => panic!("nobody has signed the certificate"),
        }
        assert_eq!(server.join().unwrap(), None);
    }

    fn without_tls(log) {
        use ws::{Connector, Error, HandshakeError, Message, client_tls_with_config};
        use ws::stream::MaybeTlsStream;
        choose_cryptography();
        let rustls = Connector::Rustls(Arc::new(client_config("ca")));
        for connector in [None, Some(Connector::Plain), Some(rustls)] {
            let (here, there) = UnixStream::pair().unwrap();
            let server = thread::spawn(move || {
                let mut socket = tungstenite::accept(there).unwrap();
                socket.read().unwrap().to_string()
            });
            let url = "ws://localhost/";
            let (mut socket, _) = client_tls_with_config(url, here, None, connector).unwrap();
            log.note("plain", matches!(socket.get_ref(), MaybeTlsStream::Plain(_)));
            socket.send(Message::text("plain")).unwrap();
            log.note("the server has", server.join().unwrap());
        }
        // The server has no TLS, and the client asks for it.
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let connector = Some(Connector::Rustls(Arc::new(client_config("ca"))));
        match client_tls_with_config("wss://localhost/", here, None, connector) {
            Err(HandshakeError::Failure(Error::Io(error))) => log.note("no TLS", cause(&error)),
            _ => panic!("the server has no TLS"),
        }
    }

    fn handshakes_go_on_when_the_stream_is_ready(log) {
        use ws::{Connector, HandshakeError, Message, client_tls_with_config};
        use ws::util::NonBlockingResult as _;
        choose_cryptography();
        let (stream, there) = UnixStream::pair().unwrap();
        let server = serve(there);
        let here = Hesitant { stream, hesitates: false };
        let connector = Some(Connector::Rustls(Arc::new(client_config("ca"))));
        let (mut result, mut interruptions) =
            (client_tls_with_config("wss://localhost/", here, None, connector), 0);
        let (mut socket, response) = loop {
            match result {
                Ok(result) => break result,
                Err(HandshakeError::Interrupted(handshake)) => {
                    interruptions += 1;
                    result = handshake.handshake();
                }
                Err(HandshakeError::Failure(error)) => panic!("{error}"),
            }
        };
        log.note("response", (response.status(), interruptions > 1));
        socket.send(Message::text("a text")).unwrap();
        let message = loop {
            if let Some(message) = socket.read().no_block().unwrap() {
                break message;
            }
        };
        log.note("message", message);
        drop(socket);
        assert_eq!(server.join().unwrap(), None, "it has seen no Close frame");
    }

    fn connections_by_url(log) {
        use ws::{Error, connect};
        choose_cryptography();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("wss://{}/", listener.local_addr().unwrap());
        let server = thread::spawn(move || serve(listener.accept().unwrap().0).join().unwrap());
        match connect(url) {
            Err(Error::Io(error)) => log.note("default", cause(&error)),
            other => panic!("nobody has signed the certificate: {other:?}"),
        }
        log.note("server", server.join().unwrap());
    }

    fn streams_with_tls_send_at_once(log) {
        use ws::stream::{MaybeTlsStream, NoDelay as _};
        choose_cryptography();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let name = "localhost".try_into().unwrap();
        let config = Arc::new(client_config("ca"));
        let session = rustls::ClientConnection::new(config, name).unwrap();
        let mut stream = MaybeTlsStream::Rustls(StreamOwned::new(session, stream));
        for nodelay in [true, false] {
            stream.set_nodelay(nodelay).unwrap();
            let MaybeTlsStream::Rustls(inner) = &stream else { panic!("it has TLS") };
            log.note("set", inner.sock.nodelay().unwrap());
        }
        log.note("debug", format!("{stream:?}").contains("Rustls"));
    }

    fn errors(log) {
        use ws::error::{Error, TlsError};
        let error = Error::from(TlsError::from(rustls::Error::HandshakeNotComplete));
        log.note("variant", matches!(&error, Error::Tls(TlsError::Rustls(_))));
        log.note("source", error.source().is_some_and(|error| error.is::<TlsError>()));
        log.note("dns", TlsError::InvalidDnsName.source().is_some());
    }
}

/// The certificate is for another address than the one of IPv6.
#[test]
fn an_address_of_ipv6_is_one_for_a_certificate() {
    use windlass_tungstenite::{Connector, Error, HandshakeError, client_tls_with_config};
    choose_cryptography();
    let url = "wss://[::1]/";
    let config = Arc::new(client_config("ca"));
    let connector = Some(tungstenite::Connector::Rustls(Arc::clone(&config)));
    let (here, _there) = UnixStream::pair().unwrap();
    let Err(theirs) = tungstenite::client_tls_with_config(url, here, None, connector) else {
        panic!("it is no DNS name")
    };
    assert!(format!("{theirs:?}").contains("InvalidDnsName"), "{theirs:?}");
    let (here, there) = UnixStream::pair().unwrap();
    let server = serve(there);
    match client_tls_with_config(url, here, None, Some(Connector::Rustls(config))) {
        Err(HandshakeError::Failure(Error::Io(error))) => {
            assert!(cause(&error).1.contains("not valid for name"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.join().unwrap(), None);
}

#[test]
fn our_server_speaks_tls_on_any_stream() {
    choose_cryptography();
    let (here, there) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut socket = windlass_tungstenite::accept(server_end(there)).unwrap();
        let message = socket.read().unwrap();
        socket.send(message).unwrap();
    });
    let connector = tungstenite::Connector::Rustls(Arc::new(client_config("ca")));
    let url = "wss://localhost/";
    let connected = tungstenite::client_tls_with_config(url, here, None, Some(connector));
    let (mut socket, _) = connected.unwrap_or_else(|error| panic!("{error}"));
    // Several records of TLS.
    let message = tungstenite::Message::text("x".repeat(100_000));
    socket.send(message.clone()).unwrap();
    assert_eq!(socket.read().unwrap(), message);
    server.join().unwrap();
}

/// The feature `rustls-tls-native-roots`: rustls-native-certs reads the file that this variable
/// names.
#[test]
fn the_root_certificates_of_the_system_are_trusted() {
    let authority = certificate("ca.pem");
    let test = "tls::the_root_certificates_of_the_system_are_trusted";
    if !is_own_process_with(test, &[("SSL_CERT_FILE", &authority)]) {
        return;
    }
    choose_cryptography();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("wss://{}/", listener.local_addr().unwrap());
    let server = thread::spawn(move || serve(listener.accept().unwrap().0).join().unwrap());
    let (mut socket, _) = windlass_tungstenite::connect(url).unwrap();
    socket.send("a text".into()).unwrap();
    assert_eq!(socket.read().unwrap().to_text().unwrap(), "a text");
    socket.close(None).unwrap();
    assert_eq!(server.join().unwrap().as_deref(), Some(""));
}
