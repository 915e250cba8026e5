//! The settings of a service.

use core::fmt;
use std::{io, time::Duration};

use windlass::stream::{ListenOptions, StreamOptions};
use windlass_flow::Bounds;
use windlass_ws::{EngineLimits, HEADER_LEN_MAX, deflate::DeflateConfig, handshake::HeadLimits};

use super::rate::RateLimits;
use crate::http::{Hosts, Origins, Proxies, Routes};

/// Decides what happens to a message whose receiver has too many bytes waiting.
///
/// Control frames are never dropped. A connection's own output first stops its reading. Its
/// messages are rejected only if one callback sends more than the limit.
///
/// ```
/// use windlass_server::{Options, SlowConsumerPolicy};
///
/// let mut options = Options::new();
/// assert_eq!(options.slow, SlowConsumerPolicy::DropNewest);
/// // Prices: the newest one counts.
/// options.slow = SlowConsumerPolicy::DropOldest;
/// options.receiver_buffer_max = 4 << 20;
/// assert_eq!(options.check(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SlowConsumerPolicy {
    /// The message is dropped, and the sender gets an error.
    #[default]
    DropNewest,
    /// The message replaces the oldest waiting messages that are not yet being sent. This suits
    /// states where a newer one supersedes an older one.
    DropOldest,
    /// The message is dropped and the connection is closed. This suits receivers that must not miss
    /// a message and will reconnect.
    Evict,
}

