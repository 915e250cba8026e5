//! The options of `windlass load`, and the plan that follows from them.

use std::{path::PathBuf, time::Duration};

use clap::error::ErrorKind;
use windlass::Backend;

use super::{
    fan_out::{DELIVERIES_MAX, MARK_LEN, rooms},
    header::RequestHeader,
    payload::{Charset, PERIOD},
    schedule::{FixedRate, LoadSchedule, Nanos, SendRate},
    target::{Address, Target},
    threshold::Threshold,
    tls::{LoadTls, TlsArgs},
};
use crate::backend;

/// Default duration of the measurement.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Default time limit for a whole answer.
const ANSWER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Maximum duration: four weeks.
const SECONDS_MAX: f64 = 28.0 * 86_400.0;

/// Maximum rate in messages per second.
const RATE_MAX: f64 = 1e9;

/// The options of `windlass load`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// Target: ws://HOST:PORT/PATH, wss://HOST:PORT/PATH (TLS) or ws+unix:SOCKET:/PATH, or without
    /// WebSocket tcp://HOST:PORT, tls://HOST:PORT or unix:SOCKET. The server must echo each
    /// message, as `windlass serve` does at /echo. With http://HOST:PORT/PATH or https:// a
    /// message is a GET request, and its answer the response. Over several targets of one kind the
    /// connections are spread evenly, and the report has the results of each and of all
    #[arg(value_name = "URL", required = true)]
    pub(crate) targets: Vec<Target>,

    /// Number of connections over all targets, all open at the same time
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,

    /// Backend of the event loops: epoll, io_uring or poll(2); `auto` is epoll, `uring-or-epoll` is
    /// io_uring where it is available
    #[arg(long, value_name = "NAME", default_value_t = Backend::Auto)]
    #[arg(value_parser = backend::parser())]
    pub(crate) backend: Backend,

    /// Use HTTP/2: over TLS by ALPN, otherwise with prior knowledge. WebSockets need a server with
    /// RFC 8441. --depth of http:// and https:// is then the number of concurrent requests of a
    /// connection
    #[arg(long)]
    pub(crate) http2: bool,

    /// WebSockets of each connection with --http2, of which each has --depth messages in flight
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) streams: u32,

    /// Payload length of each message in bytes, except for http:// and https://
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=64 << 20))]
    pub(crate) size: u32,

    /// Messages in flight per connection; HTTP requests are pipelined
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PERIOD as i64 / 2))]
    pub(crate) depth: u32,

    /// Length in bytes that the body of each response must have, for http:// and https:// [default:
    /// any]
    #[arg(long, value_name = "BYTES")]
    pub(crate) body_size: Option<u64>,

    /// Header of each request, `NAME: VALUE`, such as Origin or Cookie; may be repeated. For
    /// WebSocket and HTTP targets
    #[arg(long, value_name = "HEADER")]
    pub(crate) header: Vec<RequestHeader>,

    /// Subprotocol of the WebSockets, which the server must choose
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Option<String>,

    /// Threshold of the results, such as p99<20ms or rate>1000: min, mean, p50, p90, p99, p99.9 or
    /// max below a time, or a rate of messages a second above a number. May be repeated. If one is
    /// missed, the exit status is 3
    #[arg(long, value_name = "THRESHOLD")]
    pub(crate) expect: Vec<Threshold>,

    /// Duration of the measurement: seconds, or a number with ms, s, m or h [default: 10s]
    #[arg(long, value_name = "TIME", conflicts_with = "messages")]
    #[arg(value_parser = positive_seconds)]
    duration: Option<Duration>,

    /// Number of messages to send over all connections, instead of a duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: Option<u64>,

    /// Messages per second over all connections; latency is measured from the moment at which each
    /// message was due (corrected for coordinated omission) [default: full speed]
    #[arg(long, value_name = "MSG_PER_S", value_parser = rate)]
    pub(crate) rate: Option<f64>,

    /// Send text messages [default: binary]
    #[arg(long, value_enum)]
    pub(crate) text: Option<Charset>,

    /// Require permessage-deflate and send compressible messages
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Worker threads; each runs an event loop with a share of the connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,

    /// Warm-up before the measurement
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = seconds)]
    pub(crate) warm_up: Duration,

    /// Fan-out: so many of the connections publish, at --rate altogether, and the others receive.
    /// The server must send each message to all other clients of the path, as `windlass serve` does
    /// at /room/NAME; targets with one path are one room. Latencies are those of deliveries. A
    /// message that is lost, duplicated or reordered is an error; missing ones are awaited for
    /// --timeout. N times --connections is at most 10000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) publishers: Option<u32>,

    /// Close each connection after so many messages, and open it again; not with --http2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) churn: Option<u64>,

    /// Time over which the connections are opened evenly, before the warm-up; not with --http2
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = seconds)]
    pub(crate) ramp_up: Duration,

    /// Time limit for a connection, an answer and a close
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_seconds)]
    pub(crate) timeout: Duration,

    /// Time limit for a whole HTTP response, however steadily it arrives, and for the last answers
    /// after the end of the run [default: 30s, or --timeout if that is longer]
    #[arg(long, value_name = "TIME", value_parser = positive_seconds)]
    answer_timeout: Option<Duration>,

    /// Maximum number of informational responses (status 1xx) before each HTTP response
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) informational_max: u32,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// Write the results as JSON to a file, or to standard output (-); the report then goes to
    /// standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Print errors only, no progress and no report
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl LoadArgs {
    /// Checks combinations of options.
    ///
    /// # Errors
    ///
    /// An error in clap's format, if options conflict.
    pub(crate) fn check(&self) -> Result<(), clap::Error> {
        let refuse =
            |text: &str| Err(clap::Error::raw(ErrorKind::ArgumentConflict, format!("{text}\n")));
        let (is_websocket, is_http) = (self.is_websocket(), self.is_http());
        let is_other =
            |target: &Target| (target.is_websocket(), target.is_http()) != (is_websocket, is_http);
        if let Some(other) = self.targets.iter().find(|target| is_other(target)) {
            return refuse(&format!(
                "{} and {other} are not of one kind: all targets have WebSocket, or all have HTTP, \
                 or all are byte streams",
                self.targets[0]
            ));
        }
        if self.targets.len() > self.connections as usize {
            return refuse(
                "there are more targets than --connections: each target needs at least one \
                 connection",
            );
        }
        if !is_websocket && (self.text.is_some() || self.deflate) {
            return refuse(
                "--text and --deflate need a WebSocket target: ws://, wss:// or ws+unix:",
            );
        }
        if !is_websocket && self.subprotocol.is_some() {
            return refuse("--subprotocol needs a WebSocket target: ws://, wss:// or ws+unix:");
        }
        if !is_websocket && !is_http && !self.header.is_empty() {
            return refuse("--header needs a target with WebSocket or HTTP");
        }
        if self.http2 && (!self.ramp_up.is_zero() || self.churn.is_some()) {
            return refuse("--ramp-up and --churn are not available with --http2");
        }
        if self.http2 && !is_websocket && !is_http {
            return refuse(
                "--http2 needs a target with WebSocket or HTTP: ws://, wss://, ws+unix:, \
                           http:// or https://",
            );
        }
        if self.streams > 1 && !(self.http2 && is_websocket) {
            return refuse(
                "--streams needs --http2 and a WebSocket target; the concurrent requests of a \
                 connection of HTTP/2 are --depth",
            );
        }
        if self.publishers.is_some() {
            self.check_fan_out().map_err(|text| refuse(&text).unwrap_err())?;
        }
        if self.body_size.is_some() && !is_http {
            return refuse("--body-size needs an HTTP target: http:// or https://");
        }
        if !is_websocket && !is_http && self.size == 0 {
            return refuse(
                "--size 0 needs a WebSocket target (ws://, wss:// or ws+unix:): a byte stream has \
                 no empty messages",
            );
        }
        let has_tls = self.targets.iter().any(|target| target.tls_host().is_some());
        if let (Some(option), false) = (self.tls.first_option(), has_tls) {
            return refuse(&format!(
                "{option} needs a target with TLS: wss://, https:// or tls://"
            ));
        }
        if self.text == Some(Charset::Utf8) && !self.size.is_multiple_of(2) {
            return refuse("--text utf8 sends characters of two bytes: --size must be even");
        }
        if u32::from(self.workers) > self.connections {
            return refuse(
                "--workers exceeds --connections: each worker needs at least one connection",
            );
        }
        Ok(())
    }

    /// Checks what goes together with --publishers.
    fn check_fan_out(&self) -> Result<(), String> {
        if !self.is_websocket() {
            return Err("--publishers needs WebSocket targets: ws://, wss:// or ws+unix:".into());
        }
        if self.rate.is_none() {
            return Err(
                "--publishers needs --rate: the messages that are published a second".into()
            );
        }
        if self.http2 || self.churn.is_some() || self.depth > 1 {
            return Err("--http2, --churn and --depth are not available with --publishers".into());
        }
        if (self.size as usize) < MARK_LEN {
            return Err(format!(
                "--publishers needs a --size of {MARK_LEN} bytes or more: each message names its \
                 publisher and its number"
            ));
        }
        let counts = u64::from(self.connections) * u64::from(self.senders());
        if counts > DELIVERIES_MAX {
            return Err(format!(
                "--connections times --publishers is {counts}, and the limit is {DELIVERIES_MAX}: \
                 each receiver counts the messages of each publisher, in about 60 bytes"
            ));
        }
        let rooms = rooms(&self.targets);
        // By room: whether it has a receiver, and a publisher.
        let mut members = vec![[false; 2]; rooms.len()];
        for number in 0..self.connections {
            let room = rooms[number as usize % rooms.len()];
            members[room][usize::from(number < self.senders())] = true;
        }
        for (room, target) in self.targets.iter().enumerate() {
            if rooms[room] == room && members[room] != [true; 2] {
                return Err(format!(
                    "{target} needs a publisher and a receiver: raise --connections or \
                     --publishers (the first connections publish, and the targets take turns)"
                ));
            }
        }
        Ok(())
    }

    /// Returns the number of message sequences that send: the first ones.
    pub(crate) fn senders(&self) -> u32 {
        self.publishers.unwrap_or_else(|| self.streams_in_all())
    }

    /// Returns whether the targets have WebSocket.
    pub(crate) fn is_websocket(&self) -> bool {
        self.targets[0].is_websocket()
    }

    /// Returns whether the targets have HTTP without WebSocket.
    pub(crate) fn is_http(&self) -> bool {
        self.targets[0].is_http()
    }

    /// Returns the number of message sequences of a connection: one, or one for each stream of
    /// HTTP/2.
    pub(crate) fn streams_per_connection(&self) -> u32 {
        match self.http2 {
            true if self.is_http() => self.depth,
            true => self.streams,
            false => 1,
        }
    }

    /// Returns the number of messages in flight of a sequence.
    pub(crate) fn depth_of_stream(&self) -> u32 {
        if self.http2 && self.is_http() { 1 } else { self.depth }
    }

    /// Returns the number of all message sequences.
    pub(crate) fn streams_in_all(&self) -> u32 {
        self.connections * self.streams_per_connection()
    }

    /// Returns the time limit for a whole answer, and for the end of the run.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.answer_timeout.unwrap_or(ANSWER_TIMEOUT_DEFAULT.max(self.timeout))
    }

    /// Returns the duration of the measurement; `None` if --messages limits it.
    pub(crate) fn duration(&self) -> Option<Duration> {
        match (self.duration, self.messages) {
            (None, Some(_)) => None,
            (duration, _) => Some(duration.unwrap_or(DURATION_DEFAULT)),
        }
    }
}

