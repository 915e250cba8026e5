//! A connection, inside its own callbacks.

use core::{cell::RefMut, fmt};
use std::{io, rc::Rc, sync::Arc};

use windlass::{Turn, stream::Address};
use windlass_ws::{CloseCode, Outbox};

use super::hub::Hub;
use crate::{
    api::{
        CloseReason, ConnectionId, ControlError, Message, NO_CONN, OutMessage, Prepared, SendError,
        SentMessages, SlowConsumerPolicy, SubscribeError, TopicName,
    },
    http::TlsInfo,
    pubsub::Delivery,
    shared::{PendingOutput, Shared},
    state::{ServiceState, Tables},
    table::{ConnEntry, ConnFlags, ConnState, HALT_CLOSING, HALT_CODEC, HALT_OUTPUT_MAX, HALTS},
};

/// A connection, inside its own callbacks. Other code reaches it by its [`id`](Self::id).
///
/// No call here runs a callback. Any callback that a call causes runs after the current one has
/// returned.
///
/// Messages leave in the order of the calls, including publications to topics that this connection
/// is subscribed to, unless another worker [owns](crate::Options::ordered_topics) the topic. They
/// leave in one write, after all received messages have been processed.
///
/// ```
/// use windlass_server::{
///     CloseCode, Connection, Handler, Message, Options, Server,
///     http::{Reject, UpgradeRequest, Accept},
/// };
///
/// /// A room. `echo ..` comes back to the sender alone, and `bye` ends the connection. Everything
/// /// else goes to all others.
/// struct Room;
///
/// impl Handler for Room {
///     type Data = ();
///
///     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
///         Ok(Accept::new(()))
///     }
///
///     fn on_open(&self, connection: &mut Connection<'_>, _: &mut ()) {
///         _ = connection.subscribe("room");
///     }
///
///     fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
///         match message.as_str() {
///             Some("bye") => _ = connection.close(CloseCode::NORMAL, "see you"),
///             // Sent from the receive buffer, without a copy.
///             Some(text) if text.starts_with("echo ") => _ = connection.reply_in_place(message),
///             Some(text) => {
///                 let line = format!("{}: {text}", connection.id());
///                 connection.publish_to_others("room", line);
///             }
///             None => _ = connection.close(CloseCode::UNSUPPORTED, "text only"),
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(Options::new(), |_worker| Room);
/// let server = server.listen("127.0.0.1:0".parse()?).start()?;
/// # let (mut ada, mut bob) = (connect(&server, "/"), connect(&server, "/"));
/// # // The answer shows that the connection is open on the server too.
/// # for client in [&mut ada, &mut bob] {
/// #     client.send("echo ready".into())?;
/// #     assert_eq!(client.read()?, "echo ready".into());
/// # }
/// # ada.send("hello".into())?;
/// # assert!(bob.read()?.to_text()?.ends_with(": hello"));
/// # bob.send("bye".into())?;
/// # let tungstenite::Message::Close(Some(close)) = bob.read()? else { panic!("it closes") };
/// # assert_eq!((u16::from(close.code), &*close.reason), (1000, "see you"));
/// # ada.send(vec![0].into())?;
/// # let tungstenite::Message::Close(Some(close)) = ada.read()? else { panic!("it closes") };
/// # assert_eq!(u16::from(close.code), 1003);
/// server.stop();
/// server.join()?;
/// # Ok(())
/// # }
/// # fn connect(
/// #     server: &windlass_server::RunningServer,
/// #     path: &str,
/// # ) -> tungstenite::WebSocket<std::net::TcpStream> {
/// #     let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
/// #     let stream = std::net::TcpStream::connect(address).expect("it listens");
/// #     let url = format!("ws://{address}{path}");
/// #     tungstenite::client(url, stream).expect("it is a WebSocket server").0
/// # }
/// ```
pub struct Connection<'a> {
    pub(crate) outbox: Outbox<'a>,
    pub(crate) turn: Turn<'a>,
    pub(crate) state: &'a Rc<ServiceState>,
    pub(crate) conn: &'a mut ConnState,
}

