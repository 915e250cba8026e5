//! Times one case on all servers, whose slices take turns.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use windlass_bench_driver::protocol::{Case, Outcome, Reply, Request};
use windlass_bench_driver::server::listeners;

use super::built::{BuiltServer, Processors};
use super::process::ServerProcess;
use crate::cases::server_threads;
use crate::cases::servers::ServerShape;
use crate::cases::tls::is_idle;
use crate::child::Child;
use crate::error::MeasureError;
use crate::programs::servers::{FLOOR, TOKIO_ECHO, UWEBSOCKETS, is_compared};
use crate::programs::{WINDLASS, Workspace};
use crate::report::stats::{Spread, rounded};
use crate::report::{Entry, Report};
use crate::requirements::too_few_processors;
use crate::timing::{Shuffle, calibrate, ratio};

/// Rounds of a slice in which allocations are counted.
const COUNTED_ROUNDS: u64 = 2_000;

/// A server in a case.
struct MeasuredServer {
    name: &'static str,
    backend: &'static str,
    workspace: Workspace,
    process: ServerProcess,
    client: Child,
    /// The side that is measured.
    side: Side,
    rounds: u64,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// The result of one slice.
struct Sample {
    outcome: Outcome,
    /// The side that is measured.
    side: Side,
    /// Allocations of that side per round. Those of a server include those of the warm-up.
    allocations: Option<f64>,
}

impl Sample {
    fn per_s(&self) -> f64 {
        self.outcome.units as f64 * 1e9 / self.outcome.ns.max(1) as f64
    }

    /// The processor time of the measured side for a unit.
    fn cpu_us(&self) -> f64 {
        let ns = self.gauge(&format!("{}_cpu_ns", self.side.name())).unwrap_or(f64::NAN);
        ns / 1e3 / self.outcome.units.max(1) as f64
    }

    fn gauge(&self, name: &str) -> Option<f64> {
        self.outcome.gauges.get(name).copied()
    }
}

impl MeasuredServer {
    fn start(
        built: &BuiltServer,
        client: &Path,
        case: &Case,
        processors: Processors,
        shape: ServerShape,
    ) -> Result<Self, MeasureError> {
        let mut command = Command::new(built.path());
        command.args(built.arguments(case, processors.server, processors.first));
        let process = ServerProcess::start(command)?;
        check_workers(case, process.server.address)?;
        let side = if built.client.is_some() { Side::Client } else { Side::Server };
        let client = built.client.as_deref().unwrap_or(client);
        let mut client = Child::start_as(client, processors.client_pin(), processors.first)?;
        match client
            .ask(&Request::Connect { case: case.clone(), server: process.server.clone() })?
        {
            Reply::Ready => {}
            reply => return Err(MeasureError::Failed(format!("not ready but {reply:?}"))),
        }
        let rounds = if shape.slice_ns == 0 { 1 } else { calibrate(&mut client, shape.slice_ns)? };
        Ok(Self {
            name: built.name(),
            backend: built.backend,
            workspace: built.server.program.workspace,
            process,
            client,
            side,
            rounds,
            samples: Vec::new(),
        })
    }

    fn slice(&mut self) -> Result<(), MeasureError> {
        let before = self.process.allocations();
        let outcome = self.client.slice(self.rounds)?;
        let of_server = self.process.allocations().zip(before);
        let allocations = match self.side {
            Side::Client => Some((outcome.allocations, outcome.units)),
            Side::Server => of_server.map(|(after, before)| (after - before, outcome.turns)),
        };
        let allocations = allocations.map(|(count, rounds)| count as f64 / rounds.max(1) as f64);
        self.samples.push(Sample { outcome, side: self.side, allocations });
        Ok(())
    }
}

/// All servers of a case.
pub(super) struct ServerTiming<'a> {
    case: &'a Case,
    servers: Vec<MeasuredServer>,
}

