//! The settings of a service.

use core::fmt;
use std::{io, time::Duration};

use windlass::stream::{ListenOptions, StreamOptions};
use windlass_flow::Bounds;
use windlass_ws::{HEADER_LEN_MAX, Limits, deflate::DeflateConfig, handshake::HeadLimits};

use crate::http::{Hosts, Origins, Routes};

/// What becomes of a message for a receiver for whom too much waits already.
///
/// Control frames are never dropped. What a connection sends itself stops its own reading first,
/// and is refused only where one callback sends more than may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SlowConsumerPolicy {
    /// It is dropped, and the sender is told so.
    #[default]
    DropNewest,
    /// It takes the place of the oldest messages that wait and are not on their way yet: for states
    /// that supersede one another.
    DropOldest,
    /// It is dropped, and the connection with it: for receivers that must not miss anything, and
    /// come again.
    Evict,
}

/// The settings of a [`Service`](crate::Service) or [`Server`](crate::Server). Each field says its
/// default.
///
/// ```
/// use std::time::Duration;
/// use windlass_server::{Options, Server, SlowConsumerPolicy};
/// # use windlass_server::{Connection, Handler, Message, http::{Reject, UpgradeRequest, Accept}};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
/// #         let _ = connection.reply_in_place(message);
/// #     }
/// # }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = Options::new();
/// // A peer that sends more is sent a Close frame with code 1009.
/// options.limits.message_max = 64 << 10;
/// options.idle_timeout = Some(Duration::from_secs(20));
/// options.ping_interval = Some(Duration::from_secs(8));
/// options.connections_max = 1000;
/// options.connections_per_address_max = Some(10);
/// // Whoever does not read is closed: its messages are of no use later.
/// options.slow = SlowConsumerPolicy::Evict;
/// let server = Server::new(options, |_worker| Echo).listen("127.0.0.1:0".parse()?).start()?;
/// # let mut client = connect(&server, "/");
/// # let fits = vec![7; 64 << 10];
/// # client.send(fits.clone().into())?;
/// # assert_eq!(client.read()?, fits.into());
/// # client.send(vec![7; (64 << 10) + 1].into())?;
/// # let tungstenite::Message::Close(Some(close)) = client.read()? else { panic!("it closes") };
/// # assert_eq!(u16::from(close.code), 1009);
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Where upgrades are taken, and which pages there are. Default: upgrades everywhere, no page.
    pub routes: Routes,
    /// Which pages may connect. Default: those of the same host.
    pub origins: Origins,
    /// Which hosts clients may ask for; other requests are answered with 421. Default: on a
    /// loopback address `localhost` and loopback addresses, elsewhere all. Behind a proxy on the
    /// same machine that passes the Host header on, the server's own name must be listed.
    pub hosts: Hosts,
    /// Bounds of what a peer sends: frames, messages, fragments, control frames. Default:
    /// [`Limits::DEFAULT`], with frames and messages of at most 1 MiB.
    pub limits: Limits,
    /// Bounds of a request's head. Default: [`HeadLimits::DEFAULT`].
    pub head_limits: HeadLimits,
    /// Whether messages are compressed, and how. Default: `None`.
    pub deflate: Option<DeflateConfig>,
    /// The most bytes that wait for a receiver. A message that does not fit with its header is
    /// refused, even if nothing waits: [`slow`](Self::slow) says what becomes of it.
    ///
    /// It must hold the longest message of [`limits`](Self::limits) and its header of up to 10
    /// bytes ([`OptionsError::BufferTooSmall`]). The connection's own messages are not read any
    /// more before an answer to the longest might not fit: with the defaults above 768 KiB, until
    /// it is at a quarter of that. Answers to what one receive has brought (64 KiB) may pass it by
    /// as much where it is hardly longer than a message. Default: 2 MiB.
    pub receiver_buffer_max: usize,
    /// The most bytes of memory that wait for all connections of a service, or of a
    /// [`Server`](crate::Server) and all its workers: output, received bytes that are held,
    /// messages and requests that have come in part. What waits for several receivers counts once a
    /// worker. Above four fifths of it the connections that hold the most are not read from. Above
    /// all of it the largest are closed, as [`SlowConsumerPolicy::Evict`] does it, and new requests
    /// get 503 for up to a second. `None`: a quarter of the memory limit of the process' cgroup, or
    /// of the machine's memory if that is less. Default: `None`.
    ///
    /// It is looked at after each pass over received bytes, after each message sent to one
    /// connection, and when a turn's publications have been given out: what is added in between may
    /// pass it, for each worker by up to `receiver_buffer_max`. What else a server needs is in its
    /// `ARCHITECTURE.md`.
    pub memory_max: Option<usize>,
    /// What becomes of what is more. Default: [`SlowConsumerPolicy::DropNewest`].
    pub slow: SlowConsumerPolicy,
    /// After how long without a byte from the peer it is sent a ping, and again and again. `None`:
    /// never. Default: 30 s.
    pub ping_interval: Option<Duration>,
    /// After how long without a byte from the peer the connection is closed; the time for which the
    /// connection is [paused](crate::Connection::pause), or the loop stands still, does not count.
    /// `None`: never. Default: 75 s.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may be open; then it is closed with code 1001. `None`: for ever.
    /// Default: `None`.
    pub lifetime_max: Option<Duration>,
    /// How long a connection may take until its request is answered. Default: 10 s.
    pub handshake_timeout: Duration,
    /// How long the peer may take to answer a Close frame, and to take what is sent before it.
    /// Default: 5 s.
    pub close_timeout: Duration,
    /// How long output may wait without the peer's taking any, and the longest time for the last
    /// answer to a client that has asked for pages. `None`: for ever; an answer then has
    /// [`close_timeout`](Self::close_timeout). Default: 60 s.
    pub write_stall_timeout: Option<Duration>,
    /// The most connections of a listener at once; of a [`Server`](crate::Server), of all its
    /// listeners and workers together. More wait in the kernel's backlog. Default: 100 000.
    pub connections_max: usize,
    /// The most connections from one address, and with IPv6 from one /64. Default: `None`.
    pub connections_per_address_max: Option<usize>,
    /// How much waits at a [`Sender`](crate::Sender) for each worker. Default: 4096 messages, 16
    /// MiB.
    pub sender_bounds: Bounds,
    /// How many bytes of compressed messages are inflated in a turn of a worker's loop, counted as
    /// they come out. The connection whose message exceeds that is the last of the turn; further
    /// messages wait for the next turn, in the order in which they came, and their connections are
    /// not read from. Connections without compression do not wait. An eighth is kept for short
    /// messages of connections that have not used much of late, which do not wait for the others.
    /// Default: 2 MiB.
    ///
    /// Each compressed byte counts as 16 at least: see
    /// [`INFLATE_INPUT_COST`](windlass_ws::deflate::INFLATE_INPUT_COST).
    ///
    /// Not bounded by it: the one message, and what [`on_open`](crate::Handler::on_open) and other
    /// callbacks that no message of a peer has caused have compressed.
    pub inflate_bytes_per_turn: usize,
    /// The same for bytes that are deflated, counted as they go in: replies, and publications and
    /// prepared messages, which are compressed once for all receivers. Text takes some ten times
    /// longer to deflate than to inflate. Default: 256 KiB.
    ///
    /// Messages of timers, of a [`Hub`](crate::Hub) and of a [`Sender`](crate::Sender) count, but
    /// do not wait: their number is the application's to bound.
    pub deflate_bytes_per_turn: usize,
    /// How many messages of senders a turn takes before others have theirs. Default: 256.
    pub sender_messages_per_turn: usize,
}

