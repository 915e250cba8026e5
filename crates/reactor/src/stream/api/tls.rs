//! TLS for streams: what a stream asks of a session, and how sessions end.
//!
//! The reactor has no cryptography. The crate `windlass-tls` implements these traits.

use core::fmt;
use std::time::SystemTime;

use crate::stream::io::tls_state::{OwnSession, ReleasedState};

/// The TLS session of one stream. The stream owns the socket, and calls the session with bytes.
///
/// `windlass-tls` implements it with rustls. A user of streams needs it only to read what was
/// negotiated: see [`Stream::tls`](crate::stream::Stream::tls).
///
/// # Contract
///
/// 1. A session never blocks, and keeps no buffer for the stream. Records are decrypted where they
///    lie, and records to send are appended to the caller's buffer.
/// 2. [`decrypt`](Self::decrypt) is first called with no input. A client then appends its first
///    flight.
/// 3. Once a call has returned [`TlsPhase::Failed`] or an error, only the queries follow.
/// 4. A call that panics unwinds as a handler does. The stream is then reset, and the session is
///    not called again.
/// 5. Calls come on the reactor's thread. The session is dropped with its stream, unless the stream
///    is [released](crate::stream::Stream::release). Its destructor must not panic.
///
/// # Examples
///
/// ```
/// use windlass::stream::{TlsDecrypted, TlsFailure, TlsPhase, TlsSession};
///
/// /// Lets all bytes through: for tests of the layer above.
/// struct Transparent;
///
/// impl TlsSession for Transparent {
///     fn decrypt(&mut self, input: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
///         TlsDecrypted::new(input.len(), input.len(), TlsPhase::Open)
///     }
///     fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
///         records.extend_from_slice(plaintext);
///         Ok(())
///     }
///     fn close_notify(&mut self, _: &mut Vec<u8>) {}
/// }
/// ```
pub trait TlsSession: Send + 'static {
    /// Takes whole records from the front of `input`, and moves their plaintexts together at the
    /// front of `input`. Appends records that must be sent to `records`.
    ///
    /// It takes all the whole records, but returns early when the handshake ends: the first call
    /// that returns [`TlsPhase::Open`] returns no plaintext. It also returns early when the session
    /// ends.
    ///
    /// The stream keeps the input that was not taken, and passes it again with more behind it.
    fn decrypt(&mut self, input: &mut [u8], records: &mut Vec<u8>) -> TlsDecrypted;

    /// Appends records with `plaintext`, after the handshake. The stream passes at most 17 KiB a
    /// call.
    ///
    /// # Errors
    /// The session cannot send anything more.
    fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure>;

    /// Appends the alert `close_notify`. Nothing is encrypted afterwards.
    fn close_notify(&mut self, records: &mut Vec<u8>);

    /// The application protocol that was negotiated (ALPN, RFC 7301).
    fn alpn(&self) -> Option<&[u8]> {
        None
    }

    /// The name that the client has asked for (SNI, RFC 6066 section 3). `None` on a client.
    fn server_name(&self) -> Option<&str> {
        None
    }

    /// The subject of the peer's certificate as text (RFC 4514), if the peer has proved that it
    /// owns one: the client's with mutual TLS, or the server's.
    fn peer_subject(&self) -> Option<&str> {
        None
    }

    /// The protocol version, such as `TLSv1.3`.
    fn version(&self) -> Option<&'static str> {
        None
    }

    /// Whether an earlier session was resumed.
    fn is_resumed(&self) -> bool {
        false
    }

    /// Bytes of memory that the session holds for received bytes: for example the records of a
    /// handshake message that is cut. [`Stream::memory`](crate::stream::Stream::memory) counts
    /// them. The stream asks after each [`decrypt`](Self::decrypt). A session must bound them.
    fn memory(&self) -> usize {
        0
    }
}

/// Makes the sessions of a listener's connections, or of outgoing ones.
///
/// Listeners of several threads may share it. `windlass-tls` implements it.
pub trait TlsSessionFactory: fmt::Debug + Send + Sync + 'static {
    /// A session for a new connection. One that cannot be made fails at its first
    /// [`decrypt`](TlsSession::decrypt).
    fn new_session(&self) -> Box<dyn TlsSession>;

    /// An estimate of the memory that a session takes during its handshake, in bytes. Servers count
    /// it in their budgets; 0 is nothing to count. Default: 8 KiB.
    fn handshake_memory(&self) -> usize {
        8 << 10
    }

    /// What an operator should know, for metrics. Called from any thread.
    fn status(&self) -> TlsFactoryStatus {
        TlsFactoryStatus::default()
    }
}

