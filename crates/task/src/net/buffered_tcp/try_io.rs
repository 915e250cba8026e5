//! Reads and writes of a [`BufferedTcp`] that do not wait.

use std::{
    io::{self, ErrorKind},
    rc::Rc,
};

use rustix::io::Errno;

use crate::{
    budget,
    fd::source::gone,
    io::{try_receive, try_send},
    net::buffered_tcp::{BufferedTcp, State},
};

impl BufferedTcp {
    /// A plain socket stays plain (protocol 1).
    pub(in crate::net) fn try_read(self: &Rc<Self>, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let has_bytes = !self.read_buffer.borrow().is_empty();
        if self.state.get() == State::Plain && !has_bytes {
            return try_receive(&*self.readiness()?, &self.socket, buffer);
        }
        budget::count();
        match self.state.get() {
            _ if has_bytes => Ok(self.read_buffered(buffer)),
            _ if self.has_end.get() => Ok(0),
            State::Over => self.read_after_end(buffer),
            _ if !self.handle.is_open() => Err(gone()),
            State::Plain | State::Streaming(_) => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// A plain socket stays plain (protocol 1).
    pub(in crate::net) fn try_write(self: &Rc<Self>, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let key = match self.state.get() {
            State::Plain => return try_send(&*self.readiness()?, &self.socket, bytes),
            State::Over => return Err(self.take_write_error().unwrap_or(Errno::PIPE.into())),
            State::Streaming(_) if self.is_finished.get() => return Err(Errno::PIPE.into()),
            State::Streaming(_) if !self.handle.is_open() => return Err(gone()),
            State::Streaming(key) => key,
        };
        budget::count();
        let sent = self.with_stream(key, |stream| stream.map(|mut stream| stream.send_some(bytes)));
        match sent.flatten() {
            Some(Ok(count)) => Ok(count),
            // Without a turn, or the handler is told in the next one why the stream has failed.
            None | Some(Err(_)) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}
