//! [`BufferedOwner`]: what a `TcpStream` has of a [`BufferedTcp`], and its end.

use core::future::poll_fn;
use std::{io, net::TcpStream, rc::Rc, time::Duration};

use rustix::net::sockopt;
use windlass::{Key, Turn};

use crate::{
    fd::source::Source,
    net::buffered::{BufferedTcp, State},
};

/// The owner of a socket. Dropping it closes the connection.
pub(in crate::net) struct BufferedOwner(Rc<BufferedTcp>);

impl core::ops::Deref for BufferedOwner {
    type Target = Rc<BufferedTcp>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl BufferedOwner {
    pub(in crate::net) fn new(
        socket: TcpStream,
        prefix: Vec<u8>,
        source: Option<Rc<Source>>,
        completes: bool,
    ) -> io::Result<Self> {
        Ok(Self(BufferedTcp::new(socket, prefix, source, completes)?))
    }

    /// Whether the plain socket has all bytes that were not read.
    pub(in crate::net) fn is_plain(&self) -> bool {
        let is_streaming = matches!(self.0.state.get(), State::Streaming(_));
        !is_streaming && self.0.inbox.borrow().is_empty()
    }

    /// The socket, and the bytes that were received and not read. A stream has ended before.
    pub(in crate::net) fn into_parts(self) -> io::Result<(TcpStream, Vec<u8>)> {
        self.0.end_readiness();
        self.0.state.set(State::Over);
        let unread = self.0.inbox.borrow_mut().take();
        let shared = Rc::clone(&self.0);
        drop(self);
        let socket = match Rc::try_unwrap(shared) {
            Ok(whole) => whole.socket,
            // A request or the stream's handler has a reference until the next turn.
            Err(shared) => shared.socket.try_clone()?,
        };
        Ok((socket, unread))
    }

    /// Waits for the output, ends the stream, and returns the parts.
    pub(in crate::net) async fn detach(self) -> io::Result<(TcpStream, Vec<u8>)> {
        poll_fn(|context| self.0.poll_release(context)).await?;
        self.into_parts()
    }
}

impl Drop for BufferedOwner {
    fn drop(&mut self) {
        match self.0.state.get() {
            State::Over => {}
            State::Plain => {
                let source = self.0.source.take();
                if let Some(source) = source {
                    // If the registration cannot end at once, the socket is closed after it.
                    drop(source.deregister(Rc::clone(&self.0)));
                }
            }
            State::Streaming(key) => {
                let socket = Rc::clone(&self.0);
                self.0.handle.request(move |turn| close(&socket, key, turn));
            }
        }
        // As close(2) does.
        if !self.0.inbox.borrow().is_empty() {
            reset_at_close(&self.0.socket);
        }
    }
}

/// Ends the stream. The descriptor is closed with its last reference.
fn close(socket: &Rc<BufferedTcp>, key: Key, mut turn: Turn<'_>) {
    let Ok(mut stream) = turn.stream(key) else { return };
    let is_read = socket.inbox.borrow().is_empty();
    if is_read && stream.send_now() > 0 {
        // The peer is slow to read. The handler keeps the socket until the output is sent, or the
        // time for that is over.
        return stream.close_after_output();
    }
    socket.state.set(State::Over);
    let has_unread = stream.release().is_some_and(|released| !released.unread.is_empty());
    if has_unread {
        reset_at_close(&socket.socket);
    }
}

/// The kernel resets a connection that is closed with unread bytes. It does not know of those that
/// were received here.
fn reset_at_close(socket: &TcpStream) {
    // A socket that was closed by other code has no option.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
