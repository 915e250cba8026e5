//! TLS by rustls, with the certificates of the tests of `windlass-tls`. The server is one of
//! tokio-tungstenite, so that the client alone is another crate.

use std::{future::Future, io::ErrorKind, sync::Arc};

use futures_util::{SinkExt as _, StreamExt as _, future::join};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, duplex},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use windlass_testkit::{
    certificates::{certificate, client_config, server_config},
    own_process::is_own_process_with,
};

fn run<R>(future: impl Future<Output = R>) -> R {
    // rustls takes the cryptography of the process, if it is told which.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Answers one message, if the handshakes succeed, and the Close frame. The certificate is for
/// `localhost` and 127.0.0.1.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Option<String> {
    let acceptor = TlsAcceptor::from(Arc::new(server_config("localhost")));
    let stream = acceptor.accept(stream).await.ok()?;
    let mut socket = tokio_tungstenite::accept_async(stream).await.ok()?;
    let message = socket.next().await?.ok()?;
    socket.send(message).await.ok()?;
    Some(socket.next().await?.ok()?.to_string())
}

/// The result for a client of one crate, as text.
macro_rules! outcome {
    ($ws:ident, $connected:expr) => {{
        use $ws::{MaybeTlsStream, tungstenite::Error};
        match $connected.await {
            Ok((mut socket, response)) => {
                socket.send("a text".into()).await.unwrap();
                let message = socket.next().await;
                let MaybeTlsStream::Rustls(stream) = socket.get_ref() else { panic!("TLS") };
                let version = stream.get_ref().1.protocol_version();
                socket.close(None).await.unwrap();
                // Below TLS.
                let _ = socket.get_ref().get_ref();
                format!("{:?}", (response.status(), message, version))
            }
            Err(Error::Io(error)) => {
                let text = error.get_ref().map(ToString::to_string);
                format!("{:?}", (error.kind(), text))
            }
            Err(error) => format!("{error:?}"),
        }
    }};
}

/// The outcome of every connector, with one crate.
macro_rules! connectors {
    ($ws:ident) => {{
        use $ws::{Connector, client_async_tls, client_async_tls_with_config};
        let trusts = |authority| Some(Connector::Rustls(Arc::new(client_config(authority))));
        let mut log = Vec::new();
        for (url, connector) in [
            ("wss://localhost/", trusts("ca")),
            ("wss://127.0.0.1:7/", trusts("ca").clone()),
            ("wss://localhost/", trusts("other-ca")),
            ("wss://example.org/", trusts("ca")),
            ("wss://a..b/", trusts("ca")),
            ("wss://localhost/", Some(Connector::Plain)),
            ("wss://localhost/", None),
            ("https://localhost/", trusts("ca")),
            ("/", trusts("ca")),
        ] {
            let (here, there) = duplex(1000);
            let connected =
                async { outcome!($ws, client_async_tls_with_config(url, here, None, connector)) };
            log.push(format!("{url}: {:?}", join(connected, serve(there)).await));
        }
        let (here, there) = duplex(1000);
        let connected = async { outcome!($ws, client_async_tls("wss://localhost/", here)) };
        log.push(format!("default: {:?}", join(connected, serve(there)).await));

        let (here, mut there) = duplex(1000);
        there.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let connected = client_async_tls_with_config("wss://localhost/", here, None, trusts("ca"));
        log.push(format!("no TLS: {}", outcome!($ws, connected)));
        log
    }};
}

#[test]
fn connectors_are_those_of_tokio_tungstenite() {
    run(async {
        let theirs = connectors!(tokio_tungstenite);
        assert_eq!(theirs, connectors!(windlass_tokio_tungstenite));
        assert!(theirs[0].contains("a text") && theirs[0].contains("TLSv1_3"), "{theirs:#?}");
        assert!(theirs[2].contains("UnknownIssuer"), "{theirs:#?}");
        assert!(theirs[5].contains("TlsFeatureNotEnabled"), "{theirs:#?}");
    });
}

