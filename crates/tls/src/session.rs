//! A session: the unbuffered API of rustls behind the trait of streams.
//!
//! 1. rustls is given one whole record at a time. So it never takes data that came behind the end
//!    of the handshake, and a partial record stays with the stream.
//! 2. rustls wants to see the records of a cut handshake message together. They are kept here until
//!    it takes them: at most [`HELD_MAX`] bytes in the handshake, and later as much as one record.
//! 3. Its calls get the kept records also when something is sent: rustls remembers places in them.
//! 4. After an error nothing is called again. The alert for it was taken before.
//! 5. rustls does not take the records of rejected early data alone, so they are kept by rule 2.
//!    With each later record it tries them again, and counts them again, up to 16 KiB. So a client
//!    fails if it sends more than 8 KiB of early data in one record, or 2.5 KB in ten, for a ticket
//!    of another server. It then connects again without (RFC 8446 section 4.2.10).

use std::sync::Arc;

use rustls::{
    CommonState, Error, HandshakeKind, ProtocolVersion,
    client::UnbufferedClientConnection,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus},
};
use windlass::stream::{TlsDecrypted, TlsFailure, TlsPhase, TlsSession};

use crate::{
    acceptor,
    counts::{Counters, count},
    failure::failure,
    subject::subject,
};

/// The records of one cut handshake message. rustls accepts messages of 64 KiB.
const HELD_MAX: usize = 80 << 10;

/// A record's header (RFC 8446 section 5.1).
const HEADER: usize = 5;

/// The longest content that a header may announce: 2 KiB more than its plaintext (RFC 5246 section
/// 6.2.3).
const CONTENT_MAX: usize = (16 << 10) + 2048;

/// What a record has beside its plaintext, in all supported cipher suites.
const EXPANSION_MAX: usize = 40;

/// The longest record with its header.
const RECORD_MAX: usize = HEADER + CONTENT_MAX;

/// The answer to a client that speaks plain HTTP.
const HTTP_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: \
    text/plain\r\nContent-Length: 47\r\n\r\nThis port speaks TLS: use https:// or wss://.\r\n";

/// The part of rustls' two kinds of connections that differs.
pub(crate) trait Connection: Send + 'static {
    type Data;

    /// See `UnbufferedServerConnection::process_tls_records`.
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn state(&self) -> &CommonState;

    /// Whether its peer may be a client that speaks plain HTTP.
    const IS_SERVER: bool;
}

impl Connection for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;
    const IS_SERVER: bool = true;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

impl Connection for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;
    const IS_SERVER: bool = false;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

/// The result of one call of rustls.
enum Step {
    /// It has more to say.
    Again,
    /// Plaintext is waiting inside of it.
    Plaintext,
    /// It needs another record, or nothing.
    Idle,
    PeerClosed,
    Failed(Error),
}

pub(crate) struct Session<C> {
    connection: C,
    phase: TlsPhase,
    /// It has looked at the first bytes of its peer.
    has_looked: bool,
    /// Rule 2.
    held: Vec<u8>,
    counters: Arc<Counters>,
    server_name: Option<Box<str>>,
    peer_subject: Option<Box<str>>,
}

impl<C: Connection> Session<C> {
    pub(crate) fn new(connection: C, counters: &Arc<Counters>) -> Self {
        count(&counters.started);
        Self {
            connection,
            phase: TlsPhase::Handshake,
            has_looked: !C::IS_SERVER,
            held: Vec::new(),
            counters: Arc::clone(counters),
            server_name: None,
            peer_subject: None,
        }
    }

    fn fail(&mut self, failure: TlsFailure) {
        if self.phase == TlsPhase::Handshake {
            count(&self.counters.failed);
        }
        self.phase = TlsPhase::Failed(failure);
        self.held = Vec::new();
    }

