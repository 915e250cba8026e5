//! `windlass serve`: sets the server up, runs it until a signal, and says what it did.

use std::{
    cell::RefCell,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;
use windlass::{
    Signal, SignalSet,
    stream::{ListenOptions, StreamOptions, Worker, Workers},
};
use windlass_ws::{
    Config, Limits, Scratch,
    deflate::{Compressor, DeflateConfig},
};

use crate::{
    counts::Counts,
    nofile,
    sockets::Sockets,
    websocket::Shared,
    worker::{Site, lock},
};

/// What `windlass serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// IP address and port to listen on; port 0 takes a free one [default: 127.0.0.1:9001, unless there is a Unix socket or one from the service manager]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// Path of a Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// What to speak with clients
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    pub(crate) mode: Mode,

    /// Threads that serve, each with an event loop and its share of the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,

    /// Bind each worker to a processor
    #[arg(long)]
    pin: bool,

    /// Most connections at once, further ones wait [default: 10000, or fewer if so many files cannot be open]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: Option<u32>,

    /// Bytes of output that may wait for a client; above that nothing more is read from it until it has read
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    buffer: u32,

    /// Longest message, in bytes, before and after decompression
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    message_max: u32,

    /// Compression of messages (permessage-deflate): one compressor for all connections of a worker, or one for each
    #[arg(long, value_enum, default_value_t = Deflate::Shared)]
    deflate: Deflate,

    /// Seconds that a client has for its handshake
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    handshake_timeout: u32,

    /// Seconds without a byte from a client after which its connection is closed; 0 waits for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u32,

    /// Seconds without a client's taking any of the output that waits for it, after which its connection is closed; 0 waits for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    write_timeout: u32,
}

/// What the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// WebSocket on every path: each message comes back
    Echo,
    /// Bytes: each comes back as it is
    Raw,
}

/// Whether and how messages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Deflate {
    Off,
    Shared,
    Dedicated,
}

impl Deflate {
    fn config(self) -> Option<DeflateConfig> {
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

impl Args {
    fn stream_options(&self) -> StreamOptions {
        let high = self.buffer as usize;
        let seconds = |seconds: u32| (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        StreamOptions::new()
            .marks(high / 4, high)
            // One message's echo more than the high mark: it is the last that is read.
            .output_max(high + 2 * self.message_max as usize + (1 << 20))
            .idle_timeout(seconds(self.idle_timeout))
            .write_stall_timeout(seconds(self.write_timeout))
    }

    pub(crate) fn shared(&self, counts: &Arc<Counts>) -> Shared {
        let longest = self.message_max as usize;
        let mut limits = Limits::DEFAULT;
        limits.frame_max = longest;
        limits.message_max = longest;
        let mut scratch = Scratch::new();
        // The first second; the worker's timer tells of the others. Without it control frames would not be counted yet.
        scratch.set_second(0);
        Shared {
            counts: Arc::clone(counts),
            config: Arc::new(Config::server().with_limits(limits)),
            deflate: self.deflate.config(),
            handshake_timeout: Duration::from_secs(self.handshake_timeout.into()),
            scratch: RefCell::new(scratch),
        }
    }
}

/// Serves until SIGINT or SIGTERM. Writes the addresses it listens on to `out`, and at the end a line of statistics.
pub(crate) fn run(args: Args, out: &mut impl Write) -> anyhow::Result<()> {
    // Before anything else, and before there are other threads, which block the signals too: one that comes while the server starts
    // waits for the first worker.
    let signals = SignalSet::new([Signal::INT, Signal::TERM]).context("cannot receive signals")?;
    let count = usize::from(args.workers);
    let connections_max = nofile::connections_max(args.connections, count)?.div_ceil(count);
    let options = ListenOptions::new().stream(args.stream_options()).connections_max(connections_max);
    let mut sockets = Sockets::open(args.listen, args.unix.as_deref(), count, options)?;
    let listeners = Mutex::new(std::mem::take(&mut sockets.workers));
    let (counts, stopped_by) = (Arc::new(Counts::default()), Arc::new(Mutex::new(None)));
    let workers = Workers::new(count).pinned(args.pin);
    let site = Site { args, connections_max, counts: Arc::clone(&counts), stopped_by: Arc::clone(&stopped_by) };
    let set_up = move |worker: Worker| {
        let listeners = std::mem::take(&mut lock(&listeners)[worker.index]);
        site.set_up(worker, listeners).map_err(io::Error::other)
    };
    let running = workers.start(set_up).context("cannot start the workers")?;
    for place in &sockets.places {
        say(out, format_args!("listening on {place}"))?;
    }
    running.join().context("a worker failed")?;
    drop((sockets, signals));
    let stopped_by = lock(&stopped_by).map_or_else(|| "a stop".to_owned(), |signal| format!("{signal:?}"));
    say(out, format_args!("stopped by {stopped_by}: {counts}"))
}

/// Writes a line. That nobody reads any more is no reason to fail: `windlass serve | head -1` closes its end early.
fn say(out: &mut impl Write, line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to the output"),
        _ => Ok(()),
    }
}