/// The plan of a run, which all workers follow.
#[derive(Debug)]
pub(crate) struct LoadPlan {
    pub(crate) args: LoadArgs,
    /// Those of the arguments, in their order.
    pub(crate) targets: Vec<PlannedTarget>,
}

/// A target, and what its connections need.
#[derive(Debug)]
pub(crate) struct PlannedTarget {
    pub(crate) target: Target,
    /// Those of its name.
    pub(crate) addresses: Vec<Address>,
    /// `None` for a target without TLS.
    pub(crate) tls: Option<LoadTls>,
}

impl LoadPlan {
    /// Resolves names, and reads the files of TLS.
    ///
    /// # Errors
    ///
    /// If a name cannot be resolved, or TLS cannot be used.
    pub(crate) fn new(args: LoadArgs) -> anyhow::Result<Self> {
        let planned = |target: &Target| {
            let addresses = target.resolve()?;
            let tls = LoadTls::new(&args.tls, target, args.timeout, args.http2)?;
            Ok(PlannedTarget { target: target.clone(), addresses, tls })
        };
        let targets = args.targets.iter().map(planned).collect::<anyhow::Result<_>>()?;
        Ok(Self { args, targets })
    }

    /// Returns the index of the target of a connection.
    pub(crate) fn target_of(&self, connection: u64) -> usize {
        connection as usize % self.targets.len()
    }

