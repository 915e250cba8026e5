//! The service, as callbacks and other handlers of the reactor see it.

use core::fmt;
use std::rc::Rc;

use windlass::Turn;
use windlass_ws::CloseCode;

use super::{
    error::ControlError, error::SendError, id::ConnectionId, message::OutMessage,
    prepared::Prepared, stats::Stats,
};
use crate::{
    pubsub::waiting_bytes,
    service::{ConnFlags, NO_CONN, ServiceState},
};

/// The service without a connection of one's own: sends to connections by ID, and to topics.
///
/// [`Connection::hub`](crate::Connection::hub) returns it in a callback,
/// [`Service::hub`](crate::Service::hub) in any other handler of the reactor.
///
/// No call here runs a callback. Any callback that a call causes runs after the current handler has
/// returned. Messages to one connection leave at the end of the turn, in one write, in the order of
/// the calls.
pub struct Hub<'a> {
    pub(crate) state: &'a Rc<ServiceState>,
    pub(crate) turn: Turn<'a>,
}

impl Hub<'_> {
    /// Sends a message to a connection.
    ///
    /// # Errors
    /// [`SendError`] if the connection is closing or gone, or too many bytes wait for it. If it was
    /// closed by another connection's turn, the error is [`Closed`](SendError::Closed).
    pub fn send<'m>(
        &mut self,
        id: ConnectionId,
        message: impl Into<OutMessage<'m>>,
    ) -> Result<(), SendError> {
        self.state.send(&mut self.turn, id, message.into())
    }

    /// Sends a prepared message to a connection.
    ///
    /// # Errors
    /// [`SendError`] if the connection is closing or gone, or too many bytes wait for it.
    pub fn send_prepared(&mut self, id: ConnectionId, message: &Prepared) -> Result<(), SendError> {
        self.state.send_prepared(&mut self.turn, id, message)
    }

    /// Publishes to all current subscribers of a topic. Returns the number of receiving connections
    /// on this reactor.
    ///
    /// Consecutive publications to one topic leave in one write for each receiver, at the end of
    /// the turn at the latest.
    pub fn publish<'m>(&mut self, topic: &str, message: impl Into<OutMessage<'m>>) -> usize {
        self.state.publish(&mut self.turn, NO_CONN, topic, message.into())
    }

    /// Closes a connection with a Close frame, in the next turn, after the messages already sent to
    /// it. It accepts no more messages from other code.
    ///
    /// # Errors
    /// [`ControlError`] if the connection is closing or gone, or `code` or `reason` cannot be sent.
    pub fn close(
        &mut self,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), ControlError> {
        self.state.close(&mut self.turn, id, code, reason)
    }

    /// Subscribes a connection to a topic. Returns false if it is already subscribed, or is gone.
    pub fn subscribe(&mut self, id: ConnectionId, topic: &str) -> bool {
        self.state.find(id).is_some_and(|index| self.state.subscribe(&mut self.turn, index, topic))
    }

    /// Ends a connection's subscription. Returns false if it has none.
    pub fn unsubscribe(&mut self, id: ConnectionId, topic: &str) -> bool {
        self.state
            .find(id)
            .is_some_and(|index| self.state.unsubscribe(&mut self.turn, index, topic))
    }

    /// Pauses reading from a connection until [`resume`](Self::resume), like its own
    /// [`pause`](crate::Connection::pause). Messages already received wait; after that, the peer is
    /// blocked by flow control. Messages in the bytes that are being processed at this moment are
    /// still delivered. Returns false if the connection is already paused, is closing or is gone.
    pub fn pause(&mut self, id: ConnectionId) -> bool {
        self.state.find(id).is_some_and(|index| self.state.pause(&mut self.turn, index))
    }

    /// Resumes reading from a connection that was paused by [itself](crate::Connection::pause) or
    /// [here](Self::pause). Returns false if it was not paused.
    pub fn resume(&mut self, id: ConnectionId) -> bool {
        self.state.find(id).is_some_and(|index| self.state.resume(&mut self.turn, index))
    }

    /// Returns the number of connections of this reactor that are subscribed to a topic.
    #[must_use]
    pub fn subscribers(&self, topic: &str) -> usize {
        let tables = self.state.tables.borrow();
        let topic = tables.topics.find(topic).and_then(|topic| tables.topics.topic(topic));
        topic.map_or(0, |topic| topic.subscribers.len())
    }

    /// Returns whether a connection with this ID exists and accepts messages.
    #[must_use]
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.state.find(id).is_some()
    }

    /// Returns the number of bytes that wait for a connection, including messages that [could be
    /// dropped](crate::SlowConsumerPolicy::DropOldest); 0 if it is gone.
    pub fn buffered(&mut self, id: ConnectionId) -> usize {
        self.state.find(id).map_or(0, |index| self.state.buffered(&mut self.turn, index))
    }

    /// Returns the number of connections, including those whose handshake is in progress.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.tables.borrow().conns.len()
    }

    /// Returns the counts of the service.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.snapshot()
    }

    /// Returns the current turn, to use the reactor.
    pub fn turn(&mut self) -> Turn<'_> {
        self.turn.reborrow()
    }
}

