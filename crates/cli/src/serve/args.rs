//! The options of `windlass serve`, on the command line or in a file.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use windlass::{Backend, stream::StreamOptions};
use windlass_ws::{
    EngineLimits,
    deflate::{Compressor, DeflateConfig},
};

use super::{
    admin::AdminPlace, cluster::ClusterArgs, log, place::ListenPlace, proxies::ProxyArgs,
    rates::RateArgs, socket_file::UnixMode, tls::TlsArgs,
};
use crate::backend;

/// The options of `windlass serve`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// IP address or name, and port, to listen on; port 0 picks a free port. May be repeated. With
    /// http:// before it (in mode raw tcp://) it has no TLS although there is a certificate, as
    /// https:// (tls://) demands [default: 127.0.0.1:9001, unless --unix or the service manager
    /// provides a socket]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Vec<ListenPlace>,

    /// Path of a Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,

    /// Permissions of the file of --unix, in octal, such as 660 [default: those that the umask
    /// leaves]
    #[arg(long, value_name = "MODE", requires = "unix")]
    pub(crate) unix_mode: Option<UnixMode>,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// Offer all listening sockets at this path to the next server, which --take-over starts. The
    /// file is for the same user alone. When that server is ready, this one stops accepting,
    /// answers the requests that it has accepted, drains and exits. Not in mode raw
    #[arg(long, value_name = "PATH")]
    pub(crate) hand_over: Option<PathBuf>,

    /// Take the listening sockets that the server at this path offers. Those of the same --listen,
    /// --unix, --admin and --hand-over are used; others are closed. If this server fails before it
    /// is ready, the old one goes on
    #[arg(long, value_name = "PATH")]
    pub(crate) take_over: Option<PathBuf>,

    /// Time limit in seconds of --hand-over and --take-over, from the connection until the new
    /// server is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) hand_over_timeout: u32,

    /// What the server does with messages from clients
    #[arg(long, value_enum, default_value_t = Mode::Chat)]
    pub(crate) mode: Mode,

    /// TOML file with options, by their long names; options on the command line take precedence.
    /// SIGHUP reads it again, and takes --connections, --connections-per-address, --host,
    /// --inflate-ratio-max, --log-level, --memory, --message-max, --origin, all rates, the options
    /// of proxies, and the files of --tls-*, --token-file and --admin-token-file; the others need a
    /// restart
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Check the options of such a file, and the files that it names, and exit
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub(crate) check: Option<PathBuf>,

    /// Worker threads; each runs an event loop and serves a share of the connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,

    /// Backend of the event loops: epoll, io_uring or poll(2); `auto` is epoll, `uring-or-epoll` is
    /// io_uring where it is available
    #[arg(long, value_name = "NAME", default_value_t = Backend::Auto)]
    #[arg(value_parser = backend::parser())]
    pub(crate) backend: Backend,

    /// Pin each worker to a processor
    #[arg(long)]
    pub(crate) pin: bool,

    /// Allowed origins of pages that open a WebSocket: `same` (the page's host is this one), an
    /// origin such as https://example.com, or `any`; may be repeated
    #[arg(long, value_name = "ORIGIN", default_value = "same")]
    pub(crate) origin: Vec<String>,

    /// Allowed value of the Host header, without a port: a name, an address or `any`; may be
    /// repeated [default: `localhost` and loopback addresses when listening on loopback, else
    /// `any`]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// File with tokens, one a line, of at least 16 visible ASCII characters. A WebSocket must have
    /// one of them: `Authorization: Bearer TOKEN`, or the parameter `token`; others get 401. SIGHUP
    /// reads it again. Not in mode raw [default: none is needed]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Maximum number of connections, over all listeners and workers; further ones wait in the
    /// backlog [default: 10000, or less if the limit of open files is lower]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: Option<u32>,

    /// Maximum number of connections of one address (IPv6: one /64); further ones are closed
    /// [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections_per_address: Option<u32>,

    #[command(flatten)]
    pub(crate) rates: RateArgs,

    #[command(flatten)]
    pub(crate) proxies: ProxyArgs,

    /// Maximum output buffered for one client, in bytes; --slow decides what happens to a message
    /// that does not fit. Must hold the longest message (--message-max) and a header of 10 bytes,
    /// except in mode raw
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) buffer: u32,

    /// Memory budget over all clients in bytes, for buffered output, partial messages and the names
    /// of rooms. Above 80 % the server stops reading from the clients that hold the most; at 100 %
    /// it closes them and answers new requests with 503. Not in mode raw [default: a quarter of the
    /// cgroup's memory limit or of the machine's memory]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) memory: Option<u64>,

    /// Policy for messages to a client that reads too slowly
    #[arg(long, value_enum, default_value_t = SlowPolicy::DropNewest)]
    pub(crate) slow: SlowPolicy,

    /// Maximum length of a message in bytes, compressed and decompressed
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) message_max: u32,

    /// Maximum length of a room's name in bytes, as it is in the path; requests with a longer one
    /// get status 400
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) room_name_max: u32,

    /// Maximum compression ratio of a message that decompresses to more than 256 KiB (0 =
    /// unlimited)
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) inflate_ratio_max: u32,

    /// Maximum number of bytes that a worker decompresses per turn of its event loop; further
    /// messages wait for the next turn
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) inflate_per_turn: u32,

    /// Maximum number of bytes that a worker compresses per turn of its event loop; further
    /// messages wait for the next turn
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) deflate_per_turn: u32,

    /// Message compression (permessage-deflate)
    #[arg(long, value_enum, default_value_t = Deflate::Shared)]
    pub(crate) deflate: Deflate,

    /// Time limit of a handshake in seconds, with that of TLS
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) handshake_timeout: u32,

    /// Ping a client after so many seconds without a byte from it (0 = never) [default: 30, or half
    /// of --idle-timeout if that is less]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ping_interval: Option<u32>,

    /// Close a connection after so many seconds without a byte from its client (0 = never)
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) idle_timeout: u32,

    /// Maximum connection lifetime in seconds (0 = unlimited)
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) lifetime_max: u32,

    /// Close a connection after so many seconds in which its client read none of the buffered
    /// output (0 = never)
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) write_timeout: u32,

    /// Time limit of a graceful shutdown in seconds, after SIGINT or SIGTERM, or when the server's
    /// terminal has gone
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub(crate) drain_timeout: u32,

    /// Time in seconds for which the server still takes new connections after SIGINT or SIGTERM,
    /// while /readyz of --admin answers 503 already: until load balancers have noticed. The
    /// graceful shutdown begins after it
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub(crate) drain_delay: u32,

    /// Leave the live view of the server out of the page: connections, rates, workers, and the
    /// names of the busiest rooms, which every visitor can read
    #[arg(long)]
    pub(crate) no_status: bool,

    /// Listener for the operator, an IP address with a port or the path of a Unix socket. With
    /// https:// before it, it has the TLS of the server. It serves /metrics (for Prometheus),
    /// /healthz, /readyz, /status, /connections and /rooms, and with a token POST /disconnect. Not
    /// in mode raw [default: none]
    #[arg(long, value_name = "ADDR|PATH")]
    pub(crate) admin: Option<AdminPlace>,

    /// File with the bearer token that requests to --admin must have: at least 16 visible ASCII
    /// characters. Required unless --admin is a loopback address or a Unix socket
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// Answer /healthz and /readyz of --admin without the token, for probes that have none
    #[arg(long)]
    pub(crate) admin_open_health: bool,

    /// Time in seconds after which a worker that has not finished a turn of its event loop makes
    /// /healthz and /readyz answer 503, and the service manager's watchdog is not fed
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) stall_limit: u32,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Measure the time of every handler, for the metric windlass_handler_longest_seconds; it reads
    /// the clock twice for each event
    #[arg(long)]
    pub(crate) watchdog: bool,

    /// Format of the log on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = log::Format::Text)]
    pub(crate) log: log::Format,

    /// Lowest level that is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = log::Level::Info)]
    pub(crate) log_level: log::Level,
}

