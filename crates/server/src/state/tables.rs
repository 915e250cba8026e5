//! The connections of a service, their topics, and what few of them have.

use std::{collections::BTreeMap, rc::Rc};

use windlass::{Turn, stream::Address};
use windlass_ws::{Close, CloseCode};

use crate::{
    api::{
        CloseReason, ConnectionId, ControlError, OutMessage, Prepared, SendError, ServerStats,
        SubscribeError, TopicName,
    },
    http::ConnectionPermit,
    pubsub::{Delivery, is_reserved, waiting_bytes},
    shared::Shared,
    table::{CloseInfo, CloseInfos, ConnFlags, ConnState, ConnTable},
};

/// State behind the `RefCell`. The maps hold data that few connections have, so that the others
/// need no room for it.
pub(crate) struct Tables {
    pub(crate) conns: ConnTable,
    pub(crate) delivery: Delivery,
    /// Number of connections, as it was noted last.
    connections_noted: u64,
    /// Held input: received bytes of connections whose reading is suspended.
    held: BTreeMap<u32, Vec<u8>>,
    /// Reasons why connections are about to end.
    close_infos: CloseInfos,
    /// Subprotocols, of connections that have one.
    protocols: BTreeMap<u32, Rc<str>>,
    /// The subprotocol that was stored last.
    last_protocol: Option<Rc<str>>,
    /// Addresses of clients behind proxies.
    clients: BTreeMap<u32, Address>,
    /// Permits, if connections are counted by address.
    permits: BTreeMap<u32, ConnectionPermit>,
    /// Close codes and reasons, of connections that other code closes.
    pending_closes: BTreeMap<u32, (CloseCode, Box<str>)>,
}

/// Maximum length of a Close frame's reason in bytes (RFC 6455 sections 5.5, 5.5.1).
const REASON_MAX: usize = 123;

/// The life of a connection: opened, receiving, closing, removed.
impl Tables {
    pub(super) fn new(conns: ConnTable, delivery: Delivery) -> Self {
        Self {
            conns,
            delivery,
            connections_noted: 0,
            held: BTreeMap::new(),
            close_infos: CloseInfos::default(),
            protocols: BTreeMap::new(),
            last_protocol: None,
            clients: BTreeMap::new(),
            permits: BTreeMap::new(),
            pending_closes: BTreeMap::new(),
        }
    }

    pub(crate) fn snapshot(&self, shared: &Shared) -> ServerStats {
        let (stats, topics) = (&shared.stats, self.delivery.topics());
        stats.connections.set(self.conns.count());
        stats.topics.set(topics.len() as u64);
        stats.subscriptions.set(topics.subscription_count() as u64);
        stats.snapshot()
    }

    /// Notes that connections have come or gone, for the maximum number of them.
    pub(crate) fn note_connections(&mut self, shared: &Shared) {
        let now = self.conns.count();
        shared.stats.connections_most.set_max(now);
        let before = core::mem::replace(&mut self.connections_noted, now);
        shared.worker.connections.note(before, now);
    }

    /// Marks a connection as open. Its subprotocol is shared with the previous connection's if they
    /// are equal.
    pub(crate) fn open(
        &mut self,
        shared: &Shared,
        index: u32,
        is_compressed: bool,
        protocol: Option<&str>,
    ) {
        shared.stats.opened.add(1);
        self.conns.set_open(index, is_compressed);
        let entry = self.conns.entry(index);
        (entry.last_rx, entry.opened) = (shared.tick(), shared.tick());
        if let Some(protocol) = protocol {
            let last = self.last_protocol.take().filter(|last| **last == *protocol);
            let last = self.last_protocol.insert(last.unwrap_or_else(|| protocol.into()));
            self.protocols.insert(index, Rc::clone(last));
        }
    }

    /// Returns the subprotocol of a connection.
    pub(crate) fn protocol(&self, index: u32) -> Option<Rc<str>> {
        self.protocols.get(&index).cloned()
    }

    /// Keeps the permit of a connection until it ends.
    pub(crate) fn set_permit(&mut self, index: u32, permit: Option<ConnectionPermit>) {
        if let Some(permit) = permit {
            self.permits.insert(index, permit);
        }
    }

    /// Notes the client of a connection that comes through a proxy.
    pub(crate) fn set_client(&mut self, index: u32, client: Address) {
        self.clients.insert(index, client);
    }

    /// Returns the client of a connection that comes through a proxy.
    pub(crate) fn client(&self, index: u32) -> Option<&Address> {
        self.clients.get(&index)
    }

    /// Marks a connection that is about to end: it accepts no more messages.
    pub(crate) fn begin_closing(&mut self, shared: &Shared, index: u32, reason: CloseReason) {
        self.close_infos.note(index, reason);
        self.conns.set_closing(index);
        self.conns.entry(index).last_rx = shared.tick();
    }

    /// [`begin_closing`](Self::begin_closing) of a connection in one of its own calls.
    #[cold]
    pub(crate) fn begin_own_closing(
        &mut self,
        shared: &Shared,
        conn: &mut ConnState,
        reason: CloseReason,
    ) {
        self.begin_closing(shared, conn.index, reason);
        conn.follow(self.conns.entry(conn.index).flags);
    }

    /// Notes the code with which this side closes a connection that has begun to close.
    pub(crate) fn note_own_code(&mut self, index: u32, code: CloseCode) {
        if let Some(close_info) = self.close_infos.get_mut(index) {
            close_info.own_code.get_or_insert(code);
        }
    }

    /// Notes the peer's Close frame.
    pub(crate) fn note_close(&mut self, index: u32, close: &Close<'_>) {
        if let Some(close_info) = self.close_infos.get_mut(index) {
            close_info.code = close.code;
            close_info.text = close.reason.into();
        }
    }

