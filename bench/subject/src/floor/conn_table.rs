//! The connections, indexed by descriptor number.

use std::os::fd::OwnedFd;

/// The part that a connection plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its request is not complete yet.
    Opening,
    /// The server echoes its messages.
    Echo,
    /// The server works on its messages before it echoes them.
    Work,
    /// The server sends its messages to all receivers.
    Publisher,
    /// It gets the messages of publishers.
    Receiver,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// The accepted socket.
    pub socket: OwnedFd,
    /// The part that it plays.
    pub role: Role,
    /// The beginning of an incomplete frame. Its memory is allocated only while there is one.
    partial: Option<Box<[u8]>>,
    /// Output that the kernel has not taken yet.
    pub unsent: Option<Vec<u8>>,
}

impl Connection {
    /// Creates a connection that waits for its request.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, role: Role::Opening, partial: None, unsent: None }
    }

    /// Moves the incomplete frame to the front of a buffer, and returns its length.
    #[inline]
    pub fn take_partial(&mut self, buffer: &mut [u8]) -> usize {
        let Some(partial) = self.partial.take() else { return 0 };
        buffer[..partial.len()].copy_from_slice(&partial);
        partial.len()
    }

    /// Keeps an incomplete frame until more is received.
    pub fn keep_partial(&mut self, bytes: &[u8]) {
        self.partial = Some(bytes.into());
    }

    /// Keeps output until the socket is writable.
    pub fn keep_unsent(&mut self, bytes: &[u8]) {
        self.unsent.get_or_insert_default().extend_from_slice(bytes);
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct ConnTable {
    /// The connections by descriptor.
    pub connections: Vec<Option<Connection>>,
    /// Descriptors of the receivers.
    pub receivers: Vec<usize>,
}

impl ConnTable {
    /// Adds a connection.
    pub fn put(&mut self, fd: usize, connection: Connection) {
        if self.connections.len() <= fd {
            self.connections.resize_with(fd + 1, || None);
        }
        self.connections[fd] = Some(connection);
    }

    /// Returns the connection with this descriptor.
    #[inline]
    pub fn get(&mut self, fd: usize) -> Option<&mut Connection> {
        self.connections.get_mut(fd)?.as_mut()
    }

    /// Adds an upgraded connection to the receivers if it is one.
    pub fn upgraded(&mut self, fd: usize) {
        if self.get(fd).is_some_and(|connection| connection.role == Role::Receiver) {
            self.receivers.push(fd);
        }
    }

    /// Removes a connection, which closes its socket.
    pub fn remove(&mut self, fd: usize) {
        let connection = self.connections[fd].take();
        if connection.is_some_and(|connection| connection.role == Role::Receiver) {
            self.receivers.retain(|&receiver| receiver != fd);
        }
    }
}
