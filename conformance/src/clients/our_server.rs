//! Echo servers of windlass-websocket on tokio, plain and over TLS.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};
use windlass_websocket::{Config, DeflateConfig, WebSocket};

use super::MESSAGE_MAX;
use crate::echo_server::{END_MAX, EchoServer, end};

/// The servers' identity.
static ACCEPTOR: OnceLock<TlsAcceptor> = OnceLock::new();

pub(super) fn plain() -> Result<EchoServer> {
    EchoServer::on_tokio(|stream| async {
        if let Ok(address) = stream.local_addr() {
            answer(stream, format!("http://{address}")).await;
        }
    })
}

/// With this certificate for `localhost`.
pub(super) fn tls(certificate: &Path, key: &Path) -> Result<EchoServer> {
    if ACCEPTOR.get().is_none() {
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .with_context(|| certificate.display().to_string())?;
        let key = PrivateKeyDer::from_pem_file(key).with_context(|| key.display().to_string())?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let _ = ACCEPTOR.set(TlsAcceptor::from(Arc::new(config)));
    }
    EchoServer::on_tokio(|stream| async { secured(stream).await.unwrap_or_default() })
}

/// `None` if there is no TLS connection.
async fn secured(stream: TcpStream) -> Option<()> {
    let origin = format!("https://localhost:{}", stream.local_addr().ok()?.port());
    answer(ACCEPTOR.get()?.accept(stream).await.ok()?, origin).await;
    Some(())
}

/// Echoes messages until the end. Requests from other origins are refused.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: S, origin: String) {
    let config = Config::new()
        .message_max(MESSAGE_MAX)
        .frame_max(MESSAGE_MAX)
        .inflate_ratio_max(None)
        .origins([origin])
        .deflate(DeflateConfig::DEFAULT);
    let Ok(mut socket) = WebSocket::accept(stream, &config).await else { return };
    while let Ok(Some(message)) = socket.recv().await {
        if message.reply().is_err() {
            break;
        }
    }
    let _ = timeout(END_MAX, end(socket.into_inner().0)).await;
}
