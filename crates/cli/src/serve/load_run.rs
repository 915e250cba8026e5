//! The button of the page that shows what the server can do: five seconds of `windlass load`
//! against the server itself.
//!
//! 1. A WebSocket on `/load` starts a run, and gets its results as text. Without the feature the
//!    path does not exist (404).
//! 2. The server has it only if all its listeners are on loopback addresses, it has its defaults
//!    for hosts, and no proxy, token, cluster or authority of clients is configured. After a reload
//!    that configures one, a request gets 403.
//! 3. A request from elsewhere, for another host than this machine, through a proxy that says so,
//!    or of another site's page gets 403.
//! 4. There is one run at a time. Another request gets 503.
//! 5. A run is two processes of this program. They end by themselves: after the five seconds, and
//!    the time limits of `windlass load`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use anyhow::{Context as _, bail};
use rustix::{
    process::getpid,
    thread::{sched_getaffinity, sched_setaffinity},
};
use serde_json::Value;
use windlass::stream::Address;
use windlass_server::{
    CloseCode, ConnectionId, Sender,
    http::{Hosts, Origins, Reject, UpgradeRequest},
    printable,
};
use windlass_ws::handshake::Header;

use super::args::{Mode, ServeArgs};

/// The path of runs.
pub(crate) const LOAD: &str = "/load";

/// The room of the second process. It ends with the run.
const ROOM: &str = "/room/load";

/// The program, also if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

const SECONDS: &str = "5s";

/// Limits of a connection, an answer and a close, so that no run lasts much longer.
const TIMEOUT: &str = "2s";

/// An echo at full speed.
const ECHO: [&str; 4] = ["--connections", "50", "--depth", "16"];

/// A room with 50 receivers, which get 25,000 messages a second.
const FAN_OUT: [&str; 6] = ["--connections", "52", "--publishers", "2", "--rate", "500"];

/// Headers with which proxies name themselves or a client.
const OF_PROXIES: [&str; 6] =
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

/// The runs of a server.
#[derive(Debug)]
pub(crate) struct LoadRuns {
    /// The server, as `ws://127.0.0.1:9001`.
    url: String,
    is_running: AtomicBool,
    /// The configuration is for others since a reload.
    is_public: AtomicBool,
    /// It sends the results.
    sender: OnceLock<Sender>,
}

/// The right to be the only run, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct LoadRun(Arc<LoadRuns>);

impl ServeArgs {
    /// Returns the runs of a server with these options and addresses, if it has them.
    pub(crate) fn load_runs(&self, addresses: &[String]) -> Option<Arc<LoadRuns>> {
        let urls: Option<Vec<_>> = addresses.iter().map(|address| local_url(address)).collect();
        let url = urls.filter(|_| !self.is_public())?.into_iter().next()?;
        Some(Arc::new(LoadRuns {
            url,
            is_running: AtomicBool::new(false),
            is_public: AtomicBool::new(false),
            sender: OnceLock::new(),
        }))
    }

    /// Whether these options are for others than the user of this machine. A run has no certificate
    /// of a client.
    pub(crate) fn is_public(&self) -> bool {
        self.mode != Mode::Chat
            || self.no_status
            || self.token_file.is_some()
            || !self.host.is_empty()
            || !self.proxies.is_default()
            || self.cluster.is_on()
            || self.tls.tls_client_ca.is_some()
    }
}

/// Returns the URL of WebSockets for a printed address, if it is a loopback address.
fn local_url(address: &str) -> Option<String> {
    let (scheme, place) = address.strip_suffix('/')?.split_once("://")?;
    let is_local = place.parse::<SocketAddr>().is_ok_and(|place| place.ip().is_loopback());
    is_local.then(|| format!("{}://{place}", scheme.replace("http", "ws")))
}

impl LoadRuns {
    /// Sets what sends the results, before the first run.
    pub(crate) fn set_sender(&self, sender: Sender) {
        _ = self.sender.set(sender);
    }

    /// Takes the options of a reload.
    pub(crate) fn set_public(&self, is_public: bool) {
        self.is_public.store(is_public, Relaxed);
    }

    /// Begins a run.
    pub(crate) fn begin(self: &Arc<Self>, request: &UpgradeRequest<'_>) -> Result<LoadRun, Reject> {
        let peer = request.peer().socket_addr();
        let is_local = peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
        let is_for_local = request.host().is_some_and(|host| {
            Hosts::Local.allow(Some(host), &Address::Ip((Ipv4Addr::LOCALHOST, 0).into()))
        });
        // By names and bytes: a value that is not UTF-8 would look like a missing header.
        let is_proxied = request
            .headers()
            .any(|header| OF_PROXIES.iter().any(|name| header.name.eq_ignore_ascii_case(name)));
        let origin = request.headers().find_map(|Header { name, value }| {
            name.eq_ignore_ascii_case("origin").then_some(value)
        });
        let is_of_page = Origins::Same.allow(origin, request.host());
        let is_public = self.is_public.load(Relaxed);
        if is_public || !is_local || !is_for_local || is_proxied || !is_of_page {
            return Err(Reject::status(403).text("load runs are for the page on this machine"));
        }
        if self.is_running.swap(true, Relaxed) {
            return Err(Reject::status(503).text("a load run is under way; try again later"));
        }
        Ok(LoadRun(Arc::clone(self)))
    }
}

