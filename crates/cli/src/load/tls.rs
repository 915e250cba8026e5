//! TLS of the target: its options, and advice about handshakes that fail.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use serde::Serialize;
use tokio_rustls::{client::TlsStream, rustls::HandshakeKind};
use windlass::stream::{TlsFailure, TlsSessionFactory};
use windlass_task::net::TcpStream;
use windlass_tls::TlsConnector;

use super::{
    fault::{Fault, FaultKind},
    plan::LoadPlan,
    target::Target,
};

/// The protocols for ALPN (RFC 7301).
const HTTP_1_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// The options of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct TlsArgs {
    /// With TLS, trust the certificates in this PEM file, of authorities or of the server itself
    /// [default: those of the system]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// With TLS, accept any certificate of the server. For tests: whoever is between this program
    /// and the server can then read and change everything
    #[arg(long, conflicts_with = "cacert")]
    insecure: bool,

    /// With TLS, the server's name: it is sent (SNI), and the certificate must be valid for it
    /// [default: the host of the URL]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

/// TLS of a run, which all workers share.
#[derive(Debug)]
pub(crate) struct LoadTls {
    connector: TlsConnector,
    pub(crate) sessions: Arc<dyn TlsSessionFactory>,
    server_name: String,
    is_verified: bool,
    pub(crate) handshake_timeout: Duration,
    /// Those by tokio-rustls.
    handshakes: AtomicU64,
    resumed: AtomicU64,
}

/// How the handshakes went, for the JSON.
#[derive(Debug, Serialize)]
pub(crate) struct TlsResults {
    server_name: String,
    /// The certificate was verified: false with --insecure.
    pub(crate) is_verified: bool,
    /// Handshakes that ended well.
    handshakes: u64,
    /// Those of them that resumed an earlier session.
    resumed: u64,
}

impl TlsResults {
    /// The sum over all targets; the name is that of the first with TLS. `None` without TLS.
    pub(crate) fn of_all(plan: &LoadPlan) -> Option<Self> {
        let results = plan.targets.iter().filter_map(|planned| planned.tls.as_ref());
        results.map(LoadTls::results).reduce(|sum, of_target| Self {
            handshakes: sum.handshakes + of_target.handshakes,
            resumed: sum.resumed + of_target.resumed,
            ..sum
        })
    }
}

impl LoadTls {
    /// Reads the files. `None` if the target does without TLS.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or a name cannot be verified.
    pub(crate) fn new(
        args: &TlsArgs,
        target: &Target,
        handshake_timeout: Duration,
        is_http2: bool,
    ) -> anyhow::Result<Option<Self>> {
        let Some(host) = target.tls_host() else { return Ok(None) };
        let builder = TlsConnector::builder().alpn([if is_http2 { HTTP_2 } else { HTTP_1_1 }]);
        let builder = match &args.cacert {
            Some(path) => builder.roots(path),
            None if args.insecure => builder.insecure(),
            None => builder,
        };
        let connector = builder.build().context(
            "cannot use TLS; --cacert FILE names the certificates to trust, and --insecure trusts \
             any",
        )?;
        let server_name = args.server_name.as_deref().unwrap_or(host).to_owned();
        let sessions = connector
            .to(&server_name)
            .context("cannot verify the server; --server-name NAME sets its name")?;
        let (sessions, is_verified) = (Arc::new(sessions), !args.insecure);
        Ok(Some(Self {
            connector,
            sessions,
            server_name,
            is_verified,
            handshake_timeout,
            handshakes: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
        }))
    }

