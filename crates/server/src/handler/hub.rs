//! The service, as callbacks and other handlers of the reactor see it.

use core::{fmt, time::Duration};
use std::rc::Rc;

use windlass::{Key, TimerReason, Turn};
use windlass_ws::CloseCode;

use crate::{
    api::{
        ConnectionId, ControlError, NO_CONN, OutMessage, Prepared, SendError, ServerStats,
        SubscribeError, TopicName,
    },
    state::ServiceState,
};

/// The service without a connection of one's own: sends to connections by ID, and to topics.
///
/// [`Connection::hub`](crate::Connection::hub) returns it in a callback,
/// [`Service::hub`](crate::Service::hub) in any other handler of the reactor.
///
/// No call here runs a callback. Any callback that a call causes runs after the current handler has
/// returned. Messages to one connection leave at the end of the turn, in one write, in the order of
/// the calls.
///
/// ```
/// use std::{io, io::Read as _, os::unix::net::UnixStream, time::Duration};
/// use windlass::{Reactor, Turn};
/// use windlass_server::{Options, Service, Upgraded};
/// # use windlass_server::{Connection, Handler, Message, http::{Accept, Reject, UpgradeRequest}};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
/// #         let _ = connection.reply_in_place(message);
/// #     }
/// # }
///
/// # fn main() -> io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let service = Service::new(Echo, &Options::new(), &mut reactor)?;
/// let (ours, mut peer) = UnixStream::pair()?;
/// let adopted = service.adopt(ours, [], Upgraded::new(()), &mut reactor);
/// let id = adopted.map_err(io::Error::from)?;
///
/// // A timer has no connection of its own, and reaches all of them through the hub.
/// let hour = move |mut turn: Turn<'_>| {
///     let mut hub = service.hub(&mut turn);
///     assert_eq!(hub.subscribe(id, "news"), Ok(true));
///     assert_eq!(hub.publish("news", "it is noon"), 1);
/// };
/// reactor.after(Duration::ZERO, hour).map_err(io::Error::from)?;
/// for _ in 0..4 {
///     reactor.run_once(Duration::ZERO)?;
/// }
/// let mut frame = [0; 12];
/// peer.read_exact(&mut frame)?;
/// assert_eq!(&frame, b"\x81\x0ait is noon");
/// # Ok(())
/// # }
/// ```
pub struct Hub<'a> {
    pub(crate) state: &'a Rc<ServiceState>,
    pub(crate) turn: Turn<'a>,
}

