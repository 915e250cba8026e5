//! A client that sends arbitrary bytes and reads the response.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use crate::harness::Server;

/// The received bytes, to the end of the connection, or of the head of a response that does not end
/// it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    /// True if the server has closed the connection.
    pub(crate) is_closed: bool,
}

impl Answer {
    /// Returns the status of the response, if there is one.
    pub(crate) fn status(&self) -> Option<u16> {
        let line = self.bytes.strip_prefix(b"HTTP/1.1 ")?;
        std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
    }

    /// Returns the head of the response in lower case.
    pub(crate) fn head(&self) -> String {
        let end = head_len(&self.bytes).unwrap_or(self.bytes.len());
        String::from_utf8_lossy(&self.bytes[..end]).to_lowercase()
    }

    /// Returns the bytes after the head.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[head_len(&self.bytes).unwrap_or(self.bytes.len())..]
    }
}

fn head_len(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// A connection to the server.
pub(crate) struct Peer {
    stream: TcpStream,
}

impl Peer {
    pub(crate) fn new(server: &Server) -> Self {
        let stream = server.connect();
        // Each piece is a segment.
        stream.set_nodelay(true).expect("the socket takes options");
        Self { stream }
    }

    /// Sends these pieces, one after another. The server may respond and close before the last one.
    pub(crate) fn send<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        for piece in pieces {
            match self.stream.write_all(piece) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return,
                Err(error) => panic!("the server takes nothing: {error}"),
            }
        }
    }

    /// Reads the head of a response, and `more` bytes after it if the connection stays open.
    pub(crate) fn answer(&mut self, more: usize) -> Answer {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if head_len(&bytes).is_some_and(|head| bytes.len() >= head + more)
                && bytes.starts_with(b"HTTP/1.1 101")
            {
                return Answer { bytes, is_closed: false };
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Answer { bytes, is_closed: true },
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if is_gone(&error) => return Answer { bytes, is_closed: true },
                Err(error) => {
                    panic!("the server neither answers nor closes: {error}; it said {bytes:?}")
                }
            }
        }
    }

    /// Reads exactly this many bytes.
    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("so many bytes come");
        bytes
    }

    /// Shuts down the sending direction.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is open");
    }

    /// Reads to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Err(error) if !is_gone(&error) => panic!("the server does not close: {error}"),
            _ => bytes,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}
