//! Requests of other code to a connection: subscribe, close, pause, resume.
//!
//! A request sets flags of the connection and notifies its stream. The connection itself acts on
//! them, in the next turn.

use std::time::Instant;

use windlass::Turn;
use windlass_ws::CloseCode;

use super::state::ServiceState;
use crate::{
    api::{ConnectionId, ControlError, SubscribeError, TopicName},
    pubsub::{is_reserved, waiting_bytes},
    table::ConnFlags,
};

/// Operations that a hub and a connection share.
impl ServiceState {
    pub(crate) fn find(&self, id: ConnectionId) -> Option<u32> {
        self.tables.borrow().conns.find(id)
    }

    pub(crate) fn subscribe(
        &self,
        turn: &mut Turn<'_>,
        index: u32,
        name: TopicName<'_>,
    ) -> Result<bool, SubscribeError> {
        let text = name.text();
        if is_reserved(text) {
            return Err(SubscribeError::Reserved);
        }
        if text.len() > self.options.topic_len_max {
            return Err(SubscribeError::TooLong);
        }
        let mut guard = self.tables.borrow_mut();
        let tables = &mut *guard;
        if !tables.conns.entry(index).flags.takes_messages() {
            return Err(SubscribeError::Closed);
        }
        if tables.batch_topic.is_some() && tables.batch_topic == tables.topics.find(text) {
            // The connection receives only what is published from here on.
            tables.flush(self, turn);
        }
        let first = &mut tables.conns.entry(index).subscriptions;
        let is_new = tables.topics.subscribe(first, index, name);
        drop(guard);
        if is_new {
            self.memory.has_grown.set(true);
            self.check_memory_if_grown(turn);
        }
        Ok(is_new)
    }

    pub(crate) fn unsubscribe(&self, turn: &mut Turn<'_>, index: u32, topic: &str) -> bool {
        if is_reserved(topic) {
            return false;
        }
        let tables = &mut *self.tables.borrow_mut();
        let Some(topic) = tables.topics.find(topic) else { return false };
        if tables.batch_topic == Some(topic) {
            // The connection receives everything published up to this point.
            tables.flush(self, turn);
        }
        tables.topics.unsubscribe(&mut tables.conns.entry(index).subscriptions, topic)
    }

    /// Gives up the node's subscriptions on its bus that are no longer needed.
    pub(crate) fn expire_topics(&self, now: Instant) {
        if let Some((node, _)) = self.tables.borrow().other_workers.node() {
            node.expire(now);
        }
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
        entry.flags.add(ConnFlags::WANTS_CLOSE);
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
        entry.flags.add(ConnFlags::PAUSED);
        if let Ok(mut stream) = turn.stream(entry.stream) {
            // Input that arrives before the next turn is not read until the connection handler has
            // been called.
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
        entry.flags.clear(ConnFlags::PAUSED);
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
    pub(crate) fn unsent_bytes(&self, turn: &mut Turn<'_>, index: u32) -> usize {
        let stream = self.tables.borrow_mut().conns.entry(index).stream;
        turn.stream(stream).map_or(0, |mut stream| waiting_bytes(&mut stream, usize::MAX, 0))
    }
}

/// Maximum length of a Close frame's reason in bytes (RFC 6455 sections 5.5, 5.5.1).
const REASON_MAX: usize = 123;
