//! Starts of servers, from nothing to the first answer. The servers take turns.
//!
//! 1. The process is started, and says that it listens.
//! 2. The client, which runs already, opens a connection and has a message echoed.
//! 3. It reads the processor time and the memory of the server, which is then killed.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use windlass_bench_driver::protocol::{Case, Outcome, Reply, Request};

use super::built::{BuiltServer, Processors};
use super::process::ServerProcess;
use crate::child::Child;
use crate::error::MeasureError;
use crate::programs::WINDLASS;
use crate::report::stats::{Spread, rounded};
use crate::report::{Entry, Report};
use crate::timing::{Shuffle, ratio};

/// A server in its turn, with the results of its starts.
struct Started<'a> {
    built: &'a BuiltServer,
    version: String,
    starts: Vec<Start>,
}

struct Start {
    listening_us: f64,
    first: Outcome,
}

impl Start {
    fn us(&self) -> f64 {
        self.listening_us + self.first.ns as f64 / 1e3
    }
}

/// Starts all servers many times, and adds the results to the report.
pub(super) fn run<'a>(
    case: &Case,
    servers: impl Iterator<Item = &'a BuiltServer>,
    client: &Path,
    processors: Processors,
    slices: usize,
    report: &mut Report,
) -> Result<(), MeasureError> {
    let mut client = Child::start_as(client, processors.client_pin(), processors.first)?;
    let begun = |built| Started { built, version: String::new(), starts: Vec::new() };
    let mut all: Vec<_> = servers.map(begun).collect();
    let order: Vec<_> = all.iter().map(|of| (of.built.name(), of.built.backend)).collect();
    let mut shuffle = Shuffle(slices as u64);
    // The first start brings the program into memory.
    for number in 0..=slices {
        shuffle.apply(&mut all);
        all.retain_mut(|of| match start(of, case, &mut client, processors) {
            Ok(start) => {
                of.starts.extend((number > 0).then_some(start));
                true
            }
            Err(error) => {
                report.skip(case.suite(), "first_answer", of.built.name(), error);
                false
            }
        });
    }
    all.sort_by_key(|of| order.iter().position(|who| *who == (of.built.name(), of.built.backend)));
    let windlass = all.iter().find(|of| of.built.name() == WINDLASS);
    report.results.extend(all.iter().map(|of| entry(case, of, windlass)));
    Ok(())
}

fn start(
    of: &mut Started<'_>,
    case: &Case,
    client: &mut Child,
    processors: Processors,
) -> Result<Start, MeasureError> {
    let mut command = Command::new(of.built.path());
    command.args(of.built.arguments(case, processors.server, processors.first));
    let begun = Instant::now();
    let process = ServerProcess::start(command)?;
    let listening_us = begun.elapsed().as_nanos() as f64 / 1e3;
    of.version.clone_from(&process.server.version);
    match client.ask(&Request::Connect { case: case.clone(), server: process.server.clone() })? {
        Reply::Ready => Ok(Start { listening_us, first: client.slice(1)? }),
        reply => Err(MeasureError::Failed(format!("not ready but {reply:?}"))),
    }
}

fn entry(case: &Case, of: &Started<'_>, windlass: Option<&Started<'_>>) -> Entry {
    let (name, params) = crate::cases::describe(case);
    let us = |of: &Started<'_>| of.starts.iter().map(Start::us).collect::<Vec<_>>().into_iter();
    let gauge = |name: &str| {
        Spread::of(of.starts.iter().filter_map(|start| start.first.gauges.get(name).copied()))
    };
    let cpu_ns = of.starts.iter().filter_map(|start| start.first.gauges.get("server_cpu_ns"));
    let other = windlass.filter(|windlass| windlass.built.name() != of.built.name());
    let metrics = [
        ("us_per_start", Spread::of(us(of))),
        ("listening_us", Spread::of(of.starts.iter().map(|start| start.listening_us))),
        ("server_cpu_us_per_start", Spread::of(cpu_ns.map(|ns| ns / 1e3))),
        ("rss_bytes_after_start", gauge("rss_bytes_after_start")),
        ("anonymous_bytes_after_start", gauge("anonymous_bytes_after_start")),
        ("windlass_us_over_this_ratio", other.and_then(|windlass| ratio(us(windlass), us(of)))),
    ];
    let metrics = metrics.into_iter();
    Entry {
        suite: case.suite().to_owned(),
        case: name,
        params,
        implementation: of.built.name().to_owned(),
        backend: of.built.backend.to_owned(),
        version: of.version.clone(),
        metrics: metrics.filter_map(|(name, spread)| Some((name.to_owned(), spread?))).collect(),
        samples: rounded(us(of)),
    }
}