/// The outcomes of connections by URL, with one crate.
macro_rules! connections {
    ($ws:ident) => {{
        use $ws::{Connector, MaybeTlsStream, connect_async, connect_async_tls_with_config};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("wss://{address}/");
        let serve = || async { serve(listener.accept().await.unwrap().0).await };
        let mut log = Vec::new();
        for connector in [
            Some(Connector::Rustls(Arc::new(client_config("ca")))),
            Some(Connector::Rustls(Arc::new(client_config("other-ca")))),
            Some(Connector::Plain),
            None,
        ] {
            let connected = async {
                let connected = connect_async_tls_with_config(&*url, None, true, connector);
                outcome!($ws, connected)
            };
            log.push(format!("{:?}", join(connected, serve()).await));
        }
        let connected = async { outcome!($ws, connect_async(&*url)) };
        log.push(format!("default: {:?}", join(connected, serve()).await));

        // A connector is for TLS alone.
        let connector = Some(Connector::Rustls(Arc::new(client_config("ca"))));
        let url = format!("ws://{address}/");
        for nodelay in [false, true] {
            let connect = connect_async_tls_with_config(&*url, None, nodelay, connector.clone());
            let accept = async {
                let (stream, _) = listener.accept().await.unwrap();
                tokio_tungstenite::accept_async(stream).await.is_ok()
            };
            let (accepted, connected) = join(accept, connect).await;
            match connected.unwrap().0.get_ref() {
                MaybeTlsStream::Plain(stream) => {
                    log.push(format!("{accepted} {}", stream.nodelay().unwrap()));
                }
                _ => panic!("the URL asks for no TLS"),
            }
        }
        log
    }};
}

#[test]
fn connections_by_url_are_those_of_tokio_tungstenite() {
    run(async {
        let theirs = connections!(tokio_tungstenite);
        assert_eq!(theirs, connections!(windlass_tokio_tungstenite));
        assert!(theirs[0].contains("a text"), "{theirs:#?}");
        assert!(theirs[1].contains(&format!("{:?}", ErrorKind::InvalidData)), "{theirs:#?}");
    });
}

#[test]
fn our_server_speaks_tls_on_any_stream() {
    run(async {
        let (here, there) = duplex(1000);
        let server = async {
            let acceptor = TlsAcceptor::from(Arc::new(server_config("localhost")));
            let stream = acceptor.accept(there).await.unwrap();
            let mut socket = windlass_tokio_tungstenite::accept_async(stream).await.unwrap();
            let message = socket.next().await.unwrap().unwrap();
            socket.send(message).await.unwrap();
            assert!(socket.next().await.unwrap().unwrap().is_close());
            assert!(socket.next().await.is_none());
        };
        let client = async {
            let connector = tokio_tungstenite::Connector::Rustls(Arc::new(client_config("ca")));
            let url = "wss://localhost/";
            let connected =
                tokio_tungstenite::client_async_tls_with_config(url, here, None, Some(connector));
            let (mut socket, _) = connected.await.unwrap();
            // Several records of TLS.
            let message = tokio_tungstenite::tungstenite::Message::text("x".repeat(100_000));
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
            socket.close(None).await.unwrap();
            assert!(socket.next().await.unwrap().unwrap().is_close());
        };
        join(server, client).await;
    });
}

/// The feature `rustls-tls-native-roots`: rustls-native-certs reads the file that this variable
/// names.
#[test]
fn the_root_certificates_of_the_system_are_trusted() {
    let authority = certificate("ca.pem");
    let test = "the_root_certificates_of_the_system_are_trusted";
    if !is_own_process_with(test, &[("SSL_CERT_FILE", &authority)]) {
        return;
    }
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("wss://{}/", listener.local_addr().unwrap());
        let client = async {
            let connected = windlass_tokio_tungstenite::connect_async(&*url).await;
            let (mut socket, _) = connected.unwrap();
            socket.send("a text".into()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap().to_text().unwrap(), "a text");
            socket.close(None).await.unwrap();
        };
        let server = async { serve(listener.accept().await.unwrap().0).await };
        assert_eq!(join(client, server).await.1.as_deref(), Some(""));
    });
}

#[test]
fn futures_with_tls_can_go_to_another_thread() {
    use windlass_tokio_tungstenite as ws;
    fn is_send(_: impl Send) {}
    is_send(ws::client_async_tls("wss://a/", duplex(1).0));
    is_send(ws::connect_async_tls_with_config("wss://a/", None, false, None));
}
