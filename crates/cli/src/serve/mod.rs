//! `windlass serve`: sets the server up, runs it until a signal, and prints a summary.

mod admin;
pub(crate) mod args;
mod cluster;
mod config_file;
mod counts;
mod log;
mod members;
mod raw;
mod raw_counts;
mod refusal_log;
mod rooms;
mod sockets;
mod supervisor;
mod tls;
mod websocket;

use std::io::{self, Write};

use anyhow::Context as _;
use windlass::stream::{Inherited, InheritedError};

use crate::nofile;
use admin::AdminListener;
use args::Mode;
use sockets::Sockets;
use supervisor::Supervisor;
use tls::ServerTls;

pub(crate) use {
    args::ServeArgs,
    config_file::{CONFIG, arguments as file_arguments},
};

/// Serves until SIGINT or SIGTERM, or SIGHUP without certificate files, including on sockets passed
/// by the service manager. Writes the listening addresses to `out`, and a line of statistics at the
/// end.
pub(crate) fn run(
    args: &ServeArgs,
    inherited: Result<Vec<Inherited>, InheritedError>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let inherited = inherited.context("cannot take over the service manager's sockets")?;
    // Signals must be blocked first, before other threads exist.
    let supervisor = Supervisor::new(args.backend, args.tls.has_files())?;
    log::begin(args.log, args.log_level);
    args.cluster.check(args.mode)?;
    let connections_max = nofile::connections_max(args.connections, usize::from(args.workers))?;
    let tls = ServerTls::load(args)?;
    let mut sockets = Sockets::open(args, inherited)?;
    let admin = AdminListener::open(args)?;
    let server = match args.mode {
        Mode::Raw => raw::start(args, connections_max, &mut sockets, tls.as_ref())?,
        Mode::Chat | Mode::Echo => {
            websocket::start(args, connections_max, &mut sockets, tls.as_ref())?
        }
    };
    let backend = server.backend();
    let counts = server.counts();
    let admin = match (admin, counts.stats_handle()) {
        (Some(admin), Some(stats)) => {
            let address = admin.address().to_owned();
            let admin = admin.start(stats)?;
            say(out, format_args!("admin at {address}"))?;
            tracing::info!(%address, "admin listener");
            Some(admin)
        }
        _ => None,
    };
    if let Some(fingerprint) = tls.as_ref().and_then(ServerTls::fingerprint) {
        say(out, format_args!("self-signed certificate, SHA-256 {fingerprint}"))?;
    }
    for address in &sockets.addresses {
        say(out, format_args!("listening on {address}"))?;
        tracing::info!(%address, workers = args.workers, connections_max, %backend, "listening");
    }
    let reload = tls.and_then(ServerTls::reload_fn);
    let stopped_by = supervisor.run(server, connections_max, reload)?;
    drop((admin, sockets));
    let stopped_by = stopped_by.map_or_else(|| "a stop".to_owned(), supervisor::name);
    tracing::info!(%stopped_by, "stopped");
    say(out, format_args!("stopped by {stopped_by}: {}, on {backend}", counts.summary()))
}

/// Writes a line. A closed reader is not a failure: `windlass serve | head -1` closes its end
/// early.
fn say(out: &mut impl Write, line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to the output")
        }
        _ => Ok(()),
    }
}
