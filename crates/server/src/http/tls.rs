//! What the TLS handshake of a connection has negotiated.

use windlass::stream::TlsSession;

/// What the TLS handshake of a connection has negotiated. A copy: it may be kept with the data of
/// the connection.
///
/// ```
/// use windlass_server::http::{Accept, Reject, UpgradeRequest};
///
/// /// Admits clients by their certificates.
/// fn admit(request: &UpgradeRequest<'_>) -> Result<Accept<String>, Reject> {
///     let subject = request.tls().and_then(|tls| tls.peer_subject());
///     match subject {
///         Some(subject) => Ok(Accept::new(subject.to_owned())),
///         None => Err(Reject::status(403).text("a client certificate is needed")),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    version: Option<&'static str>,
    alpn: Option<Box<[u8]>>,
    server_name: Option<Box<str>>,
    peer_subject: Option<Box<str>>,
    is_resumed: bool,
}

impl TlsInfo {
    /// Copies what a session has negotiated, for a host that terminates TLS by streams of its own.
    #[must_use]
    pub fn of(session: &dyn TlsSession) -> Self {
        Self {
            version: session.version(),
            alpn: session.alpn().map(Into::into),
            server_name: session.server_name().map(Into::into),
            peer_subject: session.peer_subject().map(Into::into),
            is_resumed: session.is_resumed(),
        }
    }

    /// The protocol version, such as `TLSv1.3`.
    #[must_use]
    pub fn version(&self) -> Option<&'static str> {
        self.version
    }

    /// The application protocol that was negotiated (ALPN, RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }

    /// The name that the client has asked for (SNI, RFC 6066 section 3).
    #[must_use]
    #[doc(alias = "sni")]
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The subject of the client's certificate as text (RFC 4514), if the client has proved that it
    /// owns one.
    #[must_use]
    pub fn peer_subject(&self) -> Option<&str> {
        self.peer_subject.as_deref()
    }

    /// Whether an earlier session was resumed.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }
}