impl Hub<'_> {
    /// Sends a message to a connection.
    ///
    /// # Errors
    /// - [`SendError::Closed`] if the connection is closing or gone, even if it was closed in this
    ///   turn.
    /// - [`SendError::Full`] if the bytes that wait for it would exceed
    ///   [`receiver_buffer_max`](crate::Options::receiver_buffer_max).
    pub fn send<'m>(
        &mut self,
        id: ConnectionId,
        message: impl Into<OutMessage<'m>>,
    ) -> Result<(), SendError> {
        let Self { state, turn } = self;
        state.tables.borrow_mut().send(&state.shared, turn, id, message.into())
    }

    /// Sends a prepared message to a connection.
    ///
    /// # Errors
    /// - [`SendError::Closed`] if the connection is closing or gone.
    /// - [`SendError::Full`] if the bytes that wait for it would exceed
    ///   [`receiver_buffer_max`](crate::Options::receiver_buffer_max).
    pub fn send_prepared(&mut self, id: ConnectionId, message: &Prepared) -> Result<(), SendError> {
        let Self { state, turn } = self;
        state.tables.borrow_mut().send_prepared(&state.shared, turn, id, message)
    }

    /// Publishes to all current subscribers of a topic. Returns the number of receiving connections
    /// on this reactor.
    ///
    /// Consecutive publications to one topic leave in one write for each receiver, at the end of
    /// the turn at the latest. For their order see
    /// [`Connection::publish`](crate::Connection::publish).
    pub fn publish<'m>(&mut self, topic: &str, message: impl Into<OutMessage<'m>>) -> usize {
        self.state.publish(&mut self.turn, NO_CONN, topic, message.into())
    }

    /// Closes a connection with a Close frame, in the next turn, after the messages already sent to
    /// it. It accepts no more messages from other code.
    ///
    /// # Errors
    /// - [`ControlError::Closed`] if the connection is closing or gone.
    /// - [`ControlError::BadCloseCode`] if `code` must not be sent.
    /// - [`ControlError::TooLong`] if `reason` is longer than 123 bytes.
    pub fn close(
        &mut self,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), ControlError> {
        let Self { state, turn } = self;
        state.tables.borrow_mut().close(&state.shared, turn, id, code, reason)
    }

    /// Subscribes a connection to a topic. Returns false if it is already subscribed.
    ///
    /// # Errors
    /// - [`SubscribeError::Closed`] if the connection is closing or gone.
    /// - [`SubscribeError::Reserved`] if the name is
    ///   [reserved](crate::Connection::watch_status).
    /// - [`SubscribeError::TooLong`] if the name is longer than
    ///   [`topic_len_max`](crate::Options::topic_len_max).
    pub fn subscribe(&mut self, id: ConnectionId, topic: &str) -> Result<bool, SubscribeError> {
        let Self { state, turn } = self;
        let tables = &mut *state.tables.borrow_mut();
        let index = tables.conns.find(id).ok_or(SubscribeError::Closed)?;
        tables.subscribe(&state.shared, turn, index, TopicName::Text(topic))
    }

    /// Ends a connection's subscription. Returns false if it has none.
    pub fn unsubscribe(&mut self, id: ConnectionId, topic: &str) -> bool {
        let Self { state, turn } = self;
        let tables = &mut *state.tables.borrow_mut();
        let index = tables.conns.find(id);
        index.is_some_and(|index| tables.unsubscribe(&state.shared, turn, index, topic))
    }

    /// Pauses reading from a connection until [`resume`](Self::resume), like its own
    /// [`pause`](crate::Connection::pause). Messages already received wait; after that, the peer is
    /// blocked by flow control. Messages in the bytes that are being processed at this moment are
    /// still delivered. Returns false if the connection is already paused, is closing or is gone.
    pub fn pause(&mut self, id: ConnectionId) -> bool {
        let conns = &mut self.state.tables.borrow_mut().conns;
        conns.find(id).is_some_and(|index| conns.entry(index).pause(&mut self.turn))
    }

    /// Resumes reading from a connection that was paused by [itself](crate::Connection::pause) or
    /// [here](Self::pause). Returns false if it was not paused.
    pub fn resume(&mut self, id: ConnectionId) -> bool {
        let (conns, tick) = (&mut self.state.tables.borrow_mut().conns, self.state.shared.tick());
        conns.find(id).is_some_and(|index| conns.entry(index).resume(&mut self.turn, tick))
    }

    /// Calls a closure with the hub after a time. The key is for [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// [`TimerReason::LimitReached`] if the reactor has no room for another timer. The closure is
    /// dropped.
    pub fn after(
        &mut self,
        delay: Duration,
        call: impl FnOnce(&mut Hub<'_>) + 'static,
    ) -> Result<Key, TimerReason> {
        let (state, mut call) = (Rc::clone(self.state), Some(call));
        let call = move |turn: Turn<'_>| {
            if let Some(call) = call.take() {
                call(&mut Hub { state: &state, turn });
            }
        };
        self.turn.after_with(delay, call)
    }

    /// Calls a closure with the hub periodically, for the first time after one period. It ends with
    /// [`cancel`](Self::cancel) or with the reactor, and goes on during a drain.
    ///
    /// Each worker of a [`Server`](crate::Server) has its own reactor, so
    /// [`on_start`](crate::Handler::on_start) starts one timer for each of them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass_server::{Handler, Hub};
    /// # use windlass_server::{Connection, Message, http::{Accept, Reject, UpgradeRequest}};
    ///
    /// struct Clock;
    ///
    /// impl Handler for Clock {
    /// #   type Data = ();
    /// #   fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
    /// #       Ok(Accept::new(()))
    /// #   }
    /// #   fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    ///     fn on_start(&self, hub: &mut Hub<'_>) {
    ///         let mut seconds = 0;
    ///         let tick = move |hub: &mut Hub<'_>| {
    ///             seconds += 1;
    ///             hub.publish("clock", format!("{seconds} seconds"));
    ///         };
    ///         hub.every(Duration::from_secs(1), tick).expect("the first timer of this reactor");
    ///     }
    ///     // …
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`after`](Self::after). [`TimerReason::ZeroPeriod`] if the period is zero.
    pub fn every(
        &mut self,
        period: Duration,
        mut call: impl FnMut(&mut Hub<'_>) + 'static,
    ) -> Result<Key, TimerReason> {
        let state = Rc::clone(self.state);
        let call = move |turn: Turn<'_>| call(&mut Hub { state: &state, turn });
        self.turn.every_with(period, call)
    }

    /// Cancels a timer of [`after`](Self::after) or [`every`](Self::every), also in its own
    /// closure. Returns false if it has ended.
    pub fn cancel(&mut self, key: Key) -> bool {
        self.turn.cancel(key).is_ok()
    }

    /// Returns the number of connections of this reactor that are subscribed to a topic.
    #[must_use]
    pub fn subscribers(&self, topic: &str) -> usize {
        self.state.tables.borrow().delivery.topics().subscribers(topic)
    }

    /// Returns whether a connection with this ID exists and accepts messages.
    #[must_use]
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.state.tables.borrow().conns.find(id).is_some()
    }

    /// Returns the number of bytes that wait for a connection, including messages that [could be
    /// dropped](crate::SlowConsumerPolicy::DropOldest); 0 if it is gone.
    pub fn buffered(&mut self, id: ConnectionId) -> usize {
        let tables = &mut *self.state.tables.borrow_mut();
        tables.conns.find(id).map_or(0, |index| tables.buffered(&mut self.turn, index))
    }

    /// Returns the number of connections, including those whose handshake is in progress.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.tables.borrow().conns.len()
    }

    /// Returns the counts of the service.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.state.tables.borrow().snapshot(&self.state.shared)
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