/// What the server does with messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Chat rooms at /room/NAME: a message goes to everyone else in the room. /echo echoes.
    /// Browsers get a page at / and for each room
    #[default]
    Chat,
    /// WebSocket echo on every path
    Echo,
    /// Echo of bytes over TCP, without WebSocket
    Raw,
}

/// The policy for a client that does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowPolicy {
    /// Drop new messages until the client has read
    DropNewest,
    /// Drop the oldest buffered messages
    DropOldest,
    /// Close the connection of the client
    Evict,
}

/// Whether and how messages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deflate {
    /// No compression
    Off,
    /// One compressor per worker: each message is compressed alone
    Shared,
    /// One compressor per connection: messages are compressed with the previous ones, which takes
    /// more memory
    Dedicated,
}

impl Deflate {
    pub(crate) fn config(self) -> Option<DeflateConfig> {
        let compressor = match self {
            Self::Off => return None,
            Self::Shared => Compressor::Shared,
            Self::Dedicated => Compressor::Dedicated,
        };
        let mut config = DeflateConfig::DEFAULT;
        config.compressor = compressor;
        Some(config)
    }
}

/// The option for the length of names, for messages.
pub(crate) const ROOM_NAME_OPTION: &str = "--room-name-max";

/// Default time without a byte from a client before the server pings it, in seconds.
const PING_INTERVAL_DEFAULT: u32 = 30;

/// Converts a number of seconds to a duration. 0 means never.
pub(crate) fn seconds(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

impl ServeArgs {
    /// Returns the ping interval in seconds. A client that only listens must be pinged before the
    /// idle timeout.
    pub(crate) fn ping_interval(&self) -> u32 {
        let half = if self.idle_timeout > 0 { (self.idle_timeout / 2).max(1) } else { u32::MAX };
        self.ping_interval.unwrap_or(PING_INTERVAL_DEFAULT.min(half))
    }

    /// Returns the stream options of `--mode raw`.
    pub(crate) fn stream_options(&self) -> StreamOptions {
        let high = self.buffer as usize;
        StreamOptions::new()
            .watermarks(high / 4, high)
            // Reading pauses above the high watermark, after the echo of one more receive.
            .output_max(high + (1 << 20))
            .idle_timeout(seconds(self.idle_timeout))
            .write_stall_timeout(seconds(self.write_timeout))
    }

    pub(crate) fn limits(&self) -> EngineLimits {
        let longest = self.message_max as usize;
        let mut limits = EngineLimits::DEFAULT;
        limits.frame_max = longest;
        limits.message_max = longest;
        limits.inflate_ratio_max = (self.inflate_ratio_max > 0).then_some(self.inflate_ratio_max);
        limits
    }
}
