//! `--mode raw`: echoes received bytes.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use windlass::{
    Backend, Builder, Key, Reactor, RingError, Turn,
    stream::{
        DisconnectReason, Input, ListenOptions, ListenerKey, Peer, RunningWorkers, Stream,
        StreamHandler, StreamLimit, TlsSessionFactory, Worker, Workers,
    },
};

use super::{
    args::ServeArgs,
    counts::ServerCounts,
    raw_counts::{RawCounts, add},
    reload::{Apply, Part},
    sockets::Sockets,
    supervisor::{ConnectionsMax, ServerControl, ShutdownMode},
    tls::ServerTls,
};
use crate::nofile;

/// Limit of subscribers of a worker: the most connections that --connections allows, its listeners
/// and the reactor's own.
const SUBSCRIBERS_MAX: usize = 1_000_000 + 1100;

/// One connection. It has no state: output that the client has not read waits in its stream.
struct RawHandler {
    counts: Arc<RawCounts>,
}

impl StreamHandler for RawHandler {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.counts.opened();
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let length = input.len();
        match stream.reply(input, ..) {
            Ok(()) => add(&self.counts.bytes, length as u64),
            // Reading stops above the high watermark, so this does not happen. Bytes must not be
            // lost silently.
            Err(_) => stream.abort(),
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        add(&self.counts.reading_paused, 1);
        stream.pause();
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        stream.resume();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.counts.closed(reason != DisconnectReason::Closed);
    }
}

/// The workers and their counts.
struct RawServer {
    workers: RunningWorkers,
    counts: Arc<RawCounts>,
    limit: StreamLimit,
}

impl ServerControl for RawServer {
    fn backend(&self) -> Backend {
        self.workers.backend()
    }

    fn ring_error(&self) -> Option<RingError> {
        self.workers.ring_error()
    }

    fn counts(&self) -> ServerCounts {
        ServerCounts::Raw(Arc::clone(&self.counts))
    }

    fn shutdown_fn(&self) -> Box<dyn Fn(ShutdownMode)> {
        // The protocol has no way to notify a client of the end.
        let stops = self.workers.stops().to_vec();
        Box::new(move |_| stops.iter().for_each(windlass::Stop::stop))
    }

    fn part(&self, shown: &ConnectionsMax) -> Part {
        let (limit, shown, workers) =
            (self.limit.clone(), shown.clone(), self.workers.stops().len());
        let prepare = move |args: &ServeArgs| -> anyhow::Result<Apply> {
            let connections_max = nofile::connections_max(args.connections, workers)?;
            let (limit, shown) = (limit.clone(), shown.clone());
            Ok(Box::new(move || {
                limit.set_max(connections_max);
                shown.set(connections_max);
            }))
        };
        Part { options: &["connections"], prepare: Box::new(prepare) }
    }

    fn join(self: Box<Self>) -> io::Result<()> {
        self.workers.join()
    }
}

/// Checks that no option is given that needs WebSocket.
pub(crate) fn check(args: &ServeArgs) -> anyhow::Result<()> {
    ensure!(
        args.rates.is_default() && args.proxies.is_default() && args.token_file.is_none(),
        "rates (--*-rate*), --when-full, proxies (--*-from) and --token-file are not available in \
         mode raw"
    );
    Ok(())
}

/// Starts the workers.
pub(crate) fn start(
    args: &ServeArgs,
    connections_max: usize,
    sockets: &mut Sockets,
    tls: Option<&ServerTls>,
) -> anyhow::Result<Box<dyn ServerControl>> {
    check(args)?;
    let count = usize::from(args.workers);
    let options = ListenOptions::new().stream(args.stream_options());
    let limit = StreamLimit::new(connections_max);
    let mut of_workers = || -> io::Result<Vec<Vec<(OwnedFd, bool)>>> {
        let mut sets: Vec<_> = (0..count).map(|_| Vec::new()).collect();
        for has_tls in [false, true] {
            let sockets = sockets.take_per_worker(has_tls)?;
            for (set, sockets) in sets.iter_mut().zip(sockets) {
                set.extend(sockets.into_iter().map(|socket| (socket, has_tls)));
            }
        }
        Ok(sets)
    };
    let sockets = Mutex::new(of_workers().context("cannot copy the sockets")?);
    let counts = Arc::new(RawCounts::default());
    let shared = Arc::clone(&counts);
    let tls = tls.map(ServerTls::sessions);
    let backend = args.backend;
    let shared_limit = limit.clone();
    let set_up = move |worker: Worker| {
        let sockets = std::mem::take(
            &mut sockets.lock().unwrap_or_else(PoisonError::into_inner)[worker.index],
        );
        // The limit of connections may be raised later.
        let builder = Reactor::builder().backend(backend).subscribers_max(SUBSCRIBERS_MAX);
        set_up(sockets, options, builder, &shared_limit, &shared, tls.as_ref())
    };
    let workers =
        Workers::new(count).pinned(args.pin).start(set_up).context("cannot start the workers")?;
    Ok(Box::new(RawServer { workers, counts, limit }))
}

fn set_up(
    sockets: Vec<(OwnedFd, bool)>,
    options: ListenOptions,
    builder: Builder,
    limit: &StreamLimit,
    counts: &Arc<RawCounts>,
    tls: Option<&Arc<dyn TlsSessionFactory>>,
) -> io::Result<Reactor> {
    let mut reactor = builder.build()?;
    let mut keys = Vec::new();
    for (socket, has_tls) in sockets {
        let mut listener = options.from_fd(socket)?.limited(limit);
        if let (true, Some(tls)) = (has_tls, tls) {
            listener = listener.with_tls(Arc::clone(tls));
        }
        let counts = Arc::clone(counts);
        let accept = move |_: &Peer<'_>| Some(RawHandler { counts: Arc::clone(&counts) });
        keys.push((listener.with_handler(accept).register_into(&mut reactor)?, [0; 2]));
    }
    count_waits(keys, counts, &mut reactor)?;
    Ok(reactor)
}

/// Notes every second how often listeners paused accepting, and how often they reached the
/// connection limit.
fn count_waits(
    mut listeners: Vec<(ListenerKey, [u64; 2])>,
    counts: &Arc<RawCounts>,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let counts = Arc::clone(counts);
    let look = move |mut turn: Turn<'_>| {
        for (key, seen) in &mut listeners {
            let Ok(listening) = turn.listener(*key) else { continue };
            let now = [listening.rests(), listening.limits_reached()];
            add(&counts.accepting_paused, now[0] - seen[0]);
            add(&counts.limits_reached, now[1] - seen[1]);
            *seen = now;
        }
    };
    reactor.every(Duration::from_secs(1), look)?;
    Ok(())
}