/// The longest header of a frame that a server sends: it has no masking key.
const HEADER_MAX: usize = HEADER_LEN_MAX - 4;

/// So many bytes a connection may send in one pass over received bytes before what it has sent is
/// looked after, if its buffer has room for them.
pub(crate) const SPENT_MAX: usize = 256 << 10;

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// [`receiver_buffer_max`](Options::receiver_buffer_max) cannot hold the longest message with
    /// its header.
    BufferTooSmall {
        /// As it was set.
        receiver_buffer_max: usize,
        /// [`Limits::message_max`], as it was set.
        message_max: usize,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::BufferTooSmall { receiver_buffer_max, message_max } = self;
        let needed = message_max.saturating_add(HEADER_MAX);
        write!(
            f,
            "a receiver's buffer of {receiver_buffer_max} bytes cannot hold the longest message, which takes {needed} with its header: raise receiver_buffer_max, or lower \
             limits.message_max ({message_max})"
        )
    }
}

impl core::error::Error for OptionsError {}

impl From<OptionsError> for io::Error {
    fn from(error: OptionsError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        let mut limits = Limits::DEFAULT;
        (limits.frame_max, limits.message_max) = (1 << 20, 1 << 20);
        Self {
            routes: Routes::everywhere(),
            origins: Origins::default(),
            hosts: Hosts::default(),
            limits,
            head_limits: HeadLimits::DEFAULT,
            deflate: None,
            receiver_buffer_max: 2 << 20,
            memory_max: None,
            slow: SlowConsumerPolicy::DropNewest,
            ping_interval: Some(Duration::from_secs(30)),
            idle_timeout: Some(Duration::from_secs(75)),
            lifetime_max: None,
            handshake_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            write_stall_timeout: Some(Duration::from_secs(60)),
            connections_max: 100_000,
            connections_per_address_max: None,
            sender_bounds: Bounds::items(4096).bytes(16 << 20),
            inflate_bytes_per_turn: 2 << 20,
            deflate_bytes_per_turn: 256 << 10,
            sender_messages_per_turn: 256,
        }
    }