impl fmt::Debug for Hub<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

/// Operations that a hub and a connection share.
impl ServiceState {
    pub(crate) fn find(&self, id: ConnectionId) -> Option<u32> {
        self.tables.borrow().conns.find(id)
    }

    pub(crate) fn subscribe(&self, turn: &mut Turn<'_>, index: u32, topic: &str) -> bool {
        let tables = &mut *self.tables.borrow_mut();
        if tables.batch_topic.is_some() && tables.batch_topic == tables.topics.find(topic) {
            // The connection receives only what is published from here on.
            tables.flush(self, turn);
        }
        tables.topics.subscribe(&mut tables.conns, index, topic)
    }

    pub(crate) fn unsubscribe(&self, turn: &mut Turn<'_>, index: u32, topic: &str) -> bool {
        let tables = &mut *self.tables.borrow_mut();
        let Some(topic) = tables.topics.find(topic) else { return false };
        if tables.batch_topic == Some(topic) {
            // The connection receives everything published up to this point.
            tables.flush(self, turn);
        }
        tables.topics.unsubscribe(&mut tables.conns, index, topic)
    }

    pub(crate) fn close(
        &self,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), ControlError> {
        let tables = &mut *self.tables.borrow_mut();
        let index = tables.conns.find(id).ok_or(ControlError::Closed)?;
        if !code.is_sendable() {
            return Err(ControlError::BadCloseCode);
        }
        if reason.len() > REASON_MAX {
            return Err(ControlError::TooLong);
        }
        tables.flush_for(self, index, turn);
        tables.pending_closes.insert(index, (code, reason.into()));
        let entry = tables.conns.entry(index);
        entry.flags.add(ConnFlags::CLOSING | ConnFlags::WANTS_CLOSE);
        if let Ok(mut stream) = turn.stream(entry.stream) {
            stream.notify();
        }
        Ok(())
    }

    pub(crate) fn pause(&self, turn: &mut Turn<'_>, index: u32) -> bool {
        let tables = &mut *self.tables.borrow_mut();
        let entry = tables.conns.entry(index);
        if entry.flags.any(ConnFlags::PAUSED) {
            return false;
        }
        entry.flags.clear(ConnFlags::WANTS_RESUME);
        entry.flags.add(ConnFlags::PAUSED | ConnFlags::WANTS_PAUSE);
        if let Ok(mut stream) = turn.stream(entry.stream) {
            // Input that arrives before the next turn is not read until the connection handler has been called.
            stream.pause();
            stream.notify();
        }
        true
    }

    pub(crate) fn resume(&self, turn: &mut Turn<'_>, index: u32) -> bool {
        let tables = &mut *self.tables.borrow_mut();
        let entry = tables.conns.entry(index);
        if !entry.flags.any(ConnFlags::PAUSED) {
            return false;
        }
        entry.flags.clear(ConnFlags::PAUSED | ConnFlags::WANTS_PAUSE);
        entry.flags.add(ConnFlags::WANTS_RESUME);
        // The idle time starts again.
        entry.last_rx = self.tick.get();
        if let Ok(mut stream) = turn.stream(entry.stream) {
            stream.notify();
        }
        true
    }

    pub(crate) fn buffered(&self, turn: &mut Turn<'_>, index: u32) -> usize {
        let tables = &mut *self.tables.borrow_mut();
        let waiting =
            turn.stream(tables.conns.entry(index).stream).map_or(0, |stream| stream.buffered());
        waiting + tables.backlogs.bytes(index)
    }

    /// Number of bytes that a connection's socket has not accepted.
    pub(crate) fn still_waiting(&self, turn: &mut Turn<'_>, index: u32) -> usize {
        let stream = self.tables.borrow_mut().conns.entry(index).stream;
        turn.stream(stream).map_or(0, |mut stream| waiting_bytes(&mut stream, usize::MAX, 0))
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let tables = self.tables.borrow();
        self.stats.connections.set(tables.conns.len() as u64);
        self.stats.topics.set(tables.topics.len() as u64);
        self.stats.snapshot()
    }
}

/// Maximum length of a Close frame's reason in bytes (RFC 6455 sections 5.5, 5.5.1).
const REASON_MAX: usize = 123;