    /// Answers plain HTTP. `Some` with the number of bytes without which it cannot be told.
    fn look_for_http(&mut self, input: &[u8], records: &mut Vec<u8>) -> Option<usize> {
        const METHODS: [&[u8; 4]; 9] =
            [b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN", b"DELE", b"PATC", b"PRI "];
        let first = &input[..input.len().min(4)];
        let is_http = METHODS.iter().any(|method| method.starts_with(first));
        if is_http && first.len() < 4 {
            return Some(4 - first.len());
        }
        self.has_looked = true;
        if is_http {
            records.extend_from_slice(HTTP_ANSWER);
            self.fail(TlsFailure::PlainHttp);
        }
        None
    }

    /// The handshake has ended.
    #[cold]
    fn open(&mut self) {
        self.phase = TlsPhase::Open;
        count(&self.counters.completed);
        if self.is_resumed() {
            count(&self.counters.resumed);
        }
        let certificate = self.connection.state().peer_certificates().and_then(<[_]>::first);
        self.peer_subject = certificate.and_then(|der| subject(der)).map(Into::into);
    }

    /// Passes a record, or nothing, to rustls. Plaintext goes to `input` at `to`, and is no longer
    /// than the record. Returns its length.
    fn take(&mut self, input: &mut [u8], at: usize, to: usize, records: &mut Vec<u8>) -> usize {
        let len = record_len(&input[at..]);
        if !self.held.is_empty() {
            let held_max = if self.phase == TlsPhase::Handshake { HELD_MAX } else { RECORD_MAX };
            if self.held.len() + len > held_max {
                self.fail(TlsFailure::HandshakeTooLong);
                return 0;
            }
            let needed = self.held.len() + len;
            if self.held.capacity() < needed {
                let grown = (2 * self.held.capacity()).clamp(needed, held_max);
                self.held.reserve_exact(grown - self.held.len());
            }
            self.held.extend_from_slice(&input[at..at + len]);
        }
        let (mut taken, mut plaintext) = (0, 0);
        let mut failed: Option<Error> = None;
        // After an error only the alert for the peer follows.
        while failed.is_none() || self.connection.state().wants_write() {
            let buffer = match self.held.is_empty() {
                true => &mut input[at + taken..at + len],
                false => &mut self.held[taken..],
            };
            let (discard, step) = step(self.connection.process(buffer), records);
            taken += discard;
            match step {
                Step::Again => {}
                Step::Plaintext => plaintext += self.read(&mut input[to + plaintext..]),
                Step::Failed(error) if failed.is_none() => failed = Some(error),
                Step::Idle | Step::Failed(_) => break,
                Step::PeerClosed => {
                    self.phase = TlsPhase::PeerClosed;
                    break;
                }
            }
        }
        if let Some(error) = failed {
            self.reject(&error);
            return plaintext;
        }
        if !self.held.is_empty() {
            self.held.drain(..taken);
            if self.held.is_empty() {
                self.held = Vec::new();
            }
        } else if taken < len && matches!(self.phase, TlsPhase::Handshake | TlsPhase::Open) {
            self.held = input[at + taken..at + len].to_vec();
        }
        plaintext
    }

    /// Moves the plaintext that rustls has decrypted. It keeps it apart from the caller's memory.
    fn read(&mut self, to: &mut [u8]) -> usize {
        let mut len = 0;
        // Rule 3 holds: data and a cut handshake message exclude each other.
        if let Ok(ConnectionState::ReadTraffic(mut traffic)) =
            self.connection.process(&mut []).state
        {
            while let Some(Ok(record)) = traffic.next_record() {
                to[len..len + record.payload.len()].copy_from_slice(record.payload);
                len += record.payload.len();
            }
        }
        len
    }

    #[cold]
    fn reject(&mut self, error: &Error) {
        if C::IS_SERVER && self.phase == TlsPhase::Handshake && acceptor::is_name_rejected() {
            return self.fail(TlsFailure::UnknownName);
        }
        let is_first = self.phase == TlsPhase::Handshake
            && self.connection.state().protocol_version().is_none()
            && matches!(error, Error::InvalidMessage(_));
        self.fail(if is_first { TlsFailure::NotTls } else { failure(error) });
    }

    /// Appends records that rustls makes of `plaintext`, or its `close_notify` for `None`.
    fn write(&mut self, plaintext: Option<&[u8]>, records: &mut Vec<u8>) -> Result<(), TlsFailure> {
        let start = records.len();
        let len = plaintext.map_or(0, <[u8]>::len);
        let mut room = len + EXPANSION_MAX * (1 + len.div_ceil(16 << 10));
        // Most calls need two rounds at most: something was queued, or the room was too short.
        for _ in 0..64 {
            let status = self.connection.process(&mut self.held);
            let mut traffic = match status.state {
                Ok(ConnectionState::WriteTraffic(traffic)) => traffic,
                state => {
                    let discard = status.discard;
                    match step(UnbufferedStatus { discard, state }, records).1 {
                        Step::Again | Step::PeerClosed => continue,
                        Step::Failed(error) => return Err(failure(&error)),
                        Step::Plaintext | Step::Idle => return Err(TlsFailure::Internal),
                    }
                }
            };
            let start = records.len().max(start);
            records.resize(start + room, 0);
            let written = match plaintext {
                Some(plaintext) => traffic.encrypt(plaintext, &mut records[start..]),
                None => traffic.queue_close_notify(&mut records[start..]),
            };
            records.truncate(start + *written.as_ref().unwrap_or(&0));
            match written {
                Ok(_) => return Ok(()),
                Err(EncryptError::InsufficientSize(size)) => room = size.required_size,
                Err(EncryptError::EncryptExhausted) => return Err(TlsFailure::KeyExhausted),
            }
        }
        Err(TlsFailure::Internal)
    }
}

/// Handles one status of rustls. Returns how many bytes it has taken.
fn step<Data>(status: UnbufferedStatus<'_, '_, Data>, records: &mut Vec<u8>) -> (usize, Step) {
    let step = match status.state {
        Ok(ConnectionState::EncodeTlsData(data)) => encode(data, records),
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // The stream sends it.
            data.done();
            Step::Again
        }
        Ok(ConnectionState::ReadTraffic(_)) => Step::Plaintext,
        Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Step::Idle,
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Step::PeerClosed,
        // Early data is not enabled.
        Ok(_) => Step::Failed(Error::HandshakeNotComplete),
        Err(error) => Step::Failed(error),
    };
    (status.discard, step)
}