    /// Removes an ended connection. Returns its former ID, and how it ended if that is known.
    pub(crate) fn remove(
        &mut self,
        shared: &Shared,
        index: u32,
    ) -> (ConnectionId, Option<CloseInfo>) {
        let id = self.conns.id(index);
        self.delivery.leave_topics(&mut self.conns, shared, index);
        self.drop_waiting(shared, index);
        shared.codec.remove(&mut self.conns, index, shared.tick());
        shared.memory.record_change(self.conns.entry(index).partial_bytes as usize, 0);
        self.pending_closes.remove(&index);
        self.protocols.remove(&index);
        self.permits.remove(&index);
        self.clients.remove(&index);
        self.conns.remove(index);
        self.note_connections(shared);
        (id, self.close_infos.remove(index))
    }
}

/// Received bytes that wait.
impl Tables {
    /// Notes how much memory a connection uses for a partly received message, frame or request.
    #[cold]
    pub(crate) fn note_partial(&mut self, shared: &Shared, index: u32, bytes: usize) {
        let entry = self.conns.entry(index);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        shared.memory.record_change(entry.partial_bytes as usize, bytes as usize);
        if bytes > entry.partial_bytes {
            shared.memory.note_growth();
        }
        entry.partial_bytes = bytes;
    }

    /// Holds received bytes of a connection.
    pub(crate) fn hold(&mut self, shared: &Shared, index: u32, bytes: &[u8]) {
        let held = self.held.entry(index).or_default();
        let before = held.capacity();
        held.extend_from_slice(bytes);
        shared.memory.record_change(before, held.capacity());
        shared.memory.note_growth();
    }

    /// Takes the held bytes of a connection.
    pub(crate) fn take_held(&mut self, shared: &Shared, index: u32) -> Option<Vec<u8>> {
        let held = self.held.remove(&index)?;
        shared.memory.record_change(held.capacity(), 0);
        Some(held)
    }

    /// Memory of the held bytes of a connection.
    pub(crate) fn held_memory(&self, index: u32) -> usize {
        self.held.get(&index).map_or(0, Vec::capacity)
    }

    /// Drops all data that waits for a connection outside its stream, in either direction.
    pub(super) fn drop_waiting(&mut self, shared: &Shared, index: u32) {
        self.delivery.drop_backlog(shared, index);
        self.take_held(shared, index);
    }
}

/// Messages of any caller to a connection.
impl Tables {
    pub(crate) fn send(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        message: OutMessage<'_>,
    ) -> Result<(), SendError> {
        let index = self.conns.find(id).ok_or(SendError::Closed)?;
        let sent = self.delivery.send(&mut self.conns, shared, turn, index, message);
        self.check_memory_if_grown(shared, turn);
        sent
    }

    pub(crate) fn send_prepared(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        prepared: &Prepared,
    ) -> Result<(), SendError> {
        let index = self.conns.find(id).ok_or(SendError::Closed)?;
        let sent = self.delivery.send_prepared(&mut self.conns, shared, turn, index, prepared);
        self.check_memory_if_grown(shared, turn);
        sent
    }
}

/// Requests of other code to a connection: subscribe, close, pause, resume. A request sets flags of
/// the connection and notifies its stream. The connection itself acts on them, in the next turn.
impl Tables {
    /// Returns whether the connection is not subscribed yet.
    pub(crate) fn subscribe(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        name: TopicName<'_>,
    ) -> Result<bool, SubscribeError> {
        if is_reserved(name.text()) {
            return Err(SubscribeError::Reserved);
        }
        if name.text().len() > shared.options.topic_len_max {
            return Err(SubscribeError::TooLong);
        }
        if !self.conns.entry(index).flags.takes_messages() {
            return Err(SubscribeError::Closed);
        }
        let is_new = self.delivery.subscribe(&mut self.conns, shared, turn, index, name);
        if is_new {
            shared.memory.note_growth();
        }
        self.check_memory_if_grown(shared, turn);
        Ok(is_new)
    }

    pub(crate) fn unsubscribe(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        topic: &str,
    ) -> bool {
        let was_subscribed = !is_reserved(topic)
            && self.delivery.unsubscribe(&mut self.conns, shared, turn, index, topic);
        self.check_memory_if_grown(shared, turn);
        was_subscribed
    }

    pub(crate) fn close(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), ControlError> {
        let index = self.conns.find(id).ok_or(ControlError::Closed)?;
        if !code.is_sendable() {
            return Err(ControlError::BadCloseCode);
        }
        if reason.len() > REASON_MAX {
            return Err(ControlError::TooLong);
        }
        self.delivery.flush_for(&mut self.conns, shared, turn, index);
        self.pending_closes.insert(index, (code, reason.into()));
        let entry = self.conns.entry(index);
        entry.flags.add(ConnFlags::WANTS_CLOSE);
        entry.notify(turn);
        Ok(())
    }

    /// Takes the code and the reason of a request to close.
    pub(crate) fn take_close(&mut self, index: u32) -> Option<(CloseCode, Box<str>)> {
        self.pending_closes.remove(&index)
    }

    /// Number of bytes that wait for a connection, with its backlog.
    pub(crate) fn buffered(&mut self, turn: &mut Turn<'_>, index: u32) -> usize {
        let stream = turn.stream(self.conns.entry(index).stream);
        stream.map_or(0, |stream| stream.buffered()) + self.delivery.backlog_bytes(index)
    }

    /// Number of bytes that a connection's socket has not accepted.
    pub(crate) fn unsent_bytes(&mut self, turn: &mut Turn<'_>, index: u32) -> usize {
        let stream = turn.stream(self.conns.entry(index).stream);
        stream.map_or(0, |mut stream| waiting_bytes(&mut stream, usize::MAX, 0))
    }
}