/// The settings of a [`Service`](crate::Service) or [`Server`](crate::Server). Each field documents
/// its default.
///
/// ```
/// use std::time::Duration;
/// use windlass_server::{
///     Address, Bounds, DeflateConfig, EngineLimits, HeadLimits, Options, Server,
///     SlowConsumerPolicy,
/// };
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
/// let limits: &mut EngineLimits = &mut options.limits;
/// limits.message_max = 64 << 10;
/// let heads: &mut HeadLimits = &mut options.head_limits;
/// heads.headers_max = 40;
/// options.deflate = Some(DeflateConfig::default());
/// // Calls of a `Sender` wait while so many messages are queued.
/// options.sender_bounds = Bounds::items(1000);
/// options.idle_timeout = Some(Duration::from_secs(20));
/// options.ping_interval = Some(Duration::from_secs(8));
/// options.connections_max = 1000;
/// options.connections_per_address_max = Some(10);
/// // A client that does not read is closed, because late messages are of no use to it.
/// options.slow = SlowConsumerPolicy::Evict;
/// let server = Server::new(options, |_worker| Echo).listen("127.0.0.1:0".parse()?).start()?;
/// let address: &Address = &server.addresses()[0];
/// println!("listening on {address}");
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Paths that accept upgrades, and the pages served. Default: upgrades on every path, no page.
    pub routes: Routes,
    /// Origins that may connect. Default: pages of the same host.
    pub origins: Origins,
    /// Hosts that clients may ask for; other requests get status 421. Default: `localhost` and
    /// loopback addresses if the listener is on a loopback address, otherwise all hosts. If a proxy
    /// on the same machine passes the Host header on, the server's own name must be listed.
    pub hosts: Hosts,
    /// Limits on input from a peer: frames, messages, fragments, control frames. Default:
    /// [`EngineLimits::DEFAULT`], with frames and messages of at most 1 MiB.
    pub limits: EngineLimits,
    /// Limits on the head of a request. Default: [`HeadLimits::DEFAULT`].
    pub head_limits: HeadLimits,
    /// Whether and how messages are compressed. Default: `None` (no compression).
    pub deflate: Option<DeflateConfig>,
    /// Maximum number of bytes that wait for one receiver. A message that does not fit with its
    /// header is handled by [`slow`](Self::slow), even if nothing else waits.
    ///
    /// The limit must hold the longest message of [`limits`](Self::limits) and its header of up to
    /// 10 bytes ([`OptionsError::BufferTooSmall`]). A connection's reading stops at a high
    /// watermark, before the answer to the longest message might no longer fit. With the defaults
    /// that is above 768 KiB, and reading continues at a quarter of that. If the limit is hardly
    /// longer than one message, answers to one receive (64 KiB) may exceed it by as much. Default:
    /// 2 MiB.
    pub receiver_buffer_max: usize,
    /// Maximum memory in bytes for data that waits on all connections of a service, or of a
    /// [`Server`](crate::Server) with all its workers. It covers output, held input, partly
    /// received messages and requests, and topics with their names and subscriptions. A message
    /// that waits for several receivers counts once per worker, and so does a topic.
    ///
    /// Above four fifths of it, its high watermark, the connections that hold the most are not read
    /// from. Above all of it, the largest are closed as by [`SlowConsumerPolicy::Evict`], and new
    /// requests get status 503 for up to a second. `None`: a quarter of the memory limit of the
    /// process' cgroup, or of the machine's memory if that is less. Default: `None`.
    ///
    /// TLS handshakes are covered too, by an estimate. Connections with TLS are rejected above the
    /// high watermark.
    ///
    /// The limit is checked after each pass over received bytes, after each message sent to one
    /// connection, and after each publication. What is added in between may exceed it, for each
    /// worker by up to twice `receiver_buffer_max`. `docs/server.md` of the repository derives
    /// this, and lists the other memory that a server needs.
    pub memory_max: Option<usize>,
    /// Policy for messages beyond the limit, and for what one publication adds above
    /// [`memory_max`](Self::memory_max) to receivers for which output waits. With
    /// [`SlowConsumerPolicy::Evict`] these are closed too, so that no message is missing unnoticed;
    /// they count in `Stats::evicted_for_memory`. Default: [`SlowConsumerPolicy::DropNewest`].
    pub slow: SlowConsumerPolicy,
    /// Time without a byte from the peer after which a ping is sent, and repeated. `None`: never.
    /// Default: 30 s.
    pub ping_interval: Option<Duration>,
    /// Time without a byte from the peer after which the connection is closed. Time while the
    /// connection is [paused](crate::Connection::pause), or while the loop is blocked, does not
    /// count. `None`: never. Default: 75 s.
    pub idle_timeout: Option<Duration>,
    /// Maximum lifetime of a connection, after which it is closed with code 1001. `None`:
    /// unlimited. Default: `None`.
    pub lifetime_max: Option<Duration>,
    /// Maximum time until a connection's request is answered, with its TLS handshake. Default:
    /// 10 s.
    pub handshake_timeout: Duration,
    /// Maximum time for the peer to read the remaining output and to answer a Close frame. Default:
    /// 5 s.
    pub close_timeout: Duration,
    /// Maximum time that output waits while the peer reads none of it. It is also the maximum time
    /// to send the last response to a client that requested pages. `None`: unlimited; that last
    /// response then has [`close_timeout`](Self::close_timeout). Default: 60 s.
    pub write_stall_timeout: Option<Duration>,
    /// Maximum number of open connections of a listener, or of all listeners and workers of a
    /// [`Server`](crate::Server) together. Further connections wait in the kernel's backlog.
    /// Default: 100 000.
    pub connections_max: usize,
    /// Maximum number of connections from one address; for IPv6, from one /64. Default: `None`.
    pub connections_per_address_max: Option<usize>,
    /// What happens to connections beyond [`connections_max`](Self::connections_max). `true`: up to
    /// 256 further ones are accepted, and their requests get status 503 with `Retry-After`, unless
    /// there is room by then. Only beyond these do they wait. Default: `false`, all of them wait in
    /// the backlog.
    pub reject_when_full: bool,
    /// Maximum rates of connections, requests and messages. Default: none.
    pub rates: RateLimits,
    /// Proxies whose statements about clients are believed. Default: none.
    pub proxies: Proxies,
    /// Maximum number of upgrades of each worker that wait for a decision: see
    /// [`decide_upgrade`](crate::Handler::decide_upgrade). Default: 1024.
    pub pending_upgrades_max: usize,
    /// Bounds of the queue from [`Sender`](crate::Sender) to each worker. Default: 4096 messages,
    /// 16 MiB.
    pub sender_bounds: Bounds,
    /// Bytes of compressed messages that a worker's loop inflates in one turn, counted as output.
    /// The connection whose message exceeds the budget is the last of the turn. Further messages
    /// wait for the next turn, in the order of arrival, and their connections are not read from.
    /// Connections without compression do not wait. An eighth of the budget is reserved for short
    /// messages of connections with little recent use, which do not wait for the others. Default: 2
    /// MiB.
    ///
    /// Each compressed byte counts as at least 16: see
    /// [`INFLATE_INPUT_COST`](windlass_ws::deflate::INFLATE_INPUT_COST).
    ///
    /// The budget does not bound that one message. It also does not bound compression requested by
    /// [`on_open`](crate::Handler::on_open) or other callbacks that no message of a peer has
    /// caused.
    pub inflate_bytes_per_turn: usize,
    /// Bytes that a worker's loop deflates in one turn, counted as input: replies, and publications
    /// and prepared messages, which are compressed once for all receivers. Deflating text takes
    /// far longer than inflating it. Default: 256 KiB.
    ///
    /// Messages of timers, of a [`Hub`](crate::Hub) and of a [`Sender`](crate::Sender) count but do
    /// not wait. The application must bound their number.
    pub deflate_bytes_per_turn: usize,
    /// Whether connections may watch the status of the server:
    /// [`Connection::watch_status`](crate::Connection::watch_status). Default: no.
    pub live_status: bool,
    /// Maximum number of senders' messages that are processed in one turn. Default: 256.
    pub sender_messages_per_turn: usize,
    /// Maximum length in bytes of the name of a topic that a connection subscribes to
    /// ([`SubscribeError::TooLong`](crate::SubscribeError::TooLong)). A topic with a longer name
    /// has no subscribers, so nobody gets its publications. Default: 256.
    pub topic_len_max: usize,
    /// See [`ordered_topics`](Self::ordered_topics).
    pub(crate) ordered_prefixes: Vec<Box<str>>,
}

