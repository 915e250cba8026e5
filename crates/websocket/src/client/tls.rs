//! TLS by rustls, for every runtime.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, crypto::CryptoProvider, pki_types::ServerName},
};

use super::url::UrlError;
use crate::transport::Transport;

pub(super) type Stream<S> = TlsStream<TokioIo<S>>;
pub(super) type Connect<S> = tokio_rustls::Connect<TokioIo<S>>;

/// A transport with tokio's traits, which need no runtime.
pub(super) struct TokioIo<S>(S);

impl<S> TokioIo<S> {
    pub(super) const fn get_ref(&self) -> &S {
        &self.0
    }
}

impl<S: Transport> AsyncRead for TokioIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = ready!(self.0.poll_read(context, buffer.initialize_unfilled()))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: Transport> AsyncWrite for TokioIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = parts.iter().position(|part| !part.is_empty());
        first.map_or(Poll::Ready(Ok(0)), |first| {
            self.0.poll_write_vectored(context, &parts[first..])
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(context)
    }
}

/// The name that the server's certificate must be valid for.
pub(super) fn name(host: &str) -> Result<ServerName<'static>, UrlError> {
    ServerName::try_from(host.to_owned()).map_err(|_| UrlError::TlsName)
}

pub(super) fn connect<S: Transport>(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    stream: S,
) -> Connect<S> {
    TlsConnector::from(config).connect(name, TokioIo(stream))
}

/// The root certificates of clients without a configuration of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Roots {
    System,
    #[cfg(feature = "webpki-roots")]
    Bundled,
}

/// The configuration of clients that have none of their own. The process makes it once for each
/// kind of roots.
pub(super) fn config(roots: Roots) -> io::Result<Arc<ClientConfig>> {
    static CONFIGS: [OnceLock<Arc<ClientConfig>>; 2] = [const { OnceLock::new() }; 2];
    let place = &CONFIGS[usize::from(roots != Roots::System)];
    if let Some(config) = place.get() {
        return Ok(config.clone());
    }
    let config = new_config(roots).map_err(io::Error::other)?;
    Ok(place.get_or_init(|| Arc::new(config)).clone())
}

fn new_config(roots: Roots) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let builder = ClientConfig::builder_with_provider(provider()?);
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = match roots {
        Roots::System => {
            use rustls_platform_verifier::BuilderVerifierExt as _;
            builder.with_platform_verifier()?
        }
        #[cfg(feature = "webpki-roots")]
        Roots::Bundled => {
            let roots = webpki_roots::TLS_SERVER_ROOTS.to_vec();
            builder.with_root_certificates(tokio_rustls::rustls::RootCertStore { roots })
        }
    };
    Ok(builder.with_no_client_auth())
}

/// The cryptography: that which the process has chosen, or that of the crate's features.
fn provider() -> Result<Arc<CryptoProvider>, &'static str> {
    if let Some(provider) = CryptoProvider::get_default() {
        return Ok(provider.clone());
    }
    #[cfg(feature = "rustls-aws-lc-rs")]
    return Ok(Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(all(feature = "rustls-ring", not(feature = "rustls-aws-lc-rs")))]
    return Ok(Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()));
    #[cfg(not(any(feature = "rustls-ring", feature = "rustls-aws-lc-rs")))]
    Err("no cryptography: enable the feature rustls-ring or rustls-aws-lc-rs, or install a \
         CryptoProvider of rustls")
}