impl<'a> ServerTiming<'a> {
    /// Measures all servers, and adds the results to the report.
    pub(super) fn run<'b>(
        case: &'a Case,
        servers: impl Iterator<Item = &'b BuiltServer>,
        client: &Path,
        processors: Processors,
        shape: ServerShape,
        report: &mut Report,
    ) {
        let name = crate::cases::describe(case).0;
        let mut timing = Self { case, servers: Vec::new() };
        for built in servers {
            match MeasuredServer::start(built, client, case, processors, shape) {
                Ok(server) => timing.servers.push(server),
                Err(error) => report.skip(case.suite(), &name, built.name(), error),
            }
        }
        // The order of the report. Each repetition shuffles the slices.
        let who = |server: &MeasuredServer| (server.name, server.backend);
        let order: Vec<_> = timing.servers.iter().map(who).collect();
        let mut shuffle = Shuffle(shape.slices as u64);
        for _ in 0..shape.slices {
            shuffle.apply(&mut timing.servers);
            timing.servers.retain_mut(|server| {
                let sliced = server.slice();
                sliced
                    .inspect_err(|error| {
                        report.skip(case.suite(), &name, server.name, error.clone())
                    })
                    .is_ok()
            });
        }
        timing.servers.sort_by_key(|server| order.iter().position(|name| *name == who(server)));
        report.results.extend(timing.servers.iter().map(|server| timing.entry(server)));
    }

    /// Counts the allocations of the servers per message, in slices that are not timed.
    pub(super) fn count_allocations<'b>(
        case: &'a Case,
        servers: impl Iterator<Item = &'b BuiltServer>,
        client: &Path,
        processors: Processors,
        report: &mut Report,
    ) {
        let name = crate::cases::describe(case).0;
        for built in servers {
            eprintln!("{}/{name} {} (allocations)", case.suite(), built.name());
            let shape = ServerShape { slice_ns: 0, slices: 1 };
            let counted = MeasuredServer::start(built, client, case, processors, shape);
            let counted = counted.and_then(|mut server| {
                server.rounds = COUNTED_ROUNDS;
                // The first slice is a warm-up, for everything that happens only once.
                server.slice()?;
                server.samples.clear();
                server.slice().map(|()| server)
            });
            match counted {
                Ok(server) => {
                    let timing = Self { case, servers: vec![server] };
                    report.push_counts(timing.entry(&timing.servers[0]));
                }
                Err(error) => report.skip(case.suite(), &name, built.name(), error),
            }
        }
    }

    fn entry(&self, server: &MeasuredServer) -> Entry {
        let (name, mut params) = crate::cases::describe(self.case);
        params.extend(too_few_processors(self.case));
        let mut metrics = BTreeMap::new();
        let mut put = |name: &str, spread: Option<Spread>| {
            metrics.extend(spread.map(|spread| (name.to_owned(), spread)));
        };
        let samples = || server.samples.iter();
        for gauge in [
            "client_cpu_share",
            "server_cpu_share",
            "latency_p50_us",
            "latency_p99_us",
            "latency_p999_us",
            "due_per_s",
            "handshakes_per_s",
            "answer_bytes_per_message",
            "rss_bytes_per_connection",
            "anonymous_bytes_per_connection",
        ] {
            put(gauge, Spread::of(samples().filter_map(|sample| sample.gauge(gauge))));
        }
        let is_idle =
            matches!(self.case.workload(), Case::IdleConnection { .. }) || is_idle(self.case);
        if !is_idle {
            let unit = crate::cases::unit(self.case);
            put(&units_per_s(unit), Spread::of(samples().map(Sample::per_s)));
            put(
                &format!("{}_cpu_us_per_{unit}", server.side.name()),
                Spread::of(samples().map(Sample::cpu_us)),
            );
            put(
                &format!("allocations_per_{unit}"),
                Spread::of(samples().filter_map(|sample| sample.allocations)),
            );
            for (name, spread) in self.ratios(server, unit) {
                put(&name, spread);
            }
        }
        Entry {
            suite: self.case.suite().to_owned(),
            case: name,
            params,
            implementation: server.name.to_owned(),
            backend: server.backend.to_owned(),
            version: match server.side {
                Side::Server => server.process.server.version.clone(),
                Side::Client => server.client.version.clone(),
            },
            metrics,
            samples: if is_idle { Vec::new() } else { rounded(samples().map(Sample::per_s)) },
        }
    }

    /// Returns the ratios of this server to others, taken within each repetition.
    fn ratios(&self, this: &MeasuredServer, unit: &str) -> Vec<(String, Option<Spread>)> {
        let per_s = |of: &MeasuredServer| {
            of.samples.iter().map(Sample::per_s).collect::<Vec<_>>().into_iter()
        };
        let cpu = |of: &MeasuredServer| {
            of.samples.iter().map(Sample::cpu_us).collect::<Vec<_>>().into_iter()
        };
        let late = |of: &MeasuredServer| {
            let latencies = of.samples.iter().filter_map(|sample| sample.gauge("latency_p99_us"));
            latencies.collect::<Vec<_>>().into_iter()
        };
        let mut ratios = Vec::new();
        let is_this =
            |other: &&MeasuredServer| (other.name, other.backend) == (this.name, this.backend);
        for other in self.servers.iter().filter(|other| !is_this(other)) {
            if (other.name, other.backend) == (this.name, "epoll") {
                let both = ratio(per_s(this), per_s(other));
                ratios.push((format!("{}_over_epoll_ratio", units_per_s(unit)), both));
                ratios
                    .push(("server_cpu_over_epoll_ratio".to_owned(), ratio(cpu(this), cpu(other))));
                let latency = |of: &MeasuredServer| {
                    let latencies = of.samples.iter().filter_map(|s| s.gauge("latency_p50_us"));
                    latencies.collect::<Vec<_>>().into_iter()
                };
                let both = ratio(latency(this), latency(other));
                ratios.push(("latency_p50_over_epoll_ratio".to_owned(), both));
                continue;
            }
            if [FLOOR, TOKIO_ECHO, UWEBSOCKETS].contains(&other.name) {
                let both = ratio(per_s(this), per_s(other));
                ratios.push((format!("{}_over_{}_ratio", units_per_s(unit), other.name), both));
                ratios.push((
                    format!("server_cpu_over_{}_ratio", other.name),
                    ratio(cpu(this), cpu(other)),
                ));
            }
            if other.name == WINDLASS && ![FLOOR, WINDLASS].contains(&this.name) {
                // The name without a backend means epoll.
                let on = if other.backend == "epoll" {
                    String::new()
                } else {
                    format!("{}_", other.backend)
                };
                let both = ratio(per_s(other), per_s(this));
                ratios.push((format!("windlass_{on}{}_over_this_ratio", units_per_s(unit)), both));
                if matches!(self.case.suite(), "fairness" | "fixed-rate") {
                    let name = format!("windlass_{on}latency_p99_over_this_ratio");
                    ratios.push((name, ratio(late(other), late(this))));
                }
                // The client of TLS does as much cryptography as the server, and limits the rates.
                if self.case.suite() == "tls" {
                    let name = format!("windlass_{on}server_cpu_over_this_ratio");
                    ratios.push((name, ratio(cpu(other), cpu(this))));
                }
            }
        }
        if is_compared(this.name) {
            let rate =
                |of: &&MeasuredServer| Spread::of(per_s(of)).map_or(0.0, |spread| spread.median);
            let peers = || self.servers.iter().filter(|other| other.workspace == Workspace::Peers);
            let named = |name: &'static str| peers().find(|other| other.name == name);
            let best = peers().max_by(|one, other| rate(one).total_cmp(&rate(other)));
            let named = ["tungstenite", "tungstenite-untuned", "axum", "axum-untuned"]
                .map(|name| (name, named(name)));
            for (name, other) in named.into_iter().chain([("best_peer", best)]) {
                let Some(other) = other else { continue };
                let rates = ratio(per_s(this), per_s(other));
                ratios.push((format!("{}_over_{name}_ratio", units_per_s(unit)), rates));
                let times = ratio(cpu(this), cpu(other));
                ratios.push((format!("{}_cpu_over_{name}_ratio", this.side.name()), times));
            }
        }
        ratios
    }
}