    /// Returns the schedule of a run that begins at `origin`.
    pub(crate) fn schedule(&self, origin: Nanos) -> LoadSchedule {
        let start = origin.saturating_add(nanos(self.args.warm_up));
        let end = self
            .args
            .duration()
            .map_or(Nanos::MAX, |duration| start.saturating_add(nanos(duration)));
        let connections = self.args.senders().into();
        let rate = match self.args.rate {
            Some(rate) => SendRate::Fixed(FixedRate { origin, interval: 1e9 / rate, connections }),
            None => SendRate::FullSpeed,
        };
        LoadSchedule { rate, window: start..end, depth: self.args.depth_of_stream().into() }
    }

    /// Returns the number of measured messages that a connection, or a stream of HTTP/2, may send:
    /// its share of --messages.
    pub(crate) fn quota(&self, connection: u32) -> u64 {
        if connection >= self.args.senders() {
            return 0;
        }
        let Some(messages) = self.args.messages else { return u64::MAX };
        let connections = u64::from(self.args.senders());
        messages / connections + u64::from(u64::from(connection) < messages % connections)
    }

    /// Returns the connections of a worker.
    pub(crate) fn connections_of(&self, worker: usize) -> impl Iterator<Item = u32> {
        (worker as u32..self.args.connections).step_by(self.args.workers.into())
    }
}