    /// Makes a handshake by tokio-rustls, whose streams have the traits that hyper needs.
    ///
    /// # Errors
    ///
    /// That of the handshake.
    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let connector = tokio_rustls::TlsConnector::from(self.connector.client_config());
        let name = self.server_name.clone().try_into().map_err(io::Error::other)?;
        let stream = connector.connect(name, stream).await?;
        self.handshakes.fetch_add(1, Relaxed);
        if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
            self.resumed.fetch_add(1, Relaxed);
        }
        Ok(stream)
    }

    /// How the handshakes went.
    pub(crate) fn results(&self) -> TlsResults {
        let counts = self.connector.handshakes();
        TlsResults {
            server_name: self.server_name.clone(),
            is_verified: self.is_verified,
            handshakes: counts.completed + self.handshakes.load(Relaxed),
            resumed: counts.resumed + self.resumed.load(Relaxed),
        }
    }

    /// The fault of a connection whose handshake has failed, with advice.
    pub(crate) fn fault(&self, failure: TlsFailure) -> Fault {
        let name = &self.server_name;
        let text = match failure {
            TlsFailure::UnknownIssuer => {
                "the issuer of the server's certificate is not trusted; name a file with the \
                 issuer's certificate by --cacert, or accept any certificate by --insecure"
                    .to_owned()
            }
            TlsFailure::CertificateForOtherName => format!(
                "the server's certificate is not valid for `{name}`; set a name that it contains \
                 by --server-name, or accept any certificate by --insecure"
            ),
            TlsFailure::CertificateExpired => {
                "the server's certificate has expired; renew it, or accept it by --insecure"
                    .to_owned()
            }
            TlsFailure::CertificateNotYetValid => {
                "the server's certificate is not valid yet; check the clock of this machine, or \
                 accept it by --insecure"
                    .to_owned()
            }
            TlsFailure::CertificateOfAuthority => {
                "the server's own certificate is that of an authority, as `openssl req -x509` \
                 makes it; trust it by --cacert FILE, or accept any certificate by --insecure"
                    .to_owned()
            }
            TlsFailure::BadCertificate => {
                "the server's certificate was rejected; --insecure accepts any certificate"
                    .to_owned()
            }
            TlsFailure::NotTls => {
                "the server does not speak TLS on this port; use ws:// or http:// for a plain one"
                    .to_owned()
            }
            TlsFailure::HandshakeIncomplete => {
                "the server has disconnected during the TLS handshake".to_owned()
            }
            TlsFailure::HandshakeTimeout => {
                let seconds = self.handshake_timeout.as_secs_f64();
                format!("no end of the TLS handshake within {seconds} s; --timeout sets the limit")
            }
            other => format!("TLS: {other}"),
        };
        Fault::new(FaultKind::Tls, text)
    }
}

impl TlsArgs {
    /// Returns the first option that is set.
    pub(crate) fn first_option(&self) -> Option<&'static str> {
        [
            (self.cacert.is_some(), "--cacert"),
            (self.insecure, "--insecure"),
            (self.server_name.is_some(), "--server-name"),
        ]
        .into_iter()
        .find_map(|(is_set, name)| is_set.then_some(name))
    }
}

/// Returns whether a server that speaks TLS has answered a plain request: by an alert (RFC 8446
/// section 6), or in words, as `windlass serve` and nginx do.
pub(crate) fn is_answer_to_plain_http(answer: &[u8]) -> bool {
    let has = |words: &[u8]| answer.windows(words.len()).any(|part| part == words);
    answer.starts_with(&[21, 3]) || has(b"This port speaks TLS") || has(b"sent to HTTPS port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_tls_server_is_known() {
        let nginx = "HTTP/1.1 400 Bad Request\r\n\r\nThe plain HTTP request was sent to HTTPS port";
        let windlass = "HTTP/1.1 400 Bad Request\r\n\r\nThis port speaks TLS: use wss://";
        let plain = "HTTP/1.1 400 Bad Request\r\n\r\nno such room";
        assert!(is_answer_to_plain_http(&[21, 3, 3, 0, 2, 2, 70]));
        assert!(is_answer_to_plain_http(nginx.as_bytes()));
        assert!(is_answer_to_plain_http(windlass.as_bytes()));
        assert!(!is_answer_to_plain_http(plain.as_bytes()));
    }
}
