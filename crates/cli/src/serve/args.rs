//! What `windlass serve` takes, on the command line or in a file.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::ValueEnum;
use windlass::{Backend, stream::StreamOptions};
use windlass_ws::{
    Limits,
    deflate::{Compressor, DeflateConfig},
};

use super::log;
use crate::backend;

/// What `windlass serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// IP address and port to listen on; port 0 takes a free one [default: 127.0.0.1:9001, unless
    /// there is a Unix socket or one from the service manager]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// Path of a Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,

    /// What to do with what clients send
    #[arg(long, value_enum, default_value_t = Mode::Chat)]
    pub(crate) mode: Mode,

    /// A file of options in TOML, by the names they have here; what is given here goes before it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Threads that serve, each with an event loop and its share of the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,

    /// What the event loops run on: epoll, io_uring, or poll(2) where neither is to be had; `auto`
    /// is epoll
    #[arg(long, value_name = "NAME", default_value_t = Backend::Auto, value_parser = backend::parser())]
    pub(crate) backend: Backend,

    /// Bind each worker to a processor
    #[arg(long)]
    pub(crate) pin: bool,

    /// Pages that may open a WebSocket: `same` (of this very host) or an origin like
    /// https://example.com, which may be given several times and together, or `any`
    #[arg(long, value_name = "ORIGIN", default_value = "same")]
    pub(crate) origin: Vec<String>,

    /// A host that clients may ask for by the Host header, without a port: a name or an address,
    /// which may be given several times, or `any` [default: on a loopback address `localhost` and
    /// loopback addresses, elsewhere any]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// Most connections at once, of all places to listen at and all workers together; further ones
    /// wait [default: 10000, or fewer if so many files cannot be open]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: Option<u32>,

    /// Most connections at once of one address (of IPv6, one /64), further ones are closed
    /// [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections_per_address: Option<u32>,

    /// Bytes of output that may wait for a client that does not read; a message that does not fit
    /// comes to what --slow says. It must hold the longest message (--message-max) and a header of
    /// 10 bytes, but in mode raw
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) buffer: u32,

    /// Bytes of memory that may wait for all clients together: output, and messages that have come
    /// in part. Above four fifths of it those that hold the most are not read from, above all of it
    /// they are closed and new requests get 503; not in mode raw [default: a quarter of the
    /// cgroup's memory limit, or of the machine's memory]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) memory: Option<u64>,

    /// What becomes of messages for a client that does not read them fast enough
    #[arg(long, value_enum, default_value_t = SlowConsumerPolicy::DropNewest)]
    pub(crate) slow: SlowConsumerPolicy,

    /// Longest message, in bytes, before and after decompression
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) message_max: u32,

    /// How many times as long a compressed message longer than 256 KiB may become; 0 sets no limit
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) inflate_ratio_max: u32,

    /// Bytes that a worker decompresses in one turn of its loop; further messages wait for the next
    /// turn
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) inflate_per_turn: u32,

    /// Bytes that a worker compresses in one turn of its loop; further messages wait for the next
    /// turn
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) deflate_per_turn: u32,

    /// Compression of messages (permessage-deflate): one compressor for all connections of a
    /// worker, or one for each
    #[arg(long, value_enum, default_value_t = Deflate::Shared)]
    pub(crate) deflate: Deflate,

    /// Seconds that a client has for its handshake
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) handshake_timeout: u32,

    /// Seconds without a byte from a client after which it is sent a ping; 0 sends none [default:
    /// 30, or half of the idle timeout if that is less]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ping_interval: Option<u32>,

    /// Seconds without a byte from a client after which its connection is closed; 0 waits for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) idle_timeout: u32,

    /// Seconds after which a connection is closed whatever it does; 0 does not
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) lifetime_max: u32,

    /// Seconds without a client's taking any of the output that waits for it, after which its
    /// connection is closed; 0 waits for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) write_timeout: u32,

    /// Seconds that connections have to end after SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub(crate) drain_timeout: u32,

    /// How the log on standard error is written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = log::Format::Text)]
    pub(crate) log: log::Format,

    /// How much is logged
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = log::Level::Info)]
    pub(crate) log_level: log::Level,
}

/// What the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Chat rooms at /room/NAME: a message goes to everyone else in the room. /echo sends back;
    /// browsers get a page at / and for each room
    Chat,
    /// WebSocket on every path: each message comes back
    Echo,
    /// Bytes without WebSocket: each comes back as it is
    Raw,
}

/// What becomes of messages for a client that does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowConsumerPolicy {
    /// It misses new ones until it has read
    DropNewest,
    /// It misses the oldest of those that wait
    DropOldest,
    /// Its connection is closed
    Evict,
}

/// Whether and how messages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deflate {
    Off,
    Shared,
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

/// How long a client may be silent before it is asked whether it is there, if nobody says.
const PING_INTERVAL_DEFAULT: u32 = 30;

/// 0 stands for never.
pub(crate) fn seconds(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

impl Args {
    /// A client that only listens must be asked before it counts as gone.
    pub(crate) fn ping_interval(&self) -> u32 {
        let half = if self.idle_timeout > 0 { (self.idle_timeout / 2).max(1) } else { u32::MAX };
        self.ping_interval.unwrap_or(PING_INTERVAL_DEFAULT.min(half))
    }

    /// What `--mode raw` sets its streams to.
    pub(crate) fn stream_options(&self) -> StreamOptions {
        let high = self.buffer as usize;
        StreamOptions::new()
            .watermarks(high / 4, high)
            // One receive's echo more than the high watermark: it is the last that is read.
            .output_max(high + (1 << 20))
            .idle_timeout(seconds(self.idle_timeout))
            .write_stall_timeout(seconds(self.write_timeout))
    }

    pub(crate) fn limits(&self) -> Limits {
        let longest = self.message_max as usize;
        let mut limits = Limits::DEFAULT;
        limits.frame_max = longest;
        limits.message_max = longest;
        limits.inflate_ratio_max = (self.inflate_ratio_max > 0).then_some(self.inflate_ratio_max);
        limits
    }
}
