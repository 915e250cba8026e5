//! A connection, inside its own callbacks.

use core::fmt;
use std::{io, rc::Rc};

use windlass::{Turn, stream::Address};
use windlass_ws::{CloseCode, Outbox};

use crate::{
    CloseReason, ConnectionId, ControlError, Hub, Message, OutMessage, Prepared, SendError,
    SlowConsumerPolicy,
    hall::{Alert, SharedHall},
    options::SPENT_MAX,
    roster::Flags,
};

/// State of an open connection that the driver keeps beside its engine and the user's data.
pub(crate) struct Seat {
    pub(crate) member: u32,
    /// The tick in which the roster was last told that bytes were received.
    pub(crate) heard: u32,
    /// Bytes sent in this pass.
    pub(crate) spent: u32,
    /// Reasons to interrupt the pass, and whether the connection uses compression; 0 if neither
    /// applies. For a connection with compression, the upper byte holds the lowest bits of the tick
    /// in which it last used the codecs heavily.
    pub(crate) halt: u16,
    /// The driver knows that too much output waits, and will be told when there is less.
    pub(crate) told_full: bool,
    /// The accounting includes a partly received message or frame.
    pub(crate) in_pieces: bool,
}

impl Seat {
    pub(crate) fn new(member: u32, heard: u32, has_deflate: bool) -> Self {
        let mut seat =
            Self { member, heard, spent: 0, halt: 0, told_full: false, in_pieces: false };
        if has_deflate {
            seat.halt = HAS_DEFLATE;
            // A tick far in the past.
            seat.note_heavy(heard.wrapping_sub(1 << 7));
        }
        seat
    }

    /// Notes that the codecs were used heavily in this tick.
    pub(crate) fn note_heavy(&mut self, tick: u32) {
        self.halt = (self.halt & 0xff) | (tick as u16) << 8;
    }

    /// Number of ticks since the codecs were last used heavily, modulo 256.
    pub(crate) fn since_heavy(&self, tick: u32) -> u8 {
        (tick as u8).wrapping_sub((self.halt >> 8) as u8)
    }
}

/// This side has sent its Close frame, or will end the connection in another way. No more messages
/// are delivered.
pub(crate) const HALT_CLOSING: u16 = 1;
/// The user has paused reading.
pub(crate) const HALT_PAUSED: u16 = 1 << 1;
/// So much was sent that the pass must end.
pub(crate) const HALT_SPENT: u16 = 1 << 2;
/// Bytes of an earlier pass wait to be processed.
pub(crate) const HALT_HELD: u16 = 1 << 3;
/// The codecs have done so much work in this turn that the pass must end.
pub(crate) const HALT_CODEC: u16 = 1 << 4;
/// The connection is in the queue for the codecs.
pub(crate) const HALT_WAITS: u16 = 1 << 5;
/// All of these flags.
pub(crate) const HALTS: u16 = HAS_DEFLATE - 1;
/// Not a reason to halt: messages may be compressed, so the codec budget is checked before each
/// message. The flag is stored here so that connections without compression check one word only.
pub(crate) const HAS_DEFLATE: u16 = 1 << 6;

/// A connection, inside its own callbacks. Other code reaches it by its [`id`](Self::id).
///
/// No call here runs a callback. Any callback that a call causes runs after the current one has
/// returned.
///
/// Messages leave in the order of the calls, including publications to topics that this connection
/// is subscribed to. They leave in one write, after all received messages have been processed.
///
/// ```
/// use windlass_server::{
///     CloseCode, Connection, Handler, Message, Options, Server,
///     http::{Reject, UpgradeRequest, Accept},
/// };
///
/// /// A room. `echo ..` comes back to the sender alone, `bye` ends the connection, everything else goes to all others.
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
///         connection.subscribe("room");
///     }
///
///     fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
///         match message.as_str() {
///             Some("bye") => _ = connection.close(CloseCode::NORMAL, "see you"),
///             // Out of the very bytes that were received.
///             Some(text) if text.starts_with("echo ") => _ = connection.reply_in_place(message),
///             Some(text) => _ = connection.publish("room", format!("{}: {text}", connection.id())),
///             None => _ = connection.close(CloseCode::UNSUPPORTED, "text only"),
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(Options::new(), |_worker| Room).listen("127.0.0.1:0".parse()?).start()?;
/// # let (mut ada, mut bob) = (connect(&server, "/"), connect(&server, "/"));
/// # // An answer says that the connection is open on the server's side too.
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
/// # fn connect(server: &windlass_server::Running, path: &str) -> tungstenite::WebSocket<std::net::TcpStream> {
/// #     let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
/// #     let stream = std::net::TcpStream::connect(address).expect("it listens");
/// #     tungstenite::client(format!("ws://{address}{path}"), stream).expect("it is a WebSocket server").0
/// # }
/// ```
pub struct Connection<'a> {
    pub(crate) outbox: Outbox<'a>,
    pub(crate) turn: Turn<'a>,
    pub(crate) hall: &'a SharedHall,
    pub(crate) seat: &'a mut Seat,
}