    /// Whether they make sense together: what [`Service::new`](crate::Service::new) and
    /// [`Server::start`](crate::Server::start) ask first.
    ///
    /// # Errors
    /// [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        let (receiver_buffer_max, message_max) =
            (self.receiver_buffer_max, self.limits.message_max);
        if receiver_buffer_max < message_max.saturating_add(HEADER_MAX) {
            return Err(OptionsError::BufferTooSmall { receiver_buffer_max, message_max });
        }
        Ok(())
    }

    /// What a receiver's buffer has beside the longest message.
    fn room(&self) -> usize {
        self.receiver_buffer_max.saturating_sub(self.limits.message_max.saturating_add(HEADER_MAX))
    }

    /// After how many bytes sent a pass over received bytes ends, so that the answer to one more
    /// message fits.
    pub(crate) fn spent_max(&self) -> usize {
        SPENT_MAX.min(self.room() / 4)
    }

    /// How much may wait before a connection is not read from: with what a pass sends, and the
    /// answer to one more message, it is no more than the buffer.
    pub(crate) fn high_mark(&self) -> usize {
        (self.receiver_buffer_max / 2).min(self.room() - self.spent_max())
    }

    /// The settings of the streams, for a listener that is made elsewhere. See
    /// [`listener`](Self::listener).
    pub fn stream(&self) -> StreamOptions {
        StreamOptions::new()
            .watermarks(self.high_mark() / 4, self.high_mark())
            // What may wait is decided before it comes to the stream, where a control frame must
            // not be refused.
            .output_max(usize::MAX)
            .write_stall_timeout(self.write_stall_timeout)
            .linger(self.close_timeout)
    }

    /// The settings of a listener for [`Service::listen`](crate::Service::listen).
    pub fn listener(&self) -> ListenOptions {
        ListenOptions::new().stream(self.stream()).connections_max(self.connections_max)
    }
}
