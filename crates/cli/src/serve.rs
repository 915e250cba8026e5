//! `windlass serve`: sets the server up, runs it until a signal, and says what it did.

use std::{
    cell::Cell,
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    rc::Rc,
};

use anyhow::Context as _;
use clap::ValueEnum;
use windlass::{Event, Reactor, Signal, SignalSet, Turn, interest};

use crate::{accept, nofile, server::Server};

/// How many connections the kernel keeps while nobody accepts; it caps this at `net.core.somaxconn`.
const BACKLOG_MAX: i32 = 4096;

/// Subscribers beside the connections: the listener, the signals, and the reactor's own.
const OTHER_SUBSCRIBERS: usize = 8;

/// What `windlass serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// IP address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001")]
    pub(crate) listen: SocketAddr,

    /// What to speak with clients
    #[arg(long, value_enum, default_value_t = Mode::Raw)]
    mode: Mode,

    /// Most connections at once, further ones wait [default: 10000, or fewer if so many files cannot be open]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: Option<u32>,

    /// Most bytes kept for a client that does not read; nothing more is read from it until it does
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    buffer: u32,
}

/// What the server speaks.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Bytes: each comes back as it is
    Raw,
}

/// Serves until SIGINT or SIGTERM. Writes the address it listens on to `out`, and at the end a line of statistics.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    // Before anything else: a signal that comes while the server starts stops it, too.
    let signals = SignalSet::new([Signal::INT, Signal::TERM]).context("cannot receive signals")?;
    let connections_max = nofile::connections_max(args.connections)?;
    let server = Rc::new(Server::new(connections_max, args.buffer as usize));
    let mut reactor = Reactor::builder()
        .subscribers_max(connections_max + OTHER_SUBSCRIBERS)
        .build()
        .map_err(io::Error::from)
        .context("cannot build the reactor")?;

    let stopped_by = stop_on(signals, &mut reactor)?;
    let listener = listen(args.listen).with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr().context("cannot tell the address")?;
    match args.mode {
        Mode::Raw => {
            let server = Rc::clone(&server);
            interest()
                .read()
                .with_fd(listener)
                .with_handler(move |listener: &mut TcpListener, event: Event, turn: Turn<'_, _>| {
                    accept::on_ready(&server, listener, event, turn);
                })
                .register_into(&mut reactor)
                .map_err(io::Error::from)
                .context("cannot watch the listener")?;
        }
    }
    say(out, format_args!("listening on {address}"))?;
    reactor.run().context("the reactor failed")?;
    if let Some(failure) = server.take_failure() {
        return Err(failure);
    }
    let stats = reactor.stats();
    let stopped_by = stopped_by.get().map_or_else(|| "a stop".to_owned(), |signal| format!("{signal:?}"));
    say(out, format_args!("stopped by {stopped_by}: {}, {} events", server.counts(), stats.events))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // Listening again changes nothing but the backlog (listen(2)); std's 128 overflow when many clients come at once.
    rustix::net::listen(&listener, BACKLOG_MAX)?;
    Ok(listener)
}

/// Makes either signal stop the reactor; the cell says afterwards which one came.
fn stop_on(signals: SignalSet, reactor: &mut Reactor) -> anyhow::Result<Rc<Cell<Option<Signal>>>> {
    let stopped_by = Rc::new(Cell::new(None));
    let came = Rc::clone(&stopped_by);
    interest()
        .read()
        .with_fd(signals)
        .with_handler(move |signals: &mut SignalSet, mut turn: Turn<'_, _>| {
            // A read that fails cannot be tried again in any better way, and somebody did ask for the end.
            came.set(signals.read().ok().and_then(|received| received.iter().next()));
            turn.stop();
        })
        .register_into(reactor)
        .map_err(io::Error::from)
        .context("cannot watch for signals")?;
    Ok(stopped_by)
}

/// Writes a line. That nobody reads any more is no reason to fail: `windlass serve | head -1` closes its end early.
fn say(out: &mut impl Write, line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to the output"),
        _ => Ok(()),
    }
}