impl Connection<'_> {
    /// The connection's ID, by which other code reaches it.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.hall.books.borrow().roster.id(self.seat.member)
    }

    /// Sends a message. It is compressed if compression was negotiated and makes the message
    /// shorter.
    ///
    /// # Errors
    /// [`SendError`] if the connection is closing, or too many bytes wait for the receiver.
    pub fn send<'m>(&mut self, message: impl Into<OutMessage<'m>>) -> Result<(), SendError> {
        let message = message.into();
        if self.before_output()? {
            return self.send_beside(message);
        }
        if self.spend(message.frame_len())? {
            return self.send_beside(message);
        }
        message.send_by(&mut self.outbox).map_err(|_| SendError::Closed)?;
        self.hall.stats.messages_sent.add(1);
        Ok(())
    }

    /// Sends a message that is already encoded.
    ///
    /// # Errors
    /// [`SendError`] if the connection is closing, or too many bytes wait for the receiver.
    pub fn send_prepared(&mut self, message: &Prepared) -> Result<(), SendError> {
        if self.before_output()? {
            return self.send_beside(message.to_out());
        }
        if self.spend(message.weight())? {
            return self.send_beside(message.to_out());
        }
        let mut books = self.hall.books.borrow_mut();
        let frame = books.chosen(self.hall, &self.turn, self.seat.member, message);
        self.outbox.send_encoded(frame).map_err(|_| SendError::Closed)?;
        self.hall.stats.messages_sent.add(1);
        Ok(())
    }

    /// Sends a received message back from its receive buffer. Nothing is copied unless other output
    /// must go first, such as a publication of this turn.
    ///
    /// # Errors
    /// [`SendError`] if the connection is closing, or too many bytes wait for the receiver.
    #[inline(always)]
    pub fn reply_in_place(&mut self, message: Message<'_>) -> Result<(), SendError> {
        if self.seat.halt & HALTS != 0
            || self.hall.is_alert(Alert::LOG.or(Alert::SIDES).or(Alert::STASH))
        {
            return self.reply_with_thought(message.is_text(), message.as_bytes());
        }
        self.hall.stats.messages_sent.add(1);
        self.outbox.reply(message.0).map_err(|_| SendError::Closed)
    }

    /// [`reply_in_place`](Self::reply_in_place) for the case where other work must be done first.
    /// Passing the message by value would go through memory in the usual case too.
    #[cold]
    #[inline(never)]
    fn reply_with_thought(&mut self, is_text: bool, bytes: &[u8]) -> Result<(), SendError> {
        self.send(OutMessage::checked(is_text, bytes))
    }

    /// Sends a ping.
    ///
    /// # Errors
    /// [`ControlError::Closed`] if the connection is closing, [`ControlError::TooLong`] if the payload
    /// is longer than 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), ControlError> {
        // Only messages can be diverted to the backlog.
        let _ = self.before_output().map_err(|_| ControlError::Closed)?;
        Ok(self.outbox.ping(payload)?)
    }

    /// Closes the connection. Output that was already sent leaves first, then a Close frame. The
    /// peer's Close frame is awaited for at most [`close_timeout`](crate::Options::close_timeout).
    /// The only callback that still follows is [`on_close`](crate::Handler::on_close).
    ///
    /// # Errors
    /// [`ControlError`] if the connection is closing or gone, or `code` or `reason` cannot be sent.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), ControlError> {
        self.close_for(code, reason, CloseReason::Local)
    }

    pub(crate) fn close_for(
        &mut self,
        code: CloseCode,
        text: &str,
        reason: CloseReason,
    ) -> Result<(), ControlError> {
        self.hall.flush_for(self.seat.member, &mut self.turn);
        self.take_stash();
        if self.seat.halt & HALT_CLOSING == 0 {
            for frame in self.hall.take_side(self.seat.member) {
                // This fails only when the connection is closing, which is not the case here.
                let _ = self.outbox.send_encoded(&frame);
            }
        }
        self.outbox.close(code, text)?;
        self.seat.halt = (self.seat.halt & !HALT_PAUSED) | HALT_CLOSING;
        self.hall.begin_closing(self.seat.member, reason);
        Ok(())
    }

    /// Subscribes to a topic. Returns false if the connection is already subscribed.
    pub fn subscribe(&mut self, topic: &str) -> bool {
        self.seat.halt & HALT_CLOSING == 0
            && self.hall.subscribe(&mut self.turn, self.seat.member, topic)
    }

    /// Ends a subscription. Returns false if there is none.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        self.hall.unsubscribe(&mut self.turn, self.seat.member, topic)
    }

    /// Returns whether the connection is subscribed to a topic.
    #[must_use]
    pub fn is_subscribed(&self, topic: &str) -> bool {
        let books = &mut *self.hall.books.borrow_mut();
        let first = books.roster.at(self.seat.member).subscriptions;
        books.topics.find(topic).is_some_and(|topic| books.topics.listens(first, topic))
    }

    /// Returns the number of topics that the connection is subscribed to. The application must
    /// bound that number.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        let books = &mut *self.hall.books.borrow_mut();
        let first = books.roster.at(self.seat.member).subscriptions;
        books.topics.count(first)
    }

    /// Publishes to all current subscribers of a topic except this connection. Returns the number
    /// of receiving connections on this reactor.
    pub fn publish<'m>(&mut self, topic: &str, message: impl Into<OutMessage<'m>>) -> usize {
        self.note_spent();
        let receivers = self.hall.publish(&mut self.turn, self.seat.member, topic, message.into());
        self.look_at_codec();
        receivers
    }

    /// Publishes to all current subscribers of a topic, including this connection if it is
    /// subscribed.
    pub fn publish_to_all<'m>(&mut self, topic: &str, message: impl Into<OutMessage<'m>>) -> usize {
        self.note_spent();
        let receivers =
            self.hall.publish(&mut self.turn, crate::roster::NOBODY, topic, message.into());
        self.look_at_codec();
        receivers
    }

    /// If the turn's codec budget was spent on compressing publications, the next message waits for
    /// another turn.
    fn look_at_codec(&mut self) {
        if self.hall.codec_is_spent(&self.turn) {
            self.seat.halt |= HALT_CODEC;
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
        self.seat.halt |= HALT_PAUSED;
        self.hall.books.borrow_mut().roster.at(self.seat.member).flags.add(Flags::PAUSED);
    }

    /// Resumes reading. Returns false if the connection was not [paused](Self::pause).
    pub fn resume(&mut self) -> bool {
        self.seat.halt &= !HALT_PAUSED;
        self.hall.resume(&mut self.turn, self.seat.member)
    }

    /// Returns the number of bytes that wait to be sent, without those sent in this callback.
    #[must_use]
    pub fn buffered(&mut self) -> usize {
        self.hall.buffered(&mut self.turn, self.seat.member)
    }

    /// Returns the peer's address. Behind a proxy it is the proxy's address.
    ///
    /// # Errors
    /// The error of getpeername(2).
    pub fn peer(&mut self) -> io::Result<Address> {
        let key = self.hall.books.borrow_mut().roster.at(self.seat.member).stream;
        match self.turn.stream(key) {
            Ok(stream) => stream.peer_addr(),
            Err(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns the negotiated subprotocol.
    #[must_use]
    pub fn protocol(&self) -> Option<Rc<str>> {
        self.hall.books.borrow().protocols.get(&self.seat.member).cloned()
    }

    /// Returns whether the connection is closing, so that nothing more can be sent.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.seat.halt & HALT_CLOSING != 0
    }

    /// Returns the service, to reach other connections.
    pub fn hub(&mut self) -> Hub<'_> {
        self.note_spent();
        Hub { hall: self.hall, turn: self.turn.reborrow() }
    }

    /// Returns the current turn, to use the reactor.
    pub fn turn(&mut self) -> Turn<'_> {
        self.note_spent();
        self.turn.reborrow()
    }

    /// After this call other code may send to this connection, so its own unaccounted output is
    /// noted first.
    #[inline]
    fn note_spent(&self) {
        self.hall.own_spent.set(self.seat.spent);
    }

    /// Delivers pending messages that must not be overtaken by the next output. Returns true if
    /// that output has to join the backlog, because messages already wait there.
    fn before_output(&mut self) -> Result<bool, SendError> {
        if self.seat.halt & HALT_CLOSING != 0 {
            return Err(SendError::Closed);
        }
        if self.hall.is_alert(Alert::LOG) {
            self.note_spent();
            self.hall.flush_for(self.seat.member, &mut self.turn);
        }
        self.take_stash();
        Ok(self.hall.is_alert(Alert::SIDES)
            && self.hall.books.borrow_mut().roster.at(self.seat.member).flags.any(Flags::SIDE))
    }

    /// Sends the messages that other connections have sent to this one during the pass.
    pub(crate) fn take_stash(&mut self) {
        if self.hall.is_alert(Alert::STASH) {
            self.hall.lower(Alert::STASH);
            let mut books = self.hall.books.borrow_mut();
            // This fails only when the connection is closing.
            let _ = self.outbox.send_encoded(&books.stash);
            self.seat.note_spent(books.stash.len(), self.hall.bounds.spent_max);
            books.stash.clear();
            books.stash.shrink_to(SPENT_MAX);
        }
    }

    /// Messages wait in the backlog, so this one is queued behind them.
    #[cold]
    fn send_beside(&mut self, message: OutMessage<'_>) -> Result<(), SendError> {
        self.note_spent();
        let id = self.id();
        self.hall.send(&mut self.turn, id, message)
    }

    /// Accounts for the bytes of a message, and rejects it if too many wait. Returns true if the
    /// message has to join the backlog.
    #[inline]
    fn spend(&mut self, len: usize) -> Result<bool, SendError> {
        let more = u32::try_from(len).unwrap_or(u32::MAX);
        let before = self.seat.spent;
        self.seat.spent = before.saturating_add(more);
        if self.seat.spent <= self.hall.bounds.spent_free {
            return Ok(false);
        }
        self.spend_much(before, len)
    }

    #[cold]
    fn spend_much(&mut self, spent: u32, len: usize) -> Result<bool, SendError> {
        let hall = self.hall;
        let max = hall.options.receiver_buffer_max;
        let before = spent as usize + self.hall.buffered(&mut self.turn, self.seat.member);
        if before.saturating_add(len) > max {
            self.seat.spent = spent;
            self.seat.halt |= HALT_SPENT;
            return self.refuse();
        }
        // The pass ends while there is still room, so that answering each message loses none. The
        // following messages wait.
        let bounds = &hall.bounds;
        if self.seat.spent > bounds.spent_max || before + len > bounds.high {
            self.seat.halt |= HALT_SPENT;
        }
        Ok(false)
    }

    /// There is no room for a message of the connection's own.
    fn refuse(&mut self) -> Result<bool, SendError> {
        if self.hall.options.slow == SlowConsumerPolicy::DropOldest {
            return Ok(true);
        }
        self.hall.stats.dropped.add(1);
        // With nothing waiting, the peer is not slow: this callback alone sends more than the
        // limit.
        if self.hall.options.slow == SlowConsumerPolicy::Evict
            && self.hall.still_waiting(&mut self.turn, self.seat.member) > 0
        {
            self.hall.stats.evicted.add(1);
            self.seat.halt |= HALT_CLOSING;
            self.hall.begin_closing(self.seat.member, CloseReason::Evicted);
            let books = &mut *self.hall.books.borrow_mut();
            let member = books.roster.at(self.seat.member);
            member.flags.add(Flags::CLOSING | Flags::WANTS_EVICTION);
            if let Ok(mut stream) = self.turn.stream(member.stream) {
                stream.notify();
            }
        }
        Err(SendError::Full)
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
