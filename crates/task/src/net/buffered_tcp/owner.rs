//! [`BufferedOwner`]: what a `TcpStream` has of a [`BufferedTcp`], and its end.

use core::future::poll_fn;
use std::{io, net::TcpStream, rc::Rc, time::Duration};

use crate::{
    fd::source::Source,
    io::Socket,
    net::{
        buffered_tcp::{BufferedTcp, State},
        common,
    },
    yield_now,
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
        socket: Socket<TcpStream>,
        read_buf: Vec<u8>,
        source: Option<Rc<Source>>,
        completes: bool,
    ) -> io::Result<Self> {
        Ok(Self(BufferedTcp::new(socket, read_buf, source, completes)?))
    }

    /// Whether the plain socket has all bytes that were not read, and all that were written.
    pub(in crate::net) fn is_plain(&self) -> bool {
        let is_streaming = matches!(self.0.state.get(), State::Streaming(_));
        let has_all = self.0.read_buffer.borrow().is_empty() && self.0.unsent.is_empty();
        !is_streaming && has_all && !self.0.has_lost.get()
    }

    /// See protocol 9.
    pub(in crate::net) fn is_in_child(&self) -> bool {
        self.0.handle.is_in_child()
    }

    /// The socket, and the bytes that were received and not read. A stream has ended before.
    ///
    /// # Errors
    /// The stream's handler has a reference until its callback ends, and the socket cannot be
    /// duplicated. Nothing has changed.
    pub(in crate::net) fn into_parts(
        self,
    ) -> Result<(Socket<TcpStream>, Vec<u8>), (io::Error, Self)> {
        debug_assert!(!matches!(self.0.state.get(), State::Streaming(_)));
        let mut duplicate = None;
        if Rc::strong_count(&self.0) > 1 {
            match self.0.socket.duplicate() {
                Ok(socket) => duplicate = Some(socket),
                Err(error) => return Err((error, self)),
            }
        }
        self.0.is_over();
        self.0.end_readiness();
        let read_buf = self.0.read_buffer.borrow_mut().take();
        let shared = Rc::clone(&self.0);
        drop(self);
        let own = Rc::into_inner(shared).map(|shared| shared.socket);
        let socket = duplicate.or(own).expect("this was the only reference, or it was duplicated");
        Ok((socket, read_buf))
    }

    /// Waits for the output, ends the stream, and returns the parts.
    pub(in crate::net) async fn detach(self) -> io::Result<(Socket<TcpStream>, Vec<u8>)> {
        poll_fn(|context| self.0.poll_release(context)).await?;
        self.0.unsent_sent().await?;
        match self.into_parts() {
            Ok(parts) => Ok(parts),
            Err((_, owner)) => {
                // The handler is gone after the turn.
                yield_now().await;
                owner.into_parts().map_err(|(error, _)| error)
            }
        }
    }
}

impl Drop for BufferedOwner {
    fn drop(&mut self) {
        self.0.has_owner.set(false);
        match self.0.state.get() {
            State::Plain | State::Over => {
                let source = self.0.source.take();
                if let Some(source) = source {
                    // If the registration cannot end at once, the socket is closed after it.
                    drop(source.deregister(Rc::clone(&self.0)));
                }
            }
            State::Streaming(key) => {
                let (streams, socket) = (&self.0.streams, Rc::clone(&self.0));
                streams.end_later(&self.0.handle, socket, key);
            }
        }
        if !self.0.read_buffer.borrow().is_empty() || !self.0.unsent.is_empty() {
            reset_at_close(&self.0);
        }
    }
}

/// The kernel resets a connection that is closed with unread bytes. It does not know of those that
/// were received here. Nor does it know of output that it was not given, in place of which a peer
/// would read the end. Not in a child of fork(2), which shares the socket (protocol 9).
pub(super) fn reset_at_close(socket: &BufferedTcp) {
    if !socket.handle.is_in_child() {
        // A socket that was closed by other code has no option.
        let _ = common::set_linger(&socket.socket, Some(Duration::ZERO));
    }
}