/// The certificates and reloads of a [`TlsSessionFactory`]: see [`TlsSessionFactory::status`].
///
/// ```
/// use windlass::stream::TlsFactoryStatus;
///
/// let status = TlsFactoryStatus::default();
/// assert!(status.earliest_expiry.is_none() && status.failed_reloads == 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFactoryStatus {
    /// The time after which the first of the own certificates is not valid any more. `None` if
    /// there is none, or if it is not known.
    pub earliest_expiry: Option<SystemTime>,
    /// How often the certificates were replaced.
    pub reloads: u64,
    /// How often they could not be replaced, and the old ones stayed.
    pub failed_reloads: u64,
}

/// The TLS session of a [released](crate::stream::Stream::release) stream. It goes on in another
/// stream: see [`StreamWithFd::with_released_tls`](crate::stream::StreamWithFd::with_released_tls).
///
/// It holds the keys, and records that the socket has not accepted. It may be sent to another
/// thread, and registered with the reactor there. Dropped, it tells the peer nothing. In a child of
/// fork(2) it cannot go on: its stream is closed with [`TlsFailure::Internal`], whether the parent
/// goes on or not. A daemon forks before it opens connections.
///
/// # Examples
///
/// ```
/// use std::{os::unix::net::UnixStream, sync::Arc};
/// use windlass::{Reactor, stream::{Released, ReleasedTls, StreamOptions}};
/// # use windlass::stream::{
/// #     Input, Stream, StreamHandler, TlsDecrypted, TlsFailure, TlsPhase, TlsSession,
/// #     TlsSessionFactory,
/// # };
/// # struct Transparent;
/// # impl TlsSession for Transparent {
/// #     fn decrypt(&mut self, input: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
/// #         TlsDecrypted::new(input.len(), 0, TlsPhase::Open)
/// #     }
/// #     fn encrypt(&mut self, plain: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
/// #         Ok(records.extend_from_slice(plain))
/// #     }
/// #     fn close_notify(&mut self, _: &mut Vec<u8>) {}
/// # }
/// # #[derive(Debug)]
/// # struct Sessions;
/// # impl TlsSessionFactory for Sessions {
/// #     fn new_session(&self) -> Box<dyn TlsSession> { Box::new(Transparent) }
/// # }
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
/// # fn main() -> std::io::Result<()> {
/// # let (ours, _theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let with_tls = StreamOptions::new().with_fd(ours).with_tls(Arc::new(Sessions));
/// let key = with_tls.with_handler(Echo).register_into(&mut reactor)?;
///
/// let released = reactor.stream(key)?.release().expect("not in its own handler");
/// let tls: ReleasedTls = released.tls.expect("it has TLS");
/// let socket = released.socket.expect("the reactor owned it");
/// let on_another_thread = std::thread::spawn(move || -> std::io::Result<()> {
///     let mut other = Reactor::new()?;
///     let again = StreamOptions::new().with_fd(socket).with_read_buf(released.read_buf);
///     let key = again.with_released_tls(tls).with_handler(Echo).register_into(&mut other)?;
///     assert!(other.stream(key)?.tls().is_some(), "the session goes on here");
///     Ok(())
/// });
/// on_another_thread.join().expect("it has not panicked")?;
/// # Ok(())
/// # }
/// ```
pub struct ReleasedTls(pub(in crate::stream) Box<ReleasedState>);

impl ReleasedTls {
    /// The session, with what was negotiated.
    #[must_use]
    pub fn session(&self) -> &dyn TlsSession {
        &**self.0.session
    }

    /// The session alone. The connection cannot go on.
    pub(in crate::stream) fn into_session(self) -> OwnSession {
        self.0.session
    }
}

impl fmt::Debug for ReleasedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleasedTls").field("progress", &self.0.progress).finish_non_exhaustive()
    }
}

/// The result of [`TlsSession::decrypt`]: see there for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsDecrypted {
    /// The number of bytes taken from the front of the input.
    pub consumed: usize,
    /// The number of bytes of plaintext that are now at the front of the input. At most `consumed`.
    pub plaintext: usize,
    /// The session needs at least this many bytes more before the next call has an effect. The
    /// stream does not call it before. 1 if the number is not known.
    pub missing: usize,
    /// The phase of the session after the call.
    pub phase: TlsPhase,
}

impl TlsDecrypted {
    /// A result with one missing byte.
    ///
    /// ```
    /// use windlass::stream::{TlsDecrypted, TlsPhase};
    ///
    /// assert_eq!(TlsDecrypted::new(22, 0, TlsPhase::Handshake).missing, 1);
    /// ```
    #[must_use]
    pub const fn new(consumed: usize, plaintext: usize, phase: TlsPhase) -> Self {
        Self { consumed, plaintext, missing: 1, phase }
    }

    /// Sets the number of missing bytes.
    #[must_use]
    pub const fn missing(mut self, bytes: usize) -> Self {
        self.missing = bytes;
        self
    }
}

/// The phase of a session: see [`TlsSession`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsPhase {
    /// Nothing can be sent or received yet.
    Handshake,
    /// The handshake has ended.
    Open,
    /// The peer has sent `close_notify`: it sends nothing more.
    PeerClosed,
    /// The session has failed. The alert for the peer, if there is one, was appended to the
    /// records.
    Failed(TlsFailure),
}