fn encode<Data>(mut data: EncodeTlsData<'_, Data>, records: &mut Vec<u8>) -> Step {
    let start = records.len();
    let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) else {
        return Step::Again;
    };
    records.resize(start + size.required_size, 0);
    match data.encode(&mut records[start..]) {
        Ok(written) => {
            records.truncate(start + written);
            Step::Again
        }
        Err(_) => Step::Failed(Error::HandshakeNotComplete),
    }
}

/// The length of the first record. 0 if it is partial. A header that no record can have is passed
/// on alone, so that rustls rejects it.
fn record_len(input: &[u8]) -> usize {
    let Some(content) = announced(input) else { return 0 };
    if !(20..=24).contains(&input[0]) || content > CONTENT_MAX {
        return HEADER;
    }
    if HEADER + content <= input.len() { HEADER + content } else { 0 }
}

/// The length of the content that a header announces.
fn announced(input: &[u8]) -> Option<usize> {
    let header = input.first_chunk::<HEADER>()?;
    Some(usize::from(u16::from_be_bytes([header[3], header[4]])))
}

impl<C: Connection> TlsSession for Session<C> {
    fn decrypt(&mut self, input: &mut [u8], records: &mut Vec<u8>) -> TlsDecrypted {
        if !self.has_looked && !input.is_empty() {
            if let Some(missing) = self.look_for_http(input, records) {
                return TlsDecrypted::new(0, 0, self.phase).missing(missing);
            }
        }
        let (mut at, mut plaintext) = (0, 0);
        while matches!(self.phase, TlsPhase::Handshake | TlsPhase::Open) {
            let len = record_len(&input[at..]);
            // Without input, a client begins.
            if len == 0 && !(at == 0 && input.is_empty()) {
                break;
            }
            if C::IS_SERVER && self.phase == TlsPhase::Handshake {
                acceptor::forget_name();
            }
            plaintext += self.take(input, at, plaintext, records);
            at += len;
            if self.phase == TlsPhase::Handshake {
                if C::IS_SERVER {
                    if let Some(name) = acceptor::take_name() {
                        self.server_name = Some(name);
                    }
                }
                if !self.connection.state().is_handshaking() {
                    self.open();
                    break;
                }
            }
            if len == 0 {
                break;
            }
        }
        let rest = input.len() - at;
        let whole = announced(&input[at..]).map_or(HEADER, |content| HEADER + content);
        TlsDecrypted::new(at, plaintext, self.phase).missing(whole.saturating_sub(rest).max(1))
    }

    fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
        let written = self.write(Some(plaintext), records);
        if let Err(failure) = written {
            self.fail(failure);
        }
        written
    }

    fn close_notify(&mut self, records: &mut Vec<u8>) {
        // Without it the peer reports a truncated connection. There is nothing else to do.
        let _ = self.write(None, records);
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.connection.state().alpn_protocol()
    }

    fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    fn peer_subject(&self) -> Option<&str> {
        self.peer_subject.as_deref()
    }

    fn version(&self) -> Option<&'static str> {
        match self.connection.state().protocol_version()? {
            ProtocolVersion::TLSv1_2 => Some("TLSv1.2"),
            ProtocolVersion::TLSv1_3 => Some("TLSv1.3"),
            _ => None,
        }
    }

    fn is_resumed(&self) -> bool {
        self.connection.state().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn memory(&self) -> usize {
        self.held.capacity()
    }
}

impl<C> Drop for Session<C> {
    fn drop(&mut self) {
        if self.phase == TlsPhase::Handshake {
            count(&self.counters.abandoned);
        }
    }
}

/// A session that could not be made.
pub(crate) struct Unmade;

impl TlsSession for Unmade {
    fn decrypt(&mut self, _: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
        TlsDecrypted::new(0, 0, TlsPhase::Failed(TlsFailure::Internal))
    }

    fn encrypt(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), TlsFailure> {
        Err(TlsFailure::Internal)
    }

    fn close_notify(&mut self, _: &mut Vec<u8>) {}
}