/// Checks that the server has a listener for each thread of its case.
fn check_workers(case: &Case, address: SocketAddr) -> Result<(), MeasureError> {
    let Some(threads) = server_threads(case) else { return Ok(()) };
    match listeners(address) {
        Ok(count) if count == threads => Ok(()),
        Ok(count) => Err(MeasureError::failed(format!("{count} threads listen, not {threads}"))),
        Err(error) => Err(MeasureError::failed(format!("its listeners are unknown: {error}"))),
    }
}

/// Returns the name of a rate: `messages_per_s` for `message`.
fn units_per_s(unit: &str) -> String {
    match unit.strip_suffix('y') {
        Some(stem) => format!("{stem}ies_per_s"),
        None => format!("{unit}s_per_s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_driver::load::LoadCase;

    #[test]
    fn a_server_without_the_threads_of_its_case_fails() {
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let workers = |workers| Case::Load(LoadCase::Workers { workers, connections: 100 });
        assert_eq!(check_workers(&workers(1), address), Ok(()));
        let told = check_workers(&workers(4), address);
        assert_eq!(told, Err(MeasureError::failed("1 threads listen, not 4")));
        assert_eq!(check_workers(&Case::Upgrade { parallel: 1 }, address), Ok(()));
    }

    #[test]
    fn a_rate_is_named_after_what_is_counted() {
        assert_eq!(units_per_s("message"), "messages_per_s");
        assert_eq!(units_per_s("delivery"), "deliveries_per_s");
    }

    #[test]
    fn a_sample_divides_by_what_was_measured() {
        let mut outcome = Outcome { ns: 2_000, units: 4, turns: 8, ..Outcome::default() };
        outcome.gauges.insert("server_cpu_ns".to_owned(), 1_000.0);
        let sample = Sample { outcome, side: Side::Server, allocations: None };
        assert_eq!((sample.per_s(), sample.cpu_us()), (2e6, 0.25));
    }
}
