//! The life of a connection in the tables: opened, receiving, closing, removed.

use std::rc::Rc;

use windlass_ws::{Close, CloseCode, Engine, deflate::Agreement};

use super::state::{ServiceState, Tables};
use crate::{
    api::CloseReason,
    http::ConnectionPermit,
    table::{CloseInfo, ConnFlags, ConnState},
};

impl ServiceState {
    pub(crate) fn engine(&self, agreement: Option<&Agreement>) -> Engine {
        match (agreement, &self.options.deflate) {
            (Some(agreement), Some(config)) => {
                Engine::with_deflate(&self.config, agreement, config)
            }
            _ => Engine::new(&self.config),
        }
    }

    /// Returns whether a connection with this agreement accepts frames that were compressed for
    /// many.
    pub(crate) fn takes_compressed(&self, agreement: Option<&Agreement>) -> bool {
        agreement
            .zip(self.options.deflate.as_ref())
            .is_some_and(|(agreement, config)| agreement.can_read_broadcast(config))
    }

    /// Notes that a connection is open.
    pub(crate) fn open(&self, index: u32, is_compressed: bool) {
        self.stats.opened.add(1);
        let mut tables = self.tables.borrow_mut();
        tables.conns.set_open(index, is_compressed);
        let entry = tables.conns.entry(index);
        entry.last_rx = self.tick.get();
        entry.opened = self.tick.get();
    }

    /// Stores the subprotocol of a connection, shared with the previous connection's if they are
    /// equal.
    pub(crate) fn set_protocol(&self, index: u32, protocol: Option<&str>) {
        let Some(protocol) = protocol else { return };
        let last = self.last_protocol.take().filter(|last| **last == *protocol);
        let shared = last.unwrap_or_else(|| protocol.into());
        self.last_protocol.set(Some(Rc::clone(&shared)));
        self.tables.borrow_mut().protocols.insert(index, shared);
    }

    /// Keeps the permit of a connection until it ends.
    pub(crate) fn set_permit(&self, index: u32, permit: Option<ConnectionPermit>) {
        if let Some(permit) = permit {
            self.tables.borrow_mut().permits.insert(index, permit);
        }
    }

    /// Notes that bytes were received from a connection. Updates the connection table at most once
    /// per tick.
    #[inline(always)]
    pub(crate) fn note_rx(&self, conn: &mut ConnState) {
        if self.tick.get() != conn.last_rx {
            self.note_rx_tick(conn);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_rx_tick(&self, conn: &mut ConnState) {
        conn.last_rx = self.tick.get();
        let mut tables = self.tables.borrow_mut();
        let entry = tables.conns.entry(conn.index);
        if !entry.flags.any(ConnFlags::CLOSING) {
            entry.last_rx = conn.last_rx;
        }
    }

    /// Marks a connection that is about to end: it accepts no more messages.
    pub(crate) fn begin_closing(&self, index: u32, reason: CloseReason) {
        let tables = &mut *self.tables.borrow_mut();
        tables.close_infos.note(index, reason);
        tables.conns.set_closing(index);
        tables.conns.entry(index).last_rx = self.tick.get();
    }

    /// [`begin_closing`](Self::begin_closing) of a connection in one of its own calls.
    #[cold]
    pub(crate) fn begin_own_closing(&self, conn: &mut ConnState, reason: CloseReason) {
        self.begin_closing(conn.index, reason);
        conn.follow(self.flags(conn.index));
    }

    /// Returns the flags of a connection.
    pub(crate) fn flags(&self, index: u32) -> ConnFlags {
        self.tables.borrow_mut().conns.entry(index).flags
    }

    /// Notes that more than half of a connection's buffer is in use and that reading has stopped.
    /// Senders must check the remaining room.
    pub(crate) fn note_output_full(&self, index: u32) {
        self.stats.reading_paused.add(1);
        self.set_flags(index, ConnFlags::LAGGING | ConnFlags::FULL);
    }

    /// Notes the code with which this side closes a connection that has begun to close.
    pub(crate) fn note_own_code(&self, index: u32, code: CloseCode) {
        if let Some(close_info) = self.tables.borrow_mut().close_infos.get_mut(index) {
            close_info.own_code.get_or_insert(code);
        }
    }

    /// Notes the peer's Close frame.
    pub(crate) fn note_close(&self, index: u32, close: &Close<'_>) {
        let mut tables = self.tables.borrow_mut();
        if let Some(close_info) = tables.close_infos.get_mut(index) {
            close_info.code = close.code;
            close_info.text = close.reason.into();
        }
    }

    pub(crate) fn set_flags(&self, index: u32, flags: ConnFlags) {
        self.tables.borrow_mut().conns.entry(index).flags.add(flags);
    }

    /// Clears flags that kept a connection from being read from. Its idle time starts again.
    pub(crate) fn clear_flags(&self, index: u32, flags: ConnFlags) {
        let mut tables = self.tables.borrow_mut();
        let entry = tables.conns.entry(index);
        entry.flags.clear(flags);
        if !entry.flags.any(ConnFlags::CLOSING) {
            entry.last_rx = self.tick.get();
        }
    }

    /// Removes an ended connection from the topics and the connection table. Returns how it ended,
    /// if that is known.
    pub(crate) fn remove_conn(&self, index: u32) -> Option<CloseInfo> {
        let close_info = self.remove_from(&mut self.tables.borrow_mut(), index);
        self.note_connections();
        close_info
    }

    fn remove_from(&self, tables: &mut Tables, index: u32) -> Option<CloseInfo> {
        tables.leave_topics(self, index);
        tables.drop_waiting(self, index);
        tables.codec_queue.remove(index);
        self.memory.record_change(tables.conns.entry(index).partial_bytes as usize, 0);
        tables.pending_closes.remove(&index);
        tables.protocols.remove(&index);
        tables.permits.remove(&index);
        tables.conns.remove(index);
        tables.close_infos.remove(index)
    }

    /// Notes how much memory a connection uses for a partly received message, frame or request.
    #[cold]
    pub(crate) fn note_partial(&self, index: u32, bytes: usize) {
        let mut tables = self.tables.borrow_mut();
        let entry = tables.conns.entry(index);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.memory.record_change(entry.partial_bytes as usize, bytes as usize);
        self.memory.has_grown.set(bytes > entry.partial_bytes || self.memory.has_grown.get());
        entry.partial_bytes = bytes;
    }
}

impl Tables {
    /// Ends all subscriptions of a connection.
    pub(crate) fn leave_topics(&mut self, state: &ServiceState, index: u32) {
        self.topics.unsubscribe_all(&mut self.conns.entry(index).subscriptions);
        if self.batch_topic.is_some_and(|topic| self.topics.topic(topic).is_none()) {
            // The topic of the batch has no subscriber left.
            self.discard_batch(state);
        }
    }
}