/// The maximum number of prefixes of ordered topics. Each publication is compared with them.
const ORDERED_PREFIXES_MAX: usize = 64;

/// How many connections beyond the maximum are accepted at a time only to reject their requests.
const REJECTED_MAX: usize = 256;

/// The longest frame header that a server sends, which has no masking key.
const HEADER_MAX: usize = HEADER_LEN_MAX - 4;

/// Maximum number of bytes that a connection sends in one pass over received bytes before the pass
/// ends, if its buffer has room for them.
pub(crate) const PASS_OUTPUT_MAX: usize = 256 << 10;

/// Why settings are rejected.
///
/// ```
/// use windlass_server::{Options, OptionsError};
///
/// let mut options = Options::new();
/// options.receiver_buffer_max = 1000;
/// assert!(matches!(options.check(), Err(OptionsError::BufferTooSmall { .. })));
/// options.limits.message_max = 900;
/// assert_eq!(options.check(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// [`receiver_buffer_max`](Options::receiver_buffer_max) cannot hold the longest message with
    /// its header.
    BufferTooSmall {
        /// The configured value.
        receiver_buffer_max: usize,
        /// The configured [`EngineLimits::message_max`].
        message_max: usize,
    },
    /// The burst of [`RateLimits::message_bytes`] cannot hold the longest message.
    BurstTooSmall {
        /// The configured burst.
        burst: u64,
        /// The configured [`EngineLimits::message_max`].
        message_max: usize,
    },
    /// There are more than 64 prefixes of [`ordered_topics`](Options::ordered_topics).
    TooManyOrderedTopics {
        /// Number of prefixes.
        prefixes: usize,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall { receiver_buffer_max, message_max } => {
                let needed = message_max.saturating_add(HEADER_MAX);
                write!(
                    f,
                    "a receiver's buffer of {receiver_buffer_max} bytes cannot hold the longest \
                     message, which takes {needed} with its header: raise receiver_buffer_max, or \
                     lower limits.message_max ({message_max})"
                )
            }
            Self::BurstTooSmall { burst, message_max } => write!(
                f,
                "a burst of {burst} bytes cannot hold the longest message: raise the burst of \
                 rates.message_bytes, or lower limits.message_max ({message_max})"
            ),
            Self::TooManyOrderedTopics { prefixes } => write!(
                f,
                "{prefixes} prefixes of ordered topics are more than {ORDERED_PREFIXES_MAX}: use \
                 a common one"
            ),
        }
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
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        let mut limits = EngineLimits::DEFAULT;
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
            reject_when_full: false,
            rates: RateLimits::default(),
            proxies: Proxies::default(),
            pending_upgrades_max: 1024,
            sender_bounds: Bounds::items(4096).bytes(16 << 20),
            inflate_bytes_per_turn: 2 << 20,
            deflate_bytes_per_turn: 256 << 10,
            live_status: false,
            sender_messages_per_turn: 256,
            topic_len_max: 256,
            ordered_prefixes: Vec::new(),
        }
    }

    /// Gives each topic that begins with `prefix` one order: all its subscribers see its
    /// publications in the same order, whichever worker of a [`Server`](crate::Server) serves them.
    /// May be called for up to 64 prefixes. The empty prefix means all topics. Default: none, which
    /// keeps the order of each publishing worker only.
    ///
    /// Each such topic has one worker as its owner, chosen by a hash of its name. A publication by
    /// another worker or by a [`Sender`](crate::Sender) goes to the queue of the owner, and from
    /// there to all workers. With one worker nothing changes. With several:
    ///
    /// - Subscribers on the publisher's own worker get the message at least one turn later, so
    ///   messages sent directly after it may arrive before it. A publication reaches those who are
    ///   subscribed when it arrives at their worker.
    /// - If the queue of the owner is full ([`sender_bounds`](Self::sender_bounds)), nobody gets
    ///   the message. If another queue is full, the subscribers of that worker do not. Both count
    ///   in [`lost_between_workers`](crate::ServerStats::lost_between_workers). The subscribers see
    ///   a gap, and never another order.
    /// - A [`Sender`](crate::Sender) gets the errors of the owner's queue, and waits for no other.
    /// - In a [cluster](crate::Server::cluster) each node has one order. All nodes see the
    ///   publications of one node in the same order, but may see those of several nodes in
    ///   different orders.
    ///
    /// ```
    /// use windlass_server::Options;
    ///
    /// let mut options = Options::new();
    /// options.ordered_topics("game/");
    /// options.ordered_topics("auction/");
    /// assert_eq!(options.check(), Ok(()));
    /// ```
    pub fn ordered_topics(&mut self, prefix: &str) {
        self.ordered_prefixes.push(prefix.into());
    }

    /// Checks that the settings are consistent. [`Service::new`](crate::Service::new) and
    /// [`Server::start`](crate::Server::start) call this first.
    ///
    /// # Errors
    /// - [`OptionsError::BufferTooSmall`] if the receiver's buffer cannot hold the longest message.
    /// - [`OptionsError::BurstTooSmall`] if the rate of bytes allows no message of the maximum
    ///   length.
    /// - [`OptionsError::TooManyOrderedTopics`] if there are more than 64 prefixes of
    ///   [`ordered_topics`](Self::ordered_topics).
    pub fn check(&self) -> Result<(), OptionsError> {
        let (receiver_buffer_max, message_max) =
            (self.receiver_buffer_max, self.limits.message_max);
        if receiver_buffer_max < message_max.saturating_add(HEADER_MAX) {
            return Err(OptionsError::BufferTooSmall { receiver_buffer_max, message_max });
        }
        if let Some(burst) = self.rates.message_bytes.map(|rate| rate.burst()) {
            if burst < message_max as u64 {
                return Err(OptionsError::BurstTooSmall { burst, message_max });
            }
        }
        let prefixes = self.ordered_prefixes.len();
        if prefixes > ORDERED_PREFIXES_MAX {
            return Err(OptionsError::TooManyOrderedTopics { prefixes });
        }
        Ok(())
    }

    /// Room that a receiver's buffer has beyond the longest message.
    fn room(&self) -> usize {
        self.receiver_buffer_max.saturating_sub(self.limits.message_max.saturating_add(HEADER_MAX))
    }

    /// Number of sent bytes after which a pass over received bytes ends, so that the answer to one
    /// more message still fits.
    pub(crate) fn pass_output_max(&self) -> usize {
        PASS_OUTPUT_MAX.min(self.room() / 4)
    }

    /// High watermark of waiting bytes, above which a connection is not read from. Together with
    /// the output of one pass and the answer to one more message, it does not exceed the buffer.
    pub(crate) fn high_watermark(&self) -> usize {
        (self.receiver_buffer_max / 2).min(self.room() - self.pass_output_max())
    }

    /// Returns the stream settings, for a listener created elsewhere. See
    /// [`listener`](Self::listener).
    pub fn stream(&self) -> StreamOptions {
        StreamOptions::new()
            .watermarks(self.high_watermark() / 4, self.high_watermark())
            // The limit is enforced before output reaches the stream, which must not reject a
            // control frame.
            .output_max(usize::MAX)
            .write_stall_timeout(self.write_stall_timeout)
            .tls_handshake_timeout(self.handshake_timeout)
            .linger(self.close_timeout)
    }

    /// Maximum number of connections that are accepted.
    pub(crate) fn accepted_max(&self) -> usize {
        let rejected = if self.reject_when_full { REJECTED_MAX } else { 0 };
        self.connections_max.saturating_add(rejected)
    }

    /// Returns the settings of a listener for [`Service::listen`](crate::Service::listen).
    pub fn listener(&self) -> ListenOptions {
        ListenOptions::new().stream(self.stream()).connections_max(self.accepted_max())
    }
}
