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

use std::path::Path;

use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::Case;

use crate::cases::load::threads;
use crate::cases::servers::{SUITES, cases, counted};
use crate::error::MeasureError;
use crate::options::Options;
use crate::pin::Pin;
use crate::programs::Program;
use crate::programs::servers::{CLIENT, SERVERS, UNSUPPORTED};
use crate::report::Report;

use built::{BuiltServer, Processors, build};
use timing::ServerTiming;

/// Runs the requested suites.
pub(crate) fn run(options: &Options, pin: Pin, report: &mut Report) {
    for suite in SUITES.iter().filter(|suite| options.wants_suite(suite)) {
        if let Err(error) = run_suite(suite, options, pin, report) {
            report.skip(suite, "*", "*", error);
        }
    }
}

fn run_suite(
    suite: &str,
    options: &Options,
    pin: Pin,
    report: &mut Report,
) -> Result<(), MeasureError> {
    // A cluster is several processes, which share all processors.
    let pin = if suite == "cluster" { Pin::Nowhere } else { pin };
    let processors = Processors::choose(pin)?;
    let client = build(&CLIENT)?;
    let servers = build_all(suite, options, report);
    let is_timed = |case: &&Case| !options.counts_only && options.wants(case);
    for case in cases(suite, options.quick).iter().filter(is_timed) {
        let (name, params) = crate::cases::describe(case);
        let params: Vec<String> =
            params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        eprintln!("{suite}/{name} {}", params.join(" "));
        for (_, server, reason) in UNSUPPORTED
            .iter()
            .filter(|(part, server, _)| is_part(case, part) && options.wants_peer(server))
        {
            report.skip(suite, &name, server, MeasureError::Unsupported((*reason).to_owned()));
        }
        let participating = servers.iter().filter(|built| built.server.program.has(case.part()));
        match case {
            Case::Load(LoadCase::FirstAnswer) => {
                starts::run(case, participating, &client, processors, options.quick, report)?;
            }
            _ => {
                // Threads that share all processors are not pinned.
                let is_shared = threads(case).is_some();
                let processors = Processors::choose(if is_shared { Pin::Nowhere } else { pin })?;
                ServerTiming::run(case, participating, &client, processors, options.quick, report);
            }
        }
    }
    count_suite(suite, &servers, &client, options, processors, report);
    if suite == "websocket" {
        over_floor::add(&mut report.results);
    }
    Ok(())
}

/// Counts the cases of a suite whose counts are results.
fn count_suite(
    suite: &str,
    servers: &[BuiltServer],
    client: &Path,
    options: &Options,
    processors: Processors,
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
        counts::count(suite, servers, client, options, processors, report);
    }
}

fn is_part(case: &Case, part: &str) -> bool {
    case.part() == part
}

/// Builds the servers that take part in a suite.
fn build_all(suite: &str, options: &Options, report: &mut Report) -> Vec<BuiltServer> {
    let mut built = Vec::new();
    for server in SERVERS.iter().filter(|server| server.program.suites().contains(&suite)) {
        if !options.wants_program(&server.program) {
            continue;
        }
        let path = build(&server.program).and_then(|path| match server.counted {
            // The program for callgrind is in the same directory.
            Some(binary) if !options.no_counts => {
                build(&Program { binary, ..server.program }).map(|_| path)
            }
            _ => Ok(path),
        });
        let both = path.and_then(|path| match &server.served_by {
            None => Ok((path, None)),
            Some(served_by) => Ok((build(served_by)?, Some(path))),
        });
        match both {
            Ok((path, client)) => {
                let backends = server.program.backends(&options.backends).into_iter();
                built.extend(backends.map(|backend| BuiltServer {
                    server,
                    backend,
                    path: path.clone(),
                    client: client.clone(),
                }));
            }
            Err(error) => report.skip(suite, "*", server.program.name, error),
        }
    }
    built
}
