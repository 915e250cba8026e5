//! The connections, by the number of their descriptor.

use std::os::fd::OwnedFd;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its request has not come yet.
    Opening,
    /// Its messages go back.
    Echo,
    /// Its messages go to all receivers.
    Publisher,
    Receiver,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) role: Role,
    /// The beginning of a frame whose end has not come. It has its memory to itself while it is
    /// there and no longer.
    kept: Option<Box<[u8]>>,
    /// What the kernel would not take yet.
    pub(crate) unsent: Option<Vec<u8>>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, role: Role::Opening, kept: None, unsent: None }
    }

    /// Puts what was kept at the front; returns its length.
    #[inline]
    pub(crate) fn take_kept(&mut self, buffer: &mut [u8]) -> usize {
        let Some(kept) = self.kept.take() else { return 0 };
        buffer[..kept.len()].copy_from_slice(&kept);
        kept.len()
    }

    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.kept = Some(bytes.into());
    }

    pub(crate) fn keep_unsent(&mut self, bytes: &[u8]) {
        self.unsent.get_or_insert_default().extend_from_slice(bytes);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) connections: Vec<Option<Connection>>,
    /// Descriptors of those that receive.
    pub(crate) receivers: Vec<usize>,
}

impl Table {
    pub(crate) fn put(&mut self, fd: usize, connection: Connection) {
        if self.connections.len() <= fd {
            self.connections.resize_with(fd + 1, || None);
        }
        self.connections[fd] = Some(connection);
    }

    #[inline]
    pub(crate) fn get(&mut self, fd: usize) -> Option<&mut Connection> {
        self.connections.get_mut(fd)?.as_mut()
    }

    /// A connection has been upgraded, perhaps to a receiver.
    pub(crate) fn note_role(&mut self, fd: usize) {
        if self.get(fd).is_some_and(|connection| connection.role == Role::Receiver) {
            self.receivers.push(fd);
        }
    }

    pub(crate) fn remove(&mut self, fd: usize) {
        let connection = self.connections[fd].take();
        if connection.is_some_and(|connection| connection.role == Role::Receiver) {
            self.receivers.retain(|&receiver| receiver != fd);
        }
    }
}
