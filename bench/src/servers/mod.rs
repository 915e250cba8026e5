//! The suites that measure servers, programs that listen on a port, with one client for all of
//! them.
//!
//! A case is set up on all servers at once, each with a client of its own. Then their slices take
//! turns. The server and the client have a processor each.

mod built;
mod counts;
mod over_floor;
mod process;
mod starts;
mod timing;

use std::collections::BTreeSet;
use std::path::Path;

use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::Case;

use crate::cases::server_threads;
use crate::cases::servers::{SUITES, ServerShape, counted, shape};
use crate::error::MeasureError;
use crate::limit::Limit;
use crate::options::Options;
use crate::pin::Pin;
use crate::plan::{Step, Work, scaled_server};
use crate::programs::Program;
use crate::programs::build::Built;
use crate::programs::servers::{CLIENT, SERVERS, UNSUPPORTED};
use crate::report::Report;
use crate::session::Session;

use built::{BuiltServer, Processors};
use timing::ServerTiming;

/// Returns the programs that these suites need: servers, and the client for them.
pub(crate) fn programs(options: &Options, suites: &BTreeSet<&str>) -> Vec<Program> {
    if !suites.iter().any(|suite| SUITES.contains(suite)) {
        return Vec::new();
    }
    let mut programs = vec![CLIENT];
    for server in SERVERS {
        let takes_part = server.program.suites().iter().any(|suite| suites.contains(suite));
        if takes_part && options.wants_program(&server.program) {
            programs.push(server.program);
            let counted = server.counted.filter(|_| !options.no_counts);
            programs.extend(counted.map(|binary| Program { binary, ..server.program }));
            programs.extend(server.served_by);
        }
    }
    programs
}

/// Runs the steps of a suite.
pub(crate) fn run<'a>(
    suite: &'static str,
    steps: impl Iterator<Item = &'a Step>,
    options: &Options,
    built: &Built,
    pin: Pin,
    session: &mut Session,
) -> anyhow::Result<()> {
    // A cluster is several processes, which share all processors.
    let pin = if suite == "cluster" { Pin::Nowhere } else { pin };
    let chosen = Processors::choose(pin)
        .and_then(|chosen| Ok((chosen, built.path(&CLIENT).map_err(MeasureError::Unsupported)?)));
    let (processors, client) = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            session.report.skip(suite, "*", "*", error);
            return Ok(());
        }
    };
    let servers = find_all(suite, options, built, &mut session.report);
    for step in steps {
        session.step(step, |report, limit| match &step.work {
            Work::Server(case) => {
                let shape = scaled_server(shape(case, options.quick), limit.scale);
                // Threads that share all processors are not pinned.
                let is_shared = server_threads(case).is_some();
                let chosen = Processors::choose(if is_shared { Pin::Nowhere } else { pin });
                let timed = chosen.and_then(|processors| {
                    time(case, shape, &servers, &client, options, processors, report)
                });
                if let Err(error) = timed {
                    report.skip(suite, &crate::cases::describe(case).0, "*", error);
                }
            }
            _ => count_suite(suite, &servers, &client, options, processors, limit, report),
        })?;
    }
    if suite == "websocket" {
        over_floor::add(&mut session.report.results);
    }
    Ok(())
}

fn time(
    case: &Case,
    shape: ServerShape,
    servers: &[BuiltServer],
    client: &Path,
    options: &Options,
    processors: Processors,
    report: &mut Report,
) -> Result<(), MeasureError> {
    let (name, _) = crate::cases::describe(case);
    for (_, server, reason) in UNSUPPORTED
        .iter()
        .filter(|(part, server, _)| is_part(case, part) && options.wants_peer(server))
    {
        report.skip(case.suite(), &name, server, MeasureError::Unsupported((*reason).to_owned()));
    }
    let participating = servers.iter().filter(|built| built.server.program.has(case.part()));
    if matches!(case, Case::Load(LoadCase::FirstAnswer)) {
        return starts::run(case, participating, client, processors, shape.slices, report);
    }
    ServerTiming::run(case, participating, client, processors, shape, report);
    Ok(())
}

/// Counts the cases of a suite whose counts are results.
fn count_suite(
    suite: &str,
    servers: &[BuiltServer],
    client: &Path,
    options: &Options,
    processors: Processors,
    limit: Limit,
    report: &mut Report,
) {
    if options.counts_only && options.wants_case("allocations") {
        for (case, _) in counted(suite, options.quick) {
            let takes_part = |built: &&BuiltServer| built.server.program.has(case.part());
            let servers = servers.iter().filter(takes_part);
            ServerTiming::count_allocations(&case, servers, client, processors, report);
        }
    }
    let wants_counts = options.wants_case("instructions") || options.wants_case("system_calls");
    if !options.no_counts && wants_counts {
        counts::count(suite, servers, client, options, processors, limit, report);
    }
}

fn is_part(case: &Case, part: &str) -> bool {
    case.part() == part
}

/// Returns the servers that take part in a suite, on each backend.
fn find_all(
    suite: &str,
    options: &Options,
    programs: &Built,
    report: &mut Report,
) -> Vec<BuiltServer> {
    let mut found = Vec::new();
    for server in SERVERS.iter().filter(|server| server.program.suites().contains(&suite)) {
        if !options.wants_program(&server.program) {
            continue;
        }
        // The program for callgrind is in the same directory.
        let counted = server.counted.filter(|_| !options.no_counts);
        let path = programs.path(&server.program).and_then(|path| match counted {
            Some(binary) => programs.path(&Program { binary, ..server.program }).map(|_| path),
            None => Ok(path),
        });
        let both = path.and_then(|path| match &server.served_by {
            None => Ok((path, None)),
            Some(served_by) => Ok((programs.path(served_by)?, Some(path))),
        });
        match both {
            Ok((path, client)) => {
                let backends = server.program.backends(&options.backends).into_iter();
                found.extend(backends.map(|backend| BuiltServer {
                    server,
                    backend,
                    path: path.clone(),
                    client: client.clone(),
                }));
            }
            Err(reason) => {
                let error = MeasureError::Unsupported(reason);
                report.skip(suite, "*", server.program.name, error);
            }
        }
    }
    found
}
