//! [`Backlog`]: the connections that wait when a listener ends.

use std::{io, net::SocketAddr};

use crate::net::{TcpListener, TcpStream};

/// The most connections that are taken, so that a flood of new ones does not keep a worker from
/// ending. It is the usual limit of a backlog (`net.core.somaxconn`).
const COUNT_MAX: usize = 4096;

/// The connections that wait in the backlog of a listener that is being closed: an iterator that
/// does not wait. From [`TcpListener::into_backlog`].
///
/// It ends when the backlog is empty, or after 4096 connections. Then the listener is closed.
#[derive(Debug)]
pub struct Backlog {
    listener: Option<std::net::TcpListener>,
    left: usize,
}

impl TcpListener {
    /// Ends the listener, and returns the connections that wait in its backlog. The kernel resets
    /// those when a listener is closed, although the clients consider them established. So a server
    /// that shuts down gracefully serves them. A client that connects between the last call of the
    /// iterator and the close is reset.
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use windlass_task::{block_on, net::TcpListener};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// block_on(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     let client = TcpStream::connect(listener.local_addr()?)?;
    ///     for accepted in listener.into_backlog() {
    ///         let (stream, peer) = accepted?;
    ///         assert_eq!((peer, stream.peer_addr()?), (client.local_addr()?, peer));
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn into_backlog(self) -> Backlog {
        Backlog { listener: Some(self.into_std()), left: COUNT_MAX }
    }
}

impl Iterator for Backlog {
    type Item = io::Result<(TcpStream, SocketAddr)>;

    /// An error of accept(2), of the registration of a connection, or `None` if no connection
    /// waits. After an error of accept(2) the listener is closed. One of a connection that the
    /// client has ended is skipped.
    fn next(&mut self) -> Option<Self::Item> {
        while let Some(listener) = &self.listener {
            let Some(left) = self.left.checked_sub(1) else { break };
            self.left = left;
            match listener.accept() {
                Ok((stream, peer)) => {
                    return Some(TcpStream::from_std(stream).map(|stream| (stream, peer)));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.listener = None;
                    let is_empty = error.kind() == io::ErrorKind::WouldBlock;
                    return if is_empty { None } else { Some(Err(error)) };
                }
            }
        }
        self.listener = None;
        None
    }
}