impl LoadRun {
    /// Starts it. The results go to this connection, which is closed then.
    pub(crate) fn start(self, id: ConnectionId) {
        let run = move || {
            let Some(sender) = self.0.sender.get().cloned() else { return };
            let text = self.results().unwrap_or_else(|error| {
                // Texts of the page have one line.
                format!("The run has failed: {}", printable(&format!("{error:#}")))
            });
            // Another run may begin when the page knows that this one has ended.
            drop(self);
            // It fails only if the connection or the server has ended.
            _ = sender.send(id, &*text);
            _ = sender.close(id, CloseCode::NORMAL, "");
        };
        if let Err(error) = thread::Builder::new().name("load-run".to_owned()).spawn(run) {
            tracing::warn!(%error, "cannot start a thread for a load run");
        }
    }

    fn results(&self) -> anyhow::Result<String> {
        // With --pin this thread has the processor of its worker. The main thread has them all.
        sched_setaffinity(None, &sched_getaffinity(Some(getpid()))?)?;
        let started = [self.process("/echo", &ECHO), self.process(ROOM, &FAN_OUT)];
        let [echo, fan_out] = started.map(|process| process.and_then(Measured::wait));
        let (echo, fan_out) = (echo?, fan_out?);
        Ok(format!(
            "Echo: {} messages/s, p99 {:.1} ms. A room: {} deliveries/s, p99 {:.1} ms. Every byte \
             verified.",
            echo.per_second, echo.p99_ms, fan_out.per_second, fan_out.p99_ms
        ))
    }

    fn process(&self, path: &str, options: &[&str]) -> anyhow::Result<Child> {
        let url = format!("{}{path}", self.0.url);
        let mut command = Command::new(PROGRAM);
        command.arg("load").arg(&url).args(options);
        command.args(["--duration", SECONDS, "--timeout", TIMEOUT, "--answer-timeout", TIMEOUT]);
        command.args(["--json", "-", "--quiet"]);
        if url.starts_with("wss:") {
            // The server is this process.
            command.arg("--insecure");
        }
        // The service manager's socket is for the server.
        command.env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot start `windlass load`")
    }
}

impl Drop for LoadRun {
    fn drop(&mut self) {
        self.0.is_running.store(false, Relaxed);
    }
}

/// What the page tells of a process.
struct Measured {
    per_second: u64,
    p99_ms: f64,
}

impl Measured {
    /// Waits for the end of a process.
    fn wait(process: Child) -> anyhow::Result<Self> {
        let output = process.wait_with_output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{}", errors.lines().next().unwrap_or("no reason is known"));
        }
        let results: Value = serde_json::from_slice(&output.stdout)?;
        let number = |pointer| results.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
        let per_second = number("/messages_per_s").round() as u64;
        Ok(Self { per_second, p99_ms: number("/latency/p99_us") / 1e3 })
    }
}

#[cfg(test)]
mod tests {
    use windlass_ws::handshake::{HeadLimits, Request};

    use super::*;

    #[test]
    fn a_run_is_for_a_host_and_a_client_of_this_machine() {
        let peer = |text: &str| Address::Ip(text.parse().expect("an address"));
        for (host, peer, is_allowed) in [
            ("localhost:9001", peer("127.0.0.1:5"), true),
            ("[::1]", peer("[::1]:5"), true),
            ("rebound.example", peer("127.0.0.1:5"), false),
            ("localhost", peer("192.0.2.1:5"), false),
            ("localhost", Address::Unix(None), false),
        ] {
            let (is_running, is_public) = Default::default();
            let (url, sender) = (String::new(), OnceLock::new());
            let runs = Arc::new(LoadRuns { url, is_running, is_public, sender });
            let head = format!(
                "GET /load HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            let (request, _) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT)
                .expect("it is valid")
                .expect("it is whole");
            let upgrade = request.upgrade().expect("it is an upgrade");
            let begun = runs.begin(&UpgradeRequest::new(&upgrade, &peer));
            assert_eq!(begun.err().map(|reject| reject.code()), (!is_allowed).then_some(403));
        }
    }

    #[test]
    fn only_loopback_addresses_have_a_url() {
        for (address, url) in [
            ("http://127.0.0.1:9001/", Some("ws://127.0.0.1:9001")),
            ("https://[::1]:8/", Some("wss://[::1]:8")),
            ("http://192.0.2.1:80/", None),
            ("http://0.0.0.0:80/", None),
            ("unix:/run/windlass", None),
        ] {
            assert_eq!(local_url(address).as_deref(), url, "{address}");
        }
    }
}
