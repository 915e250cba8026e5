//! `--mode chat` and `--mode echo`: sets the WebSocket server up, with its pages, rooms and limits.

use std::{io, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use windlass::{Backend, RingError};
use windlass_server::{
    Options, OptionsError, RunningServer, Server, SlowConsumerPolicy,
    http::{Hosts, Origins, Page, Routes},
};

use super::{
    args::{self, Mode, ServeArgs, seconds},
    cluster::{NodeSetup, limit_to_payload},
    counts::ServerCounts,
    load_run::{LOAD, LoadRuns},
    members::Members,
    rates::RateArgs,
    reload::{Apply, Part},
    rooms::{ECHO_PATH, LIVE, NOT_FOUND, ROOMS, Rooms, topic_len_max},
    sockets::Sockets,
    supervisor::{ConnectionsMax, ServerControl, ShutdownMode},
    tls::ServerTls,
    tokens::{ClientTokens, TokenSet},
};
use crate::{nofile, page};

/// The server, and the time allowed for its shutdown.
struct WebSocketServer {
    server: RunningServer,
    /// The options at the start.
    args: ServeArgs,
    /// The maximum payload of the NATS server of a cluster, if it is known.
    payload_max: Option<usize>,
    members: Arc<Members>,
    /// The tokens of clients, if they need one.
    tokens: Option<Arc<ClientTokens>>,
    load_runs: Option<Arc<LoadRuns>>,
}

impl ServerControl for WebSocketServer {
    fn backend(&self) -> Backend {
        self.server.backend()
    }

    fn ring_error(&self) -> Option<RingError> {
        self.server.ring_error()
    }

    fn counts(&self) -> ServerCounts {
        ServerCounts::WebSocket(self.server.stats_handle())
    }

    fn shutdown_fn(&self) -> Box<dyn Fn(ShutdownMode)> {
        let drain_timeout = Duration::from_secs(self.args.drain_timeout.into());
        let drainer = self.server.drainer();
        let stops = self.server.stops().to_vec();
        Box::new(move |mode| match mode {
            ShutdownMode::Graceful => drainer.drain(drain_timeout),
            ShutdownMode::HandOver => drainer.hand_over(drain_timeout),
            ShutdownMode::Immediate => stops.iter().for_each(windlass::Stop::stop),
        })
    }

    fn part(&self, limit: &ConnectionsMax) -> Part {
        let (start, payload_max) = (self.args.clone(), self.payload_max);
        let (reconfigurer, limit) = (self.server.reconfigurer(), limit.clone());
        let (tokens, load_runs) = (self.tokens.clone(), self.load_runs.clone());
        let prepare = move |args: &ServeArgs| -> anyhow::Result<Apply> {
            let args = args.clone().after(&start);
            let connections_max = nofile::connections_max(args.connections, args.workers.into())?;
            // A reload keeps the routes.
            let mut options = args.options(connections_max, false)?;
            limit_to_payload(payload_max, &mut options);
            ensure!(
                tokens.is_some() == args.token_file.is_some(),
                "whether there is a --token-file cannot change without a restart"
            );
            let read = args.token_file.as_deref().map(TokenSet::read).transpose()?;
            let new_tokens = tokens.clone().zip(read);
            let (load_runs, is_public) = (load_runs.clone(), args.is_public());
            let (reconfigurer, limit) = (reconfigurer.clone(), limit.clone());
            Ok(Box::new(move || {
                if let Some((tokens, read)) = new_tokens {
                    tokens.replace(read);
                }
                load_runs.iter().for_each(|runs| runs.set_public(is_public));
                // They were checked just now.
                _ = reconfigurer.reconfigure(&options);
                limit.set(connections_max);
            }))
        };
        let options = &[
            "connections",
            "connections-per-address",
            "connection-rate",
            "connection-rate-per-address",
            "tls-handshake-rate",
            "tls-handshake-rate-per-address",
            "request-rate",
            "request-rate-per-address",
            "message-rate",
            "message-byte-rate",
            "proxy-protocol-from",
            "forwarded-from",
            "forwarded-header",
            "host",
            "inflate-ratio-max",
            "memory",
            "message-max",
            "origin",
            "token-file",
        ];
        Part { options, prepare: Box::new(prepare) }
    }

    fn announcer(&self) -> Option<Box<dyn Fn()>> {
        let (members, sender) = (Arc::clone(&self.members), self.server.sender());
        Some(Box::new(move || members.announce(&sender)))
    }

    fn join(self: Box<Self>) -> io::Result<()> {
        self.server.join()
    }
}

/// Starts the workers.
pub(crate) fn start(
    args: &ServeArgs,
    connections_max: usize,
    sockets: &mut Sockets,
    tls: Option<&ServerTls>,
) -> anyhow::Result<Box<dyn ServerControl>> {
    let echoes = args.mode == Mode::Echo;
    let name_len_max = args.room_name_max as usize;
    let members = Arc::new(Members::default());
    let of_rooms = Arc::clone(&members);
    let tokens = args.token_file.as_deref().map(TokenSet::read).transpose()?;
    let tokens = tokens.map(ClientTokens::new);
    let load_runs = args.load_runs(&sockets.addresses);
    let mut options = args.options(connections_max, load_runs.is_some())?;
    let node = NodeSetup::prepare(args)?;
    let payload_max = node.as_ref().and_then(NodeSetup::payload_max);
    limit_to_payload(payload_max, &mut options);
    let (for_workers, of_page) = (tokens.clone(), load_runs.clone());
    let mut server = Server::new(options, move |_| Rooms {
        echoes,
        name_len_max,
        members: Arc::clone(&of_rooms),
        tokens: for_workers.clone(),
        load_runs: of_page.clone(),
    })
    .workers(usize::from(args.workers))
    .pinned(args.pin)
    .watchdog(args.watchdog)
    .backend(args.backend)
    .listen_on_each(sockets.take_per_worker(false).context("cannot copy the sockets")?);
    if let Some(tls) = tls {
        let with_tls = sockets.take_per_worker(true).context("cannot copy the sockets")?;
        server = server.listen_on_each(with_tls).with_tls(tls.sessions());
    }
    if let Some(node) = node {
        server = server.cluster(node.into_cluster());
    }
    let server = server.start().context("cannot start the workers")?;
    load_runs.iter().for_each(|runs| runs.set_sender(server.sender()));
    let args = args.clone();
    Ok(Box::new(WebSocketServer { server, args, payload_max, members, tokens, load_runs }))
}

impl ServeArgs {
    /// Replaces those values that a server keeps from its start, and that others are checked
    /// against at a reload.
    fn after(self, start: &Self) -> Self {
        let Self { workers, buffer, mode, .. } = *start;
        let rates = RateArgs { when_full: start.rates.when_full, ..self.rates };
        Self { workers, buffer, mode, rates, ..self }
    }

    /// The library makes the same check, but names its own settings in the error.
    fn check_buffer(&self, options: &Options) -> anyhow::Result<()> {
        if let Err(error) = options.check() {
            ensure!(
                !matches!(error, OptionsError::BurstTooSmall { .. }),
                "the burst of --message-byte-rate cannot hold the longest message: raise it, or \
                 lower --message-max {}",
                self.message_max
            );
            ensure!(
                !matches!(error, OptionsError::BufferTooSmall { .. }),
                "--buffer {} cannot hold the longest message: --message-max {} and its header of \
                 up to 10 bytes; raise --buffer or lower --message-max",
                self.buffer,
                self.message_max
            );
            return Err(error.into());
        }
        Ok(())
    }

    /// Returns the settings of the server.
    pub(crate) fn options(
        &self,
        connections_max: usize,
        has_load_runs: bool,
    ) -> anyhow::Result<Options> {
        let mut options = Options::new();
        options.routes = match self.mode {
            Mode::Chat => {
                let (status, cluster) = (!self.no_status, self.cluster.is_on());
                let parts = page::Parts { status, cluster, load: has_load_runs };
                let page = page::html(self.workers, parts, self.room_name_max);
                let page = Page::html(page)
                    .header("Content-Security-Policy", page::CONTENT_SECURITY_POLICY);
                let routes = Routes::new().page("/", page.clone()).page(ROOMS, page);
                let routes = routes.upgrade(ROOMS).upgrade(LIVE).upgrade(ECHO_PATH);
                let routes = if has_load_runs { routes.upgrade(LOAD) } else { routes };
                routes.not_found(NOT_FOUND)
            }
            _ => Routes::everywhere(),
        };
        options.live_status = self.mode == Mode::Chat && !self.no_status;
        options.hosts = Hosts::parse(&self.host).context("invalid --host")?;
        options.origins = Origins::parse(&self.origin).context("invalid --origin")?;
        options.limits = self.limits();
        options.deflate = self.deflate.config();
        options.inflate_bytes_per_turn = self.inflate_per_turn as usize;
        options.deflate_bytes_per_turn = self.deflate_per_turn as usize;
        options.receiver_buffer_max = self.buffer as usize;
        options.memory_max = self.memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        options.slow = match self.slow {
            args::SlowPolicy::DropNewest => SlowConsumerPolicy::DropNewest,
            args::SlowPolicy::DropOldest => SlowConsumerPolicy::DropOldest,
            args::SlowPolicy::Evict => SlowConsumerPolicy::Evict,
        };
        options.ping_interval = seconds(self.ping_interval());
        options.idle_timeout = seconds(self.idle_timeout);
        options.lifetime_max = seconds(self.lifetime_max);
        options.handshake_timeout = Duration::from_secs(self.handshake_timeout.into());
        options.write_stall_timeout = seconds(self.write_timeout);
        options.connections_max = connections_max;
        options.topic_len_max = topic_len_max(self.room_name_max as usize);
        options.connections_per_address_max =
            self.connections_per_address.map(|most| most as usize);
        self.rates.set(&mut options);
        self.proxies.set(&mut options.proxies)?;
        self.check_buffer(&options)?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn parsed(arguments: &[&str]) -> ServeArgs {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let matches = command.get_matches_from([&["serve"], arguments].concat());
        ServeArgs::from_arg_matches(&matches).expect("they are valid")
    }

    #[test]
    fn a_reload_has_its_own_rates_and_keeps_what_happens_when_full() {
        let start = parsed(&["--message-byte-rate", "1000", "--message-max", "1000"]);
        let rated = ["--message-byte-rate", "1000", "--message-max", "1001"];
        let error =
            parsed(&rated).after(&start).options(1, false).expect_err("the burst is too small");
        assert!(error.to_string().contains("--message-byte-rate"), "{error}");
        let bad = parsed(&["--proxy-protocol-from", "nonsense"]).after(&start);
        let error = bad.options(1, false).expect_err("it is no network");
        assert!(format!("{error:#}").contains("--proxy-protocol-from"), "{error:#}");
        let new = ["--message-rate", "7", "--when-full", "reject"];
        let options = parsed(&new).after(&start).options(1, false).expect("they are good");
        assert_eq!((options.rates.message_bytes, options.reject_when_full), (None, false));
        assert_eq!(options.rates.messages, Some(windlass_server::Rate::per_second(7)));
    }
}
