//! TLS by tokio-rustls. A stream that is cut is not an end.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use windlass_testkit::certificates::{client_config, server_config};
use windlass_websocket::{Config, RecvError, Role, WebSocket};

use crate::{
    ask, echo, serve,
    tokio::{current_thread, streams},
};

fn acceptor() -> TlsAcceptor {
    TlsAcceptor::from(Arc::new(server_config("localhost")))
}

fn connector() -> TlsConnector {
    TlsConnector::from(Arc::new(client_config("ca")))
}

async fn tls_streams() -> (server::TlsStream<TcpStream>, client::TlsStream<TcpStream>) {
    let (ours, theirs) = streams().await;
    let name = ServerName::try_from("localhost").expect("a name");
    let (ours, theirs) = tokio::join!(acceptor().accept(ours), connector().connect(name, theirs));
    (ours.expect("a handshake"), theirs.expect("a handshake"))
}

#[test]
fn an_echo_over_tls() {
    current_thread().block_on(async {
        let (ours, theirs) = tls_streams().await;
        tokio::join!(serve(ours), ask(theirs));
    });
}

#[test]
fn a_cut_stream_and_one_that_ends_without_a_close_are_different() {
    current_thread().block_on(async {
        for is_cut in [false, true] {
            let (ours, mut theirs) = tls_streams().await;
            let mut socket = WebSocket::from_upgraded(ours, &[], Role::Server, &Config::new());
            let client = async {
                use tokio::io::AsyncWriteExt as _;
                theirs.write_all(b"\x82\x80\0\0\0\0").await.expect("it is open");
                theirs.flush().await.expect("it is open");
                if is_cut {
                    theirs.get_mut().0.shutdown().await.expect("it is open");
                } else {
                    theirs.shutdown().await.expect("it is open");
                }
            };
            let (end, ()) = tokio::join!(echo(&mut socket), client);
            let is_right = match end {
                Err(RecvError::Cut) => is_cut,
                Err(RecvError::Abnormal) => !is_cut,
                _ => false,
            };
            assert!(is_right, "{end:?}, cut: {is_cut}");
        }
    });
}
