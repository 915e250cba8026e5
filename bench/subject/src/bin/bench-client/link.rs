//! A connection of the client, plain or with TLS.
//!
//! The sessions are those of `windlass-tls`, for all servers: they cost the client less than the
//! buffered API of rustls. No certificate is verified, only that the server owns it.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use windlass::stream::{TlsPhase, TlsSession, TlsSessionFactory as _};
use windlass_bench_driver::Error;
use windlass_tls::TlsConnector;

use crate::socket::{self, RECEIVE_BYTES, ReadResult};

/// The longest plaintext that a record has.
const RECORD_MAX: usize = 16 << 10;

/// Bytes of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Number of bytes in the buffer.
    pub(crate) count: usize,
    /// The socket had no more.
    pub(crate) is_drained: bool,
}

/// The client's end of a TLS connection, without its socket.
pub(crate) struct TlsEnd {
    session: Box<dyn TlsSession>,
    phase: TlsPhase,
    /// The beginning of a record.
    partial: Vec<u8>,
    /// What the kernel has not taken yet.
    records: Vec<u8>,
}

/// Makes the TLS ends of a client.
#[derive(Clone, Debug)]
pub(crate) struct TlsClient {
    connector: TlsConnector,
    /// Sessions are resumed by the server's name, so another name means a full handshake.
    number: u32,
}

impl TlsClient {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { connector: TlsConnector::builder().insecure().build()?, number: 0 })
    }

    /// Begins a session, which resumes the one before it with this number, if there was one. A
    /// ticket is used once, so sessions in flight have numbers of their own.
    pub(crate) fn resume(&self, number: usize) -> Result<TlsEnd, Error> {
        TlsEnd::begin(&format!("r{number}.localhost"), &self.connector)
    }

    /// Begins a session with a full handshake.
    pub(crate) fn begin(&mut self) -> Result<TlsEnd, Error> {
        self.number += 1;
        TlsEnd::begin(&format!("n{}.localhost", self.number), &self.connector)
    }

    /// Returns how many sessions were resumed.
    pub(crate) fn resumed(&self) -> u64 {
        self.connector.handshakes().resumed
    }
}

impl TlsEnd {
    fn begin(name: &str, connector: &TlsConnector) -> Result<Self, Error> {
        let mut session = Arc::new(connector.to(name)?).new_session();
        let mut records = Vec::new();
        let phase = session.decrypt(&mut [], &mut records).phase;
        Ok(Self { session, phase, partial: Vec::new(), records })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase == TlsPhase::Open
    }

    /// The records that wait to be sent.
    pub(crate) fn records(&self) -> &[u8] {
        &self.records
    }

    /// Sends what waits. Returns whether nothing is left.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> Result<bool, Error> {
        if !self.records.is_empty() {
            let sent = socket::transmit(socket, &self.records)?;
            self.records.drain(..sent);
        }
        Ok(self.records.is_empty())
    }

    pub(crate) fn seal(&mut self, plain: &[u8]) -> Result<(), Error> {
        for part in plain.chunks(RECORD_MAX) {
            self.session.encrypt(part, &mut self.records).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    }

    /// Reads once, and decrypts to the front of the buffer. `None` if nothing came.
    pub(crate) fn receive(
        &mut self,
        socket: impl AsFd,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, Error> {
        let kept = self.partial.len();
        let ReadResult::Bytes(count) = socket::receive(&socket, &mut buffer[kept..])? else {
            return Ok(None);
        };
        buffer[..kept].copy_from_slice(&self.partial);
        self.partial.clear();
        let (mut at, mut plain, end) = (0, 0, kept + count);
        loop {
            let decrypted = self.session.decrypt(&mut buffer[at..end], &mut self.records);
            buffer.copy_within(at..at + decrypted.plaintext, plain);
            plain += decrypted.plaintext;
            at += decrypted.consumed;
            let was_open = self.is_open();
            self.phase = decrypted.phase;
            match self.phase {
                TlsPhase::Failed(failure) => return Err(failure.to_string().into()),
                TlsPhase::PeerClosed => return Err("the server has closed a connection".into()),
                _ => {}
            }
            if was_open || !self.is_open() || at == end {
                break;
            }
        }
        self.partial.extend_from_slice(&buffer[at..end]);
        self.flush(socket)?;
        Ok(Some(Received { count: plain, is_drained: end < buffer.len() }))
    }
}

/// An upgraded, non-blocking connection.
pub(crate) struct Link {
    socket: TcpStream,
    tls: Option<Box<TlsEnd>>,
}

impl Link {
    /// Opens a connection, with TLS if there is a session for it.
    pub(crate) fn open(
        address: SocketAddr,
        deflate: bool,
        tls: Option<TlsEnd>,
    ) -> Result<Self, Error> {
        let Some(mut tls) = tls else {
            return Ok(Self { socket: socket::open(address, "/", deflate)?, tls: None });
        };
        let socket = socket::connect(address)?;
        tls.flush(&socket)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        while !tls.is_open() {
            tls.receive(&socket, &mut buffer)?;
        }
        let mut link = Self { socket, tls: Some(Box::new(tls)) };
        link.transmit(&socket::request(address, "/", deflate))?;
        let mut answer = Vec::new();
        while socket::is_upgraded(&answer, deflate)?.is_none() {
            let received = link.receive(&mut buffer)?.ok_or("no answer came")?;
            answer.extend_from_slice(&buffer[..received.count]);
        }
        link.socket.set_nonblocking(true)?;
        Ok(link)
    }

    /// Reads once to the front of the buffer. `None` if nothing came.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Error> {
        if let Some(tls) = &mut self.tls {
            return tls.receive(&self.socket, buffer);
        }
        Ok(match socket::receive(&self.socket, buffer)? {
            ReadResult::Later => None,
            ReadResult::Bytes(count) => Some(Received { count, is_drained: count < buffer.len() }),
        })
    }

    /// Sends. Returns how many bytes are on their way. With TLS, records of these may wait here.
    pub(crate) fn transmit(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let Some(tls) = &mut self.tls else { return socket::transmit(&self.socket, bytes) };
        if !tls.flush(&self.socket)? {
            return Ok(0);
        }
        tls.seal(bytes)?;
        tls.flush(&self.socket)?;
        Ok(bytes.len())
    }

    /// Returns whether records wait to be sent.
    pub(crate) fn has_records(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.records.is_empty())
    }

    /// Sends a request, and waits for the complete frame that answers it.
    pub(crate) fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.socket.set_nonblocking(false)?;
        let mut sent = 0;
        while sent < request.len() || self.has_records() {
            sent += self.transmit(&request[sent..])?;
        }
        let mut frame = Vec::new();
        let mut piece = vec![0; RECEIVE_BYTES];
        while crate::frame_cycle::split(&frame)
            .is_none_or(|(start, length)| frame.len() < start + length)
        {
            if let Some(received) = self.receive(&mut piece)? {
                frame.extend_from_slice(&piece[..received.count]);
            }
        }
        self.socket.set_nonblocking(true)?;
        Ok(frame)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