impl<'a> Connection<'a> {
    /// The connection's ID, by which other code reaches it.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.state.tables.borrow().conns.id(self.conn.index)
    }

    /// Sends a message. It is compressed if compression was negotiated and makes the message
    /// shorter.
    ///
    /// # Errors
    /// - [`SendError::Closed`] if the connection is closing.
    /// - [`SendError::Full`] if the bytes that wait would exceed
    ///   [`receiver_buffer_max`](crate::Options::receiver_buffer_max).
    pub fn send<'m>(&mut self, message: impl Into<OutMessage<'m>>) -> Result<(), SendError> {
        let message = message.into();
        if self.before_output()? {
            return self.send_behind_backlog(message);
        }
        if self.count_output(message.frame_len())? {
            return self.send_behind_backlog(message);
        }
        let sent = SentMessages::one(message.is_text(), message.as_bytes().len());
        message.send_by(&mut self.outbox).map_err(|_| SendError::Closed)?;
        self.state.shared.stats.note_sent(sent, 1);
        Ok(())
    }

    /// Sends a message that is already encoded.
    ///
    /// # Errors
    /// - [`SendError::Closed`] if the connection is closing.
    /// - [`SendError::Full`] if the bytes that wait would exceed
    ///   [`receiver_buffer_max`](crate::Options::receiver_buffer_max).
    pub fn send_prepared(&mut self, message: &Prepared) -> Result<(), SendError> {
        if self.before_output()? {
            return self.send_behind_backlog(message.to_out());
        }
        if self.count_output(message.weight())? {
            return self.send_behind_backlog(message.to_out());
        }
        let (state, index) = (self.state, self.conn.index);
        let Tables { conns, delivery, .. } = &mut *state.tables.borrow_mut();
        let frame = delivery.prepared_frame(conns, &state.shared, &self.turn, index, message);
        self.outbox.send_encoded(frame).map_err(|_| SendError::Closed)?;
        let sent = SentMessages::one(message.is_text(), message.as_bytes().len());
        self.state.shared.stats.note_sent(sent, 1);
        Ok(())
    }

    /// Sends a received message back from its receive buffer, with its current bytes. Nothing is
    /// copied unless other output must go first, such as a publication of this turn.
    ///
    /// # Errors
    /// - [`SendError::Closed`] if the connection is closing.
    /// - [`SendError::Full`] if the bytes that wait would exceed
    ///   [`receiver_buffer_max`](crate::Options::receiver_buffer_max).
    #[inline(always)]
    pub fn reply_in_place(&mut self, message: Message<'_>) -> Result<(), SendError> {
        if self.conn.halt & HALTS != 0
            || self.state.shared.pass.has_pending(
                PendingOutput::BATCH.or(PendingOutput::BACKLOG).or(PendingOutput::REENTRANT),
            )
        {
            return self.reply_after_other_output(message.is_text(), message.as_bytes());
        }
        self.state.shared.stats.messages_sent.add(1);
        self.state.shared.stats.bytes_sent.add(message.as_bytes().len() as u64);
        self.state.shared.stats.text_sent.add(u64::from(message.is_text()));
        self.outbox.reply(message.0).map_err(|_| SendError::Closed)
    }

    /// [`reply_in_place`](Self::reply_in_place) when other output must go first.
    /// Passing the message by value would go through memory in the usual case too.
    #[cold]
    #[inline(never)]
    fn reply_after_other_output(&mut self, is_text: bool, bytes: &[u8]) -> Result<(), SendError> {
        self.send(OutMessage::checked(is_text, bytes))
    }

    /// Sends a ping.
    ///
    /// # Errors
    /// - [`ControlError::Closed`] if the connection is closing.
    /// - [`ControlError::TooLong`] if the payload is longer than 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), ControlError> {
        // Only messages can be diverted to the backlog.
        let _ = self.before_output().map_err(|_| ControlError::Closed)?;
        self.outbox.ping(payload)?;
        self.state.shared.stats.pings_sent.add(1);
        Ok(())
    }

    /// Closes the connection. Output that was already sent leaves first, then a Close frame. The
    /// peer's Close frame is awaited for at most [`close_timeout`](crate::Options::close_timeout).
    /// The only callback that still follows is [`on_close`](crate::Handler::on_close).
    ///
    /// # Errors
    /// - [`ControlError::Closed`] if the connection is closing.
    /// - [`ControlError::BadCloseCode`] if `code` must not be sent.
    /// - [`ControlError::TooLong`] if `reason` is longer than 123 bytes.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), ControlError> {
        self.close_for(code, reason, CloseReason::Local)
    }

    pub(crate) fn close_for(
        &mut self,
        code: CloseCode,
        text: &str,
        reason: CloseReason,
    ) -> Result<(), ControlError> {
        let Self { outbox, turn, state, conn } = self;
        let (shared, tables) = (&state.shared, &mut *state.tables.borrow_mut());
        let Tables { conns, delivery, .. } = tables;
        delivery.flush_for(conns, shared, turn, conn.index);
        send_reentrant_output(delivery, shared, outbox, conn);
        if conn.halt & HALT_CLOSING == 0 {
            for frame in delivery.take_backlog(conns, shared, conn.index) {
                // This fails only when the connection is closing, which is not the case here.
                let _ = outbox.send_encoded(&frame);
            }
        }
        outbox.close(code, text)?;
        tables.begin_own_closing(shared, conn, reason);
        tables.note_own_code(conn.index, code);
        Ok(())
    }

    /// Subscribes to the live status of the server: a text message with a JSON object, at most
    /// twice a second. It has the main counts, those of each worker, and the names of the busiest
    /// topics, unless they begin with `$`. Returns false if
    /// [`Options::live_status`](crate::Options::live_status) is off, if the connection is already
    /// subscribed, or if it is closing.
    ///
    /// The topic has a reserved name. The calls that take a name of a topic reject all names that
    /// begin with `$windlass/`, so no application can publish to it by mistake.
    ///
    /// ```
    /// use windlass_server::{
    ///     Connection, Handler, Message, Options, Server,
    ///     http::{Accept, Reject, UpgradeRequest},
    /// };
    ///
    /// struct Status;
    ///
    /// impl Handler for Status {
    ///     type Data = ();
    ///
    ///     fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
    ///         match request.path() {
    ///             "/status" => Ok(Accept::new(())),
    ///             _ => Err(Reject::status(404)),
    ///         }
    ///     }
    ///
    ///     fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
    ///         assert!(connection.watch_status());
    ///     }
    ///
    ///     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut options = Options::new();
    /// options.live_status = true;
    /// let server = Server::new(options, |_worker| Status).listen("127.0.0.1:0".parse()?).start()?;
    /// # let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
    /// # let stream = std::net::TcpStream::connect(address)?;
    /// # let (mut client, _) = tungstenite::client(format!("ws://{address}/status"), stream)?;
    /// // `client` is a WebSocket that is connected to /status.
    /// let status = client.read()?.into_text()?;
    /// assert!(status.contains("\"connections\":{\"handshake\":0,\"open\":1,"), "{status}");
    /// server.stop();
    /// server.join()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_status(&mut self) -> bool {
        let Self { turn, state, conn, .. } = self;
        conn.halt & HALT_CLOSING == 0
            && state.tables.borrow_mut().watch_status(&state.shared, turn, conn.index)
    }

    /// Subscribes to a topic. Returns false if the connection is already subscribed.
    ///
    /// Topics and subscriptions count in the budget of
    /// [`memory_max`](crate::Options::memory_max), and a connection with many of them is among the
    /// first to be closed when it is exceeded.
    ///
    /// # Errors
    /// - [`SubscribeError::Closed`] if the connection is closing.
    /// - [`SubscribeError::Reserved`] if the name is [reserved](Self::watch_status).
    /// - [`SubscribeError::TooLong`] if the name is longer than
    ///   [`topic_len_max`](crate::Options::topic_len_max).
    pub fn subscribe(&mut self, topic: &str) -> Result<bool, SubscribeError> {
        self.subscribe_to(TopicName::Text(topic))
    }

    /// As [`subscribe`](Self::subscribe). If it is the first subscription to the topic on this
    /// reactor, the topic keeps this name and makes no copy of it.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub fn subscribe_shared(&mut self, topic: &Arc<str>) -> Result<bool, SubscribeError> {
        self.subscribe_to(TopicName::Shared(topic))
    }

    fn subscribe_to(&mut self, name: TopicName<'_>) -> Result<bool, SubscribeError> {
        self.share_pass_output();
        let Self { turn, state, conn, .. } = self;
        state.tables.borrow_mut().subscribe(&state.shared, turn, conn.index, name)
    }

    /// Ends a subscription. Returns false if there is none.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        let Self { turn, state, conn, .. } = self;
        state.tables.borrow_mut().unsubscribe(&state.shared, turn, conn.index, topic)
    }

    /// Returns whether the connection is subscribed to a topic.
    #[must_use]
    pub fn is_subscribed(&self, topic: &str) -> bool {
        let tables = &mut *self.state.tables.borrow_mut();
        let first = tables.conns.entry(self.conn.index).subscriptions;
        let topics = tables.delivery.topics();
        topics.find(topic).is_some_and(|topic| topics.is_subscribed(first, topic))
    }

    /// Returns the number of topics that the connection is subscribed to. The application should
    /// bound that number. Otherwise only [`memory_max`](crate::Options::memory_max) does, for all
    /// connections together.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        let tables = &mut *self.state.tables.borrow_mut();
        let first = tables.conns.entry(self.conn.index).subscriptions;
        tables.delivery.topics().count(first)
    }

    /// Publishes to all current subscribers of a topic, including this connection if it is
    /// subscribed. Returns the number of receiving connections on this reactor.
    ///
    /// All subscribers see the publications of one worker in the order of the calls. Subscribers on
    /// different workers of a [`Server`](crate::Server) may see those of two workers in different
    /// orders, unless the topic is [ordered](crate::Options::ordered_topics).
    pub fn publish<'m>(&mut self, topic: &str, message: impl Into<OutMessage<'m>>) -> usize {
        self.publish_from(NO_CONN, topic, message.into())
    }

    /// As [`publish`](Self::publish), to all subscribers except this connection.
    pub fn publish_to_others<'m>(
        &mut self,
        topic: &str,
        message: impl Into<OutMessage<'m>>,
    ) -> usize {
        self.publish_from(self.conn.index, topic, message.into())
    }

    // The generic callers are compiled in other crates, where it would be a further call.
    #[inline]
    fn publish_from(&mut self, from: u32, topic: &str, message: OutMessage<'_>) -> usize {
        self.share_pass_output();
        let receivers = self.state.publish(&mut self.turn, from, topic, message);
        self.check_codec_budget();
        receivers
    }

    /// If the turn's codec budget was spent on compressing publications, the next message waits for
    /// another turn.
    fn check_codec_budget(&mut self) {
        if self.state.shared.codec.is_spent_in(&self.turn) {
            self.conn.halt |= HALT_CODEC;
        }
    }

    /// Pauses reading until [`resume`](Self::resume) or [`Hub::resume`]. Messages already received
    /// wait; after that, the peer is blocked by flow control.
    ///
    /// A closing connection keeps reading, to receive the peer's Close frame.
    pub fn pause(&mut self) {
        if self.is_closing() {
            return;
        }
        let entry = &mut *self.entry();
        entry.flags.add(ConnFlags::PAUSED);
        self.conn.follow(entry.flags);
    }

    /// Resumes reading. Returns false if the connection was not [paused](Self::pause).
    pub fn resume(&mut self) -> bool {
        let entry = &mut *self.entry();
        let is_resumed = entry.resume(&mut self.turn, self.state.shared.tick());
        self.conn.follow(entry.flags);
        is_resumed
    }

    /// Returns the number of bytes that wait to be sent, without those sent in this callback.
    #[must_use]
    pub fn buffered(&mut self) -> usize {
        self.state.tables.borrow_mut().buffered(&mut self.turn, self.conn.index)
    }

    /// Returns the peer's address. Behind a [listed](crate::Options::proxies) proxy it is that of
    /// the client, behind another one that of the proxy.
    ///
    /// # Errors
    /// - The error of getpeername(2), for instance
    ///   [`NotConnected`](io::ErrorKind::NotConnected) if the peer has reset the connection.
    pub fn peer(&mut self) -> io::Result<Address> {
        if let Some(client) = self.state.tables.borrow().client(self.conn.index) {
            return Ok(client.clone());
        }
        match self.turn.stream(self.entry().stream) {
            Ok(stream) => stream.peer_addr(),
            Err(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns what the TLS handshake has negotiated; `None` without TLS.
    #[must_use]
    pub fn tls(&mut self) -> Option<TlsInfo> {
        self.turn.stream(self.entry().stream).ok().and_then(|stream| stream.tls().map(TlsInfo::of))
    }

    /// Returns the negotiated subprotocol.
    #[must_use]
    pub fn protocol(&self) -> Option<Rc<str>> {
        self.state.tables.borrow().protocol(self.conn.index)
    }

    /// Returns whether the connection is closing, so that nothing more can be sent.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.conn.halt & HALT_CLOSING != 0
    }

    /// Returns the service, to reach other connections.
    pub fn hub(&mut self) -> Hub<'_> {
        self.share_pass_output();
        Hub { state: self.state, turn: self.turn.reborrow() }
    }

    /// Returns the current turn, to use the reactor.
    pub fn turn(&mut self) -> Turn<'_> {
        self.share_pass_output();
        self.turn.reborrow()
    }

    /// After this call other code may send to this connection, so its own unaccounted output is
    /// noted first.
    #[inline]
    fn share_pass_output(&self) {
        self.state.shared.pass.set_output(self.conn.pass_output);
    }

    /// Delivers pending messages that must not be overtaken by the next output. Returns true if
    /// that output has to join the backlog, because messages already wait there.
    fn before_output(&mut self) -> Result<bool, SendError> {
        if self.conn.halt & HALT_CLOSING != 0 {
            return Err(SendError::Closed);
        }
        if self.state.shared.pass.has_pending(PendingOutput::BATCH) {
            self.share_pass_output();
            let Tables { conns, delivery, .. } = &mut *self.state.tables.borrow_mut();
            delivery.flush_for(conns, &self.state.shared, &mut self.turn, self.conn.index);
        }
        self.take_reentrant_output();
        Ok(self.state.shared.pass.has_pending(PendingOutput::BACKLOG)
            && self.entry().flags.any(ConnFlags::BACKLOG))
    }

    /// The connection in the table.
    fn entry(&self) -> RefMut<'a, ConnEntry> {
        let index = self.conn.index;
        RefMut::map(self.state.tables.borrow_mut(), |tables| tables.conns.entry(index))
    }

    /// Sends the messages that other connections have sent to this one during the pass.
    pub(crate) fn take_reentrant_output(&mut self) {
        if self.state.shared.pass.has_pending(PendingOutput::REENTRANT) {
            let Self { outbox, state, conn, .. } = self;
            let delivery = &mut state.tables.borrow_mut().delivery;
            send_reentrant_output(delivery, &state.shared, outbox, conn);
        }
    }

    /// Messages wait in the backlog, so this one is queued behind them.
    #[cold]
    fn send_behind_backlog(&mut self, message: OutMessage<'_>) -> Result<(), SendError> {
        self.share_pass_output();
        let Self { turn, state, conn, .. } = self;
        let tables = &mut *state.tables.borrow_mut();
        let id = tables.conns.id(conn.index);
        tables.send(&state.shared, turn, id, message)
    }

    /// Accounts for the bytes of a message, and rejects it if too many wait. Returns true if the
    /// message has to join the backlog.
    #[inline]
    fn count_output(&mut self, len: usize) -> Result<bool, SendError> {
        let more = u32::try_from(len).unwrap_or(u32::MAX);
        let before = self.conn.pass_output;
        self.conn.pass_output = before.saturating_add(more);
        if self.conn.pass_output <= self.state.shared.bounds.pass_output_unchecked {
            return Ok(false);
        }
        self.check_output_max(before, len)
    }

    #[cold]
    fn check_output_max(&mut self, pass_output: u32, len: usize) -> Result<bool, SendError> {
        let state = self.state;
        let max = state.shared.options.receiver_buffer_max;
        let before = pass_output as usize + self.buffered();
        if before.saturating_add(len) > max {
            self.conn.pass_output = pass_output;
            self.conn.halt |= HALT_OUTPUT_MAX;
            return self.reject_output();
        }
        // The pass ends while there is still room, so that answering each message loses none. The
        // following messages wait.
        let bounds = &state.shared.bounds;
        if self.conn.pass_output > bounds.pass_output_max || before + len > bounds.high_watermark {
            self.conn.halt |= HALT_OUTPUT_MAX;
        }
        Ok(false)
    }

    /// There is no room for a message of the connection's own.
    fn reject_output(&mut self) -> Result<bool, SendError> {
        if self.state.shared.options.slow == SlowConsumerPolicy::DropOldest {
            return Ok(true);
        }
        self.state.shared.stats.dropped.add(1);
        // With nothing waiting, the peer is not slow: this callback alone sends more than the
        // limit.
        if self.state.shared.options.slow == SlowConsumerPolicy::Evict {
            let Self { turn, state, conn, .. } = self;
            let tables = &mut *state.tables.borrow_mut();
            if tables.unsent_bytes(turn, conn.index) > 0 {
                state.shared.stats.evicted.add(1);
                tables.begin_own_closing(&state.shared, conn, CloseReason::Evicted);
                let entry = tables.conns.entry(conn.index);
                entry.flags.add(ConnFlags::WANTS_EVICTION);
                entry.notify(turn);
            }
        }
        Err(SendError::Full)
    }
}

/// Sends the messages that other connections have sent to the one in a pass, if there are any.
fn send_reentrant_output(
    delivery: &mut Delivery,
    shared: &Shared,
    outbox: &mut Outbox<'_>,
    conn: &mut ConnState,
) {
    if shared.pass.has_pending(PendingOutput::REENTRANT) {
        delivery.take_reentrant_output(shared, |frames| {
            // This fails only when the connection is closing.
            let _ = outbox.send_encoded(frames);
            conn.add_pass_output(frames.len(), shared.bounds.pass_output_max);
        });
    }
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id())
            .field("is_closing", &self.is_closing())
            .finish_non_exhaustive()
    }
}
