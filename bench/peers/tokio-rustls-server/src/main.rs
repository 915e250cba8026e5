//! A server of tokio-tungstenite behind tokio-rustls for the suite `tls` of `windlass-bench`.
//!
//! All messages that are readable at once are answered by one flush, as its example forwards them.

#![deny(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::unconstrained;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio_rustls::rustls::{ServerConfig, crypto};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use windlass_bench_driver::Error;
use windlass_bench_driver::server::Mode;
use windlass_bench_driver::tls::{CERTIFICATE, PRIVATE_KEY};
use windlass_bench_tokio_server as tokio_server;

/// The default buffer of 128 KiB is zeroed before each read.
const READ_BUFFER_BYTES: usize = 8 * 1024;

fn main() -> ExitCode {
    tokio_server::run("tokio-rustls", |settings| {
        settings.require(Mode::Echo)?;
        let acceptor = acceptor()?;
        Ok(move |stream| {
            let acceptor = settings.tls.then(|| acceptor.clone());
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = match acceptor {
                    None => echo(stream).await,
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => echo(stream).await,
                        Err(_) => Ok(()),
                    },
                };
            })
        })
    })
}

fn acceptor() -> Result<TlsAcceptor, Error> {
    let chain = vec![CertificateDer::from_pem_file(CERTIFICATE)?];
    let key = PrivateKeyDer::from_pem_file(PRIVATE_KEY)?;
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.ticketer = crypto::ring::Ticketer::new()?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn echo(stream: impl AsyncRead + AsyncWrite + Unpin) -> tungstenite::Result<()> {
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
    let mut socket = tokio_tungstenite::accept_async_with_config(stream, Some(config)).await?;
    loop {
        let next = match socket.next().now_or_never() {
            Some(next) => next,
            None => {
                socket.flush().await?;
                socket.next().await
            }
        };
        match next {
            Some(message) => {
                let message = message?;
                if message.is_text() || message.is_binary() {
                    socket.feed(message).await?;
                }
            }
            None => return Ok(()),
        }
    }
}