/// Why a TLS session ended before its stream was closed.
///
/// ```
/// use windlass::stream::TlsFailure;
///
/// let text = TlsFailure::PlainHttp.to_string();
/// assert_eq!(text, "the client sent plain HTTP to a TLS port; use https:// or wss://");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsFailure {
    /// The connection ended without `close_notify`. What was received may be truncated.
    Truncated,
    /// The peer closed the connection during the handshake.
    HandshakeIncomplete,
    /// The handshake took longer than
    /// [`tls_handshake_timeout`](crate::stream::StreamOptions::tls_handshake_timeout).
    HandshakeTimeout,
    /// The peer sent handshake messages that are too long, or are cut into too many records.
    HandshakeTooLong,
    /// A client sent plain HTTP.
    PlainHttp,
    /// The peer sent bytes that are no TLS records.
    NotTls,
    /// No protocol version is common to both sides.
    NoCommonVersion,
    /// No cipher suite, group or signature scheme is common to both sides.
    NoCommonCipher,
    /// No application protocol is common to both sides.
    NoCommonAlpn,
    /// The server has no certificate for the name that the client has asked for.
    UnknownName,
    /// The client sent no certificate, and the server requires one.
    CertificateRequired,
    /// The peer's certificate is not signed by an authority that is trusted here.
    UnknownIssuer,
    /// The peer's certificate has expired.
    CertificateExpired,
    /// The peer's certificate is not valid yet.
    CertificateNotYetValid,
    /// The server's certificate is for another name.
    CertificateForOtherName,
    /// The server's own certificate is that of an authority, and is not trusted itself.
    CertificateOfAuthority,
    /// The peer's certificate was rejected for another reason.
    BadCertificate,
    /// A record could not be decrypted: it was changed on its way, or the peer uses another key.
    DecryptionFailed,
    /// The peer broke the protocol.
    ProtocolViolation,
    /// The peer ended the session by a fatal alert, with this number (RFC 8446 section 6).
    AlertReceived(u8),
    /// As many records were sent as one key may encrypt, and the peer's protocol version cannot
    /// change the key.
    KeyExhausted,
    /// The session broke its [contract](TlsSession#contract), has panicked, or belongs to the
    /// parent of this process.
    Internal,
}

/// The names of alerts (RFC 8446 section 6.2, RFC 5246 section 7.2.2).
const fn alert_name(number: u8) -> &'static str {
    match number {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        100 => "no_renegotiation",
        109 => "missing_extension",
        110 => "unsupported_extension",
        112 => "unrecognized_name",
        113 => "bad_certificate_status_response",
        116 => "certificate_required",
        120 => "no_application_protocol",
        _ => "unknown",
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the connection ended without close_notify; data may be missing",
            Self::HandshakeIncomplete => "the peer closed the connection during the TLS handshake",
            Self::HandshakeTimeout => {
                "the TLS handshake took longer than its time limit \
                 (of a stream: StreamOptions::tls_handshake_timeout)"
            }
            Self::HandshakeTooLong => "the peer's TLS handshake messages are too long",
            Self::PlainHttp => "the client sent plain HTTP to a TLS port; use https:// or wss://",
            Self::NotTls => "the peer does not speak TLS on this port",
            Self::NoCommonVersion => {
                "no TLS version in common; compare the versions that both sides allow"
            }
            Self::NoCommonCipher => "no cipher suite or signature scheme in common",
            Self::NoCommonAlpn => {
                "no application protocol in common; compare what both sides offer for ALPN"
            }
            Self::UnknownName => "no certificate for the server name that the client asked for",
            Self::CertificateRequired => {
                "the client sent no certificate; it must be configured with one"
            }
            Self::UnknownIssuer => {
                "the issuer of the peer's certificate is not trusted; if it should be, add the \
                 issuer's certificate to those that are trusted here"
            }
            Self::CertificateOfAuthority => {
                "the peer's own certificate is that of an authority; trust it itself, or give the \
                 peer a certificate that the authority has signed"
            }
            Self::CertificateExpired => {
                "the peer's certificate has expired; the peer must renew it"
            }
            Self::CertificateNotYetValid => {
                "the peer's certificate is not valid yet; check the clocks of both sides"
            }
            Self::CertificateForOtherName => {
                "the server's certificate is for another name; connect by a name that it contains"
            }
            Self::BadCertificate => "the peer's certificate was rejected",
            Self::DecryptionFailed => "a record could not be decrypted",
            Self::ProtocolViolation => "the peer broke the TLS protocol",
            Self::AlertReceived(number) => {
                return write!(f, "the peer sent the alert {} ({number})", alert_name(*number));
            }
            Self::KeyExhausted => "the key has encrypted as many records as it may",
            Self::Internal => "the TLS session broke its contract",
        })
    }
}
