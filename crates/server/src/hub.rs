//! The service, as callbacks and other handlers of the reactor see it.

use core::fmt;

use windlass::Turn;
use windlass_ws::CloseCode;

use crate::{
    ConnectionId, ControlError, OutMessage, Prepared, SendError, Stats,
    deliver::waiting_of,
    hall::SharedHall,
    roster::{Flags, NOBODY},
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
    pub(crate) hall: &'a SharedHall,
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
        self.hall.send(&mut self.turn, id, message.into())
    }

    /// Sends a prepared message to a connection.
    ///
    /// # Errors
    /// [`SendError`] if the connection is closing or gone, or too many bytes wait for it.
    pub fn send_prepared(&mut self, id: ConnectionId, message: &Prepared) -> Result<(), SendError> {
        self.hall.send_prepared(&mut self.turn, id, message)
    }

    /// Publishes to all current subscribers of a topic. Returns the number of receiving connections
    /// on this reactor.
    ///
    /// Consecutive publications to one topic leave in one write for each receiver, at the end of
    /// the turn at the latest.
    pub fn publish<'m>(&mut self, topic: &str, message: impl Into<OutMessage<'m>>) -> usize {
        self.hall.publish(&mut self.turn, NOBODY, topic, message.into())
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
        self.hall.close(&mut self.turn, id, code, reason)
    }

    /// Subscribes a connection to a topic. Returns false if it is already subscribed, or is gone.
    pub fn subscribe(&mut self, id: ConnectionId, topic: &str) -> bool {
        self.hall.find(id).is_some_and(|member| self.hall.subscribe(&mut self.turn, member, topic))
    }

    /// Ends a connection's subscription. Returns false if it has none.
    pub fn unsubscribe(&mut self, id: ConnectionId, topic: &str) -> bool {
        self.hall
            .find(id)
            .is_some_and(|member| self.hall.unsubscribe(&mut self.turn, member, topic))
    }

    /// Pauses reading from a connection until [`resume`](Self::resume), like its own
    /// [`pause`](crate::Connection::pause). Messages already received wait; after that, the peer is
    /// blocked by flow control. Messages in the bytes that are being processed at this moment are
    /// still delivered. Returns false if the connection is already paused, is closing or is gone.
    pub fn pause(&mut self, id: ConnectionId) -> bool {
        self.hall.find(id).is_some_and(|member| self.hall.pause(&mut self.turn, member))
    }

    /// Resumes reading from a connection that was paused by [itself](crate::Connection::pause) or
    /// [here](Self::pause). Returns false if it was not paused.
    pub fn resume(&mut self, id: ConnectionId) -> bool {
        self.hall.find(id).is_some_and(|member| self.hall.resume(&mut self.turn, member))
    }

    /// Returns the number of connections of this reactor that are subscribed to a topic.
    #[must_use]
    pub fn subscribers(&self, topic: &str) -> usize {
        let books = self.hall.books.borrow();
        let topic = books.topics.find(topic).and_then(|topic| books.topics.topic(topic));
        topic.map_or(0, |topic| topic.receivers.len())
    }

    /// Returns whether a connection with this ID exists and accepts messages.
    #[must_use]
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.hall.find(id).is_some()
    }

    /// Returns the number of bytes that wait for a connection, including messages that [could be
    /// dropped](crate::SlowConsumerPolicy::DropOldest); 0 if it is gone.
    pub fn buffered(&mut self, id: ConnectionId) -> usize {
        self.hall.find(id).map_or(0, |member| self.hall.buffered(&mut self.turn, member))
    }

    /// Returns the number of connections, including those whose handshake is in progress.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.hall.books.borrow().roster.len()
    }

    /// Returns the counts of the service.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.hall.snapshot()
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
impl crate::hall::Hall {
    pub(crate) fn find(&self, id: ConnectionId) -> Option<u32> {
        self.books.borrow().roster.find(id)
    }

    pub(crate) fn subscribe(&self, turn: &mut Turn<'_>, member: u32, topic: &str) -> bool {
        let books = &mut *self.books.borrow_mut();
        if books.log_topic.is_some() && books.log_topic == books.topics.find(topic) {
            // The connection receives only what is published from here on.
            books.flush(self, turn);
        }
        books.topics.subscribe(&mut books.roster, member, topic)
    }

    pub(crate) fn unsubscribe(&self, turn: &mut Turn<'_>, member: u32, topic: &str) -> bool {
        let books = &mut *self.books.borrow_mut();
        let Some(topic) = books.topics.find(topic) else { return false };
        if books.log_topic == Some(topic) {
            // The connection receives everything published up to this point.
            books.flush(self, turn);
        }
        books.topics.unsubscribe(&mut books.roster, member, topic)
    }

    pub(crate) fn close(
        &self,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), ControlError> {
        let books = &mut *self.books.borrow_mut();
        let member = books.roster.find(id).ok_or(ControlError::Closed)?;
        if !code.is_sendable() {
            return Err(ControlError::BadCloseCode);
        }
        if reason.len() > REASON_MAX {
            return Err(ControlError::TooLong);
        }
        books.flush_for(self, member, turn);
        books.farewells.insert(member, (code, reason.into()));
        let member = books.roster.at(member);
        member.flags.add(Flags::CLOSING | Flags::WANTS_CLOSE);
        if let Ok(mut stream) = turn.stream(member.stream) {
            stream.notify();
        }
        Ok(())
    }

    pub(crate) fn pause(&self, turn: &mut Turn<'_>, member: u32) -> bool {
        let books = &mut *self.books.borrow_mut();
        let member = books.roster.at(member);
        if member.flags.any(Flags::PAUSED) {
            return false;
        }
        member.flags.clear(Flags::WANTS_RESUME);
        member.flags.add(Flags::PAUSED | Flags::WANTS_PAUSE);
        if let Ok(mut stream) = turn.stream(member.stream) {
            // Input that arrives before the next turn is not read until the driver knows.
            stream.pause();
            stream.notify();
        }
        true
    }

    pub(crate) fn resume(&self, turn: &mut Turn<'_>, member: u32) -> bool {
        let books = &mut *self.books.borrow_mut();
        let member = books.roster.at(member);
        if !member.flags.any(Flags::PAUSED) {
            return false;
        }
        member.flags.clear(Flags::PAUSED | Flags::WANTS_PAUSE);
        member.flags.add(Flags::WANTS_RESUME);
        // The idle time starts again.
        member.heard = self.tick.get();
        if let Ok(mut stream) = turn.stream(member.stream) {
            stream.notify();
        }
        true
    }

    pub(crate) fn buffered(&self, turn: &mut Turn<'_>, member: u32) -> usize {
        let books = &mut *self.books.borrow_mut();
        let waiting =
            turn.stream(books.roster.at(member).stream).map_or(0, |stream| stream.buffered());
        waiting + books.sides.bytes(member)
    }

    /// Number of bytes that a connection's socket has not accepted.
    pub(crate) fn still_waiting(&self, turn: &mut Turn<'_>, member: u32) -> usize {
        let stream = self.books.borrow_mut().roster.at(member).stream;
        turn.stream(stream).map_or(0, |mut stream| waiting_of(&mut stream, usize::MAX, 0))
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let books = self.books.borrow();
        self.stats.connections.set(books.roster.len() as u64);
        self.stats.topics.set(books.topics.len() as u64);
        self.stats.snapshot()
    }
}

/// Maximum length of a Close frame's reason in bytes (RFC 6455 sections 5.5, 5.5.1).
const REASON_MAX: usize = 123;
