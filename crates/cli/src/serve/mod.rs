//! `windlass serve`: sets the server up, runs it until a signal, and prints a summary.

mod admin;
pub(crate) mod args;
mod cluster;
mod config_file;
mod counts;
mod hand_over;
mod load_run;
mod log;
mod members;
mod notify;
mod place;
mod proxies;
mod rates;
mod raw;
mod raw_counts;
mod refusal_log;
mod reload;
mod rooms;
mod socket_file;
mod sockets;
mod supervisor;
mod tls;
mod tokens;
mod websocket;

use std::{
    cell::Cell,
    io::{self, Write},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use windlass::stream::{Inherited, InheritedError};

use crate::nofile;
use admin::AdminListener;
use args::Mode;
use hand_over::{Offer, Passed, TakeOver};
use reload::Reloader;
use sockets::Sockets;
use supervisor::{Announcement, ShutdownMode, Supervisor, Watchdog};
use tls::ServerTls;
use tokens::TokenSet;

pub(crate) use {
    args::ServeArgs,
    config_file::{CHECK, CONFIG, arguments as file_arguments},
    reload::{Configuration, Given, ReadConfiguration},
};

/// Serves until SIGINT or SIGTERM, or until its terminal has gone, including on sockets passed by
/// the service manager. SIGHUP reads the configuration again. Writes the listening addresses to
/// `out`, and a line of statistics at the end.
pub(crate) fn run(
    configuration: &Configuration,
    read_again: ReadConfiguration,
    inherited: Result<Vec<Inherited>, InheritedError>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let args = &*configuration.args;
    ensure!(
        args.mode != Mode::Raw || args.hand_over.is_none() && args.take_over.is_none(),
        "--hand-over and --take-over are not available in mode raw, whose clients cannot be told \
         that they should connect again"
    );
    if let Some(path) = &args.check {
        check(args)?;
        return say(out, format_args!("{} is a valid configuration", path.display()));
    }
    let inherited = inherited.context("cannot take over the service manager's sockets")?;
    // Signals must be blocked first, before other threads exist.
    let supervisor = Supervisor::new(args.backend)?;
    let mut parts = vec![log::begin(args.log, args.log_level)];
    args.cluster.check(args.mode)?;
    let connections_max = nofile::connections_max(args.connections, usize::from(args.workers))?;
    let tls = ServerTls::load(args)?;
    let hand_over_limit = Duration::from_secs(args.hand_over_timeout.into());
    let (take_over, mut passed) = match &args.take_over {
        Some(path) => {
            let (take_over, passed) = TakeOver::begin(path, hand_over_limit)?;
            (Some(take_over), passed)
        }
        None => (None, Passed::default()),
    };
    let offer = args.hand_over.as_deref().map(|path| Offer::open(path, &mut passed));
    let offer = offer.transpose()?;
    let mut sockets = Sockets::open(args, inherited, &mut passed)?;
    let mut admin = AdminListener::open(args, tls.as_ref(), &mut passed)?;
    for name in passed.left() {
        tracing::warn!(%name, "a socket of the old server is closed: no option asks for it");
    }
    let mut copies = Vec::new();
    if offer.is_some() {
        copies = sockets.copies().context("cannot copy the sockets")?;
        copies.extend(admin.iter_mut().flat_map(AdminListener::take_copies));
    }
    let server = match args.mode {
        Mode::Raw => raw::start(args, connections_max, &mut sockets, tls.as_ref())?,
        Mode::Chat | Mode::Echo => {
            websocket::start(args, connections_max, &mut sockets, tls.as_ref())?
        }
    };
    let backend = server.backend();
    if let Some(error) = server.ring_error() {
        tracing::warn!(%error, "a worker has no io_uring, and uses epoll instead");
    }
    let counts = server.counts();
    let admin = match (admin, counts.stats_handle()) {
        (Some(admin), Some(stats)) => {
            let address = admin.address().to_owned();
            let admin = admin.start(stats)?;
            say(out, format_args!("admin at {address}"))?;
            tracing::info!(%address, "admin listener");
            let admin = Rc::new(admin);
            parts.push(admin.part());
            Some(admin)
        }
        _ => None,
    };
    if let Some(take_over) = take_over {
        if let Err(error) = take_over.finish(passed.into_taken()) {
            // The old server goes on. Clients that this one has accepted are answered.
            server.shutdown_fn()(ShutdownMode::HandOver);
            server.join().context("a worker failed")?;
            return Err(error);
        }
        sockets.own_files();
        admin.iter().for_each(|admin| admin.own_file());
        offer.iter().for_each(Offer::own_file);
    }
    let offer = offer.map(|offer| offer.start(copies, hand_over_limit)).transpose()?.map(Rc::new);
    if let Some(fingerprint) = tls.as_ref().and_then(ServerTls::fingerprint) {
        say(out, format_args!("self-signed certificate, SHA-256 {fingerprint}"))?;
    }
    for address in &sockets.addresses {
        say(out, format_args!("listening on {address}"))?;
        tracing::info!(%address, workers = args.workers, connections_max, %backend, "listening");
    }
    let connections_max = Rc::new(Cell::new(connections_max));
    parts.push(server.part(&connections_max));
    parts.extend(tls.and_then(|tls| tls.part(args.mode)));
    let counting = admin.clone();
    let note_reload = move |succeeded| {
        if let Some(admin) = &counting {
            admin.note_reload(succeeded);
        }
    };
    let note_reload = Box::new(note_reload);
    let reloader = Reloader::new(read_again, configuration.given.clone(), parts, note_reload);
    notify::ready(&sockets.addresses);
    let drain_delay = Duration::from_secs(args.drain_delay.into());
    let (admin_too, offer_too) = (admin.clone(), offer.clone());
    let announcement = Announcement { drain_delay, admin: admin_too, offer: offer_too };
    let stall_limit = Duration::from_secs(args.stall_limit.into());
    let watchdog = notify::watchdog_period(args.take_over.is_some())
        .map(|period| Watchdog { period, stall_limit });
    let supervisor = supervisor.announcing(announcement).feeding(watchdog);
    let stopped_by = supervisor.run(server, connections_max, reloader)?;
    if let Some((offer, granted)) = offer.as_ref().and_then(|offer| Some((offer, offer.granted()?)))
    {
        sockets.leave_files(&granted.taken);
        admin.iter().for_each(|admin| admin.leave_file(&granted.taken));
        offer.leave_file(&granted.taken);
    }
    drop((admin, sockets, offer));
    let stopped_by = stopped_by.map_or_else(|| "a stop".to_owned(), |cause| cause.to_string());
    tracing::info!(%stopped_by, "stopped");
    say(out, format_args!("stopped by {stopped_by}: {}, on {backend}", counts.summary()))
}

/// Checks the options and the files that they name, except those for NATS, which come with a
/// connection to it.
fn check(args: &ServeArgs) -> anyhow::Result<()> {
    args.cluster.check(args.mode)?;
    admin::check(args)?;
    ServerTls::load(args)?;
    Sockets::check(args)?;
    if args.mode == Mode::Raw {
        return raw::check(args);
    }
    args.options(args.connections.map_or(1, |most| most as usize), false)?;
    args.token_file.as_deref().map(TokenSet::read).transpose()?;
    Ok(())
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