/// Converts a duration to nanoseconds.
pub(crate) const fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

/// Parses a time: a number of seconds, or one with a unit.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let with_unit = units.into_iter().find_map(|(unit, of)| Some((text.strip_suffix(unit)?, of)));
    let (number, unit) = with_unit.unwrap_or((text, 1.0));
    let number: f64 = number
        .parse()
        .map_err(|_| "not a number of seconds, or one with ms, s, m or h".to_owned())?;
    let seconds = number * unit;
    if (0.0..=SECONDS_MAX).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("must be between 0 and {SECONDS_MAX} seconds"))
    }
}

fn positive_seconds(text: &str) -> Result<Duration, String> {
    seconds(text)
        .and_then(|time| if time.is_zero() { Err("must be above 0".to_owned()) } else { Ok(time) })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number of messages".to_owned())?;
    // The quotient is a time between two messages, in nanoseconds.
    if rate > 0.0 && rate <= RATE_MAX && 1e9 / rate < SECONDS_MAX * 1e9 {
        Ok(rate)
    } else {
        Err(format!("must be between one in four weeks and {RATE_MAX} per second"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    const URL: &str = "ws://localhost:9001/";

    fn args(arguments: &[&str]) -> Result<LoadArgs, clap::Error> {
        let args = Line::try_parse_from([&["load"], arguments].concat())?.args;
        args.check().map(|()| args)
    }

    fn plan(arguments: &[&str]) -> LoadPlan {
        let args = args(&[&[URL], arguments].concat()).expect("they make sense");
        LoadPlan { args, targets: Vec::new() }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for nonsense in [
            &[][..],
            &["localhost"],
            &[URL, "--connections", "0"],
            &[URL, "--depth", "0"],
            &[URL, "--depth", "4097"],
            &[URL, "--messages", "0"],
            &[URL, "--messages", "1", "--duration", "1"],
            &[URL, "--duration", "0"],
            &[URL, "--duration", "-1"],
            &[URL, "--duration", "NaN"],
            &[URL, "--duration", "1e99"],
            &[URL, "--duration", "5d"],
            &[URL, "--duration", "s"],
            &[URL, "--duration", "1000h"],
            &[URL, "--expect", "p99"],
            &[URL, "--header", "Host: a"],
            &["tcp://localhost:1", "--header", "X: a"],
            &["http://localhost:1", "--subprotocol", "a"],
            &[URL, "--rate", "0"],
            &[URL, "--rate", "inf"],
            &[URL, "--rate", "1e-20"],
            &[URL, "--text", "latin1"],
            &[URL, "--text", "utf8", "--size", "3"],
            &[URL, "--workers", "11"],
            &["tcp://localhost:1", "--text", "ascii"],
            &["tcp://localhost:1", "--deflate"],
            &["tcp://localhost:1", "--http2"],
            &[URL, "--http2", "--ramp-up", "1s"],
            &[URL, "--http2", "--churn", "1"],
            &[URL, "--churn", "0"],
            &[URL, "--streams", "2"],
            &[URL, "--http2", "--streams", "0"],
            &["http://localhost:1", "--http2", "--streams", "2"],
            &["tcp://localhost:1", "--size", "0"],
            &["tcp://localhost:1", "--body-size", "1"],
            &["http://localhost:1", "--deflate"],
            &["http://localhost:1", "--body-size", "x"],
            &[URL, "--insecure"],
            &[URL, "--cacert", "ca.pem"],
            &[URL, "--server-name", "localhost"],
            &["wss://localhost/", "--cacert", "ca.pem", "--insecure"],
            &[URL, "http://localhost/"],
            &[URL, "tcp://localhost:1"],
            &["unix:/a", "http://localhost/"],
            &[URL, URL, URL, "--connections", "2"],
            &[URL, "wss:localhost"],
            &[URL, "--publishers", "1"],
            &[URL, "--rate", "1", "--publishers", "0"],
            &[URL, "--rate", "1", "--publishers", "10"],
            &[URL, "--rate", "1", "--publishers", "101", "--connections", "100000"],
            &[URL, "--rate", "1", "--publishers", "1", "--size", "31"],
            &[URL, "--rate", "1", "--publishers", "1", "--depth", "2"],
            &[URL, "--rate", "1", "--publishers", "1", "--churn", "2"],
            &[URL, "--rate", "1", "--publishers", "1", "--http2"],
            &[URL, "ws://localhost:9001/b", "--rate", "1", "--publishers", "1"],
            &["tcp://localhost:1", "--rate", "1", "--publishers", "1"],
        ] {
            let error = args(nonsense).expect_err(&format!("{nonsense:?}"));
            assert_eq!(error.exit_code(), 2, "{nonsense:?}");
        }
    }

    #[test]
    fn a_time_may_have_a_unit() {
        for (text, ms) in [
            ("2", 2000),
            ("2s", 2000),
            ("1.5", 1500),
            ("250ms", 250),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn messages_are_shared_out_to_the_last_one() {
        for (messages, connections) in [("1", "3"), ("10", "3"), ("9", "3"), ("1000000007", "999")]
        {
            let plan = plan(&["--messages", messages, "--connections", connections]);
            let parts: Vec<u64> =
                (0..plan.args.connections).map(|connection| plan.quota(connection)).collect();
            assert_eq!(parts.iter().sum::<u64>().to_string(), messages);
            assert!(
                parts
                    .iter()
                    .max()
                    .zip(parts.iter().min())
                    .is_some_and(|(most, least)| most - least <= 1)
            );
        }
        assert_eq!(plan(&[]).quota(0), u64::MAX);
    }

    #[test]
    fn every_connection_has_one_worker() {
        let plan = plan(&["--connections", "10", "--workers", "3"]);
        let mut all: Vec<u32> = (0..3).flat_map(|worker| plan.connections_of(worker)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn the_measured_time_follows_the_warm_up() {
        let second = 1_000_000_000;
        assert_eq!(plan(&[]).schedule(7).window, 7..7 + 10 * second);
        let schedule = plan(&["--warm-up", "0.5", "--duration", "2", "--depth", "3"]).schedule(7);
        assert_eq!(
            (schedule.window, schedule.depth, schedule.rate),
            (7 + second / 2..7 + second * 5 / 2, 3, SendRate::FullSpeed)
        );
        let schedule = plan(&["--messages", "5", "--rate", "1e6"]).schedule(7);
        assert_eq!(schedule.window, 7..Nanos::MAX);
        assert_eq!(
            schedule.rate,
            SendRate::Fixed(FixedRate { origin: 7, interval: 1000.0, connections: 10 })
        );
    }
}
