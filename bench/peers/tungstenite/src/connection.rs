//! The connection that is measured. windlass-tungstenite is measured by the same file.

use std::io::{self, ErrorKind, Read, Write};

use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Error as SocketError, Message, WebSocket};
use windlass_bench_driver::Error;
use windlass_bench_driver::websocket::{EngineSubject, Wire};

/// The wire as a stream that would block when all its bytes have been read.
pub(crate) struct Stream(Wire);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.recv(buffer) {
            0 => Err(ErrorKind::WouldBlock.into()),
            length => Ok(length),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// tungstenite zeroes its read buffer before each read, so a large one is slow for small messages.
/// 8 KiB is a fair size. The default is 128 KiB.
const READ_BUFFER_BYTES: usize = 8 * 1024;

/// Without `TUNED` it has the default settings.
pub(crate) struct Connection<const TUNED: bool>(WebSocket<Stream>);

impl<const TUNED: bool> EngineSubject for Connection<TUNED> {
    type Thread = ();

    fn engine_bytes() -> usize {
        size_of::<WebSocket<Stream>>()
    }

    fn new(wire: Wire, (): &mut ()) -> Result<Self, Error> {
        let tuned = || WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
        Ok(Self(WebSocket::from_raw_socket(Stream(wire), Role::Server, TUNED.then(tuned))))
    }

    /// Answers are collected in its write buffer and sent together.
    fn round(&mut self, (): &mut ()) -> Result<(), Error> {
        loop {
            match self.0.read() {
                Ok(message @ (Message::Text(_) | Message::Binary(_))) => self.0.write(message)?,
                Ok(_) => {}
                Err(SocketError::Io(error)) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.0.flush()?)
    }
}
