//! The suites that measure servers: programs that listen on a port, and one client for all of them.
//!
//! A case is set up on every server at once, each with a client of its own; then their slices take
//! turns, as everywhere. The server has one processor, the client another.

mod contest;
mod counts;
mod plan;
mod process;
mod programs;

use std::path::{Path, PathBuf};

use windlass_bench_driver::protocol::Case;

use crate::child::Refusal;
use crate::cli::{Options, Pin};
use crate::program::Program;
use crate::report::Report;

pub(crate) use plan::{SUITES, cases};
pub(crate) use programs::SERVERS;

use contest::Contest;
use programs::{CLIENT, LACKS, Server};

/// Where the server and the client of a case run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    server: Option<usize>,
    client: Option<usize>,
    /// Both come before whatever else would run there.
    first: bool,
}

/// A server whose program has been built.
#[derive(Debug)]
struct Built {
    server: &'static Server,
    backend: &'static str,
    path: PathBuf,
}

/// Runs those of the suites that are asked for.
pub(crate) fn run(options: &Options, pin: Pin, report: &mut Report) {
    for suite in SUITES.iter().filter(|suite| options.wants_suite(suite)) {
        if let Err(refusal) = run_suite(suite, options, pin, report) {
            report.refuse(suite, "*", "*", refusal);
        }
    }
}

fn run_suite(suite: &str, options: &Options, pin: Pin, report: &mut Report) -> Result<(), Refusal> {
    let places = places(pin)?;
    let client = build(&CLIENT)?;
    let servers = build_all(suite, options, report);
    for case in
        cases(suite).iter().filter(|case| options.wants_case(&crate::plan::describe(case).0))
    {
        let (name, params) = crate::plan::describe(case);
        let params: Vec<String> =
            params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        eprintln!("{suite}/{name} {}", params.join(" "));
        for (_, server, reason) in LACKS
            .iter()
            .filter(|(part, server, _)| is_part(case, part) && options.wants_peer(server))
        {
            report.refuse(suite, &name, server, Refusal::Unsupported((*reason).to_owned()));
        }
        let taking_part = servers.iter().filter(|built| built.server.program.has(case.part()));
        Contest::hold(case, taking_part, &client, places, options.quick, report);
    }
    let wants_counts = options.wants_case("instructions") || options.wants_case("system_calls");
    if !options.no_counts && wants_counts {
        counts::count(suite, &servers, &client, options, places, report);
    }
    Ok(())
}

fn is_part(case: &Case, part: &str) -> bool {
    case.part() == part
}

fn build(program: &Program) -> Result<PathBuf, Refusal> {
    eprintln!("building {} (release)", program.name);
    program.build("release").map_err(Refusal::Unsupported)
}

/// Builds the servers that take part in a suite.
fn build_all(suite: &str, options: &Options, report: &mut Report) -> Vec<Built> {
    let mut built = Vec::new();
    for server in SERVERS.iter().filter(|server| server.program.suites().contains(&suite)) {
        if !server.program.is_wanted(&options.peers) {
            continue;
        }
        match build(&server.program) {
            Ok(path) => {
                let backends = server.program.backends(&options.backends).into_iter();
                built.extend(backends.map(|backend| Built { server, backend, path: path.clone() }));
            }
            Err(refusal) => report.refuse(suite, "*", server.program.name, refusal),
        }
    }
    built
}

impl Built {
    fn name(&self) -> &'static str {
        self.server.program.name
    }

    /// The arguments of the server for a case.
    fn arguments(&self, case: &Case, cpu: Option<usize>, first: bool) -> Vec<String> {
        let mut arguments = process::arguments(case, cpu, first);
        if self.server.program.backends.len() > 1 {
            arguments.extend(["--backend".to_owned(), self.backend.to_owned()]);
        }
        arguments
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A processor for each side: the one that is asked for is the server's.
fn places(pin: Pin) -> Result<Places, Refusal> {
    let Pin::To(server) = pin else {
        return Ok(Places { server: None, client: None, first: false });
    };
    let client = allowed_cpus().into_iter().find(|&cpu| cpu != server);
    let one = || {
        Refusal::Unsupported(
            "there is only one processor, and server and client need one each".into(),
        )
    };
    Ok(Places {
        server: Some(server),
        client: Some(client.ok_or_else(one)?),
        first: may_be_first(),
    })
}

/// Whether programs may come before others that share their processor. A thread tries it, for it
/// changes the caller.
fn may_be_first() -> bool {
    std::thread::spawn(windlass_bench_driver::first).join().unwrap_or(false)
}

fn allowed_cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    cpus(list)
}

/// Reads a list as the kernel writes it: `0-2,5`.
fn cpus(list: &str) -> Vec<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpus("\t0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(cpus("3"), [3]);
        assert!(cpus("").is_empty());
    }

    #[test]
    fn without_pinning_nobody_has_a_place() {
        let places = places(Pin::Nowhere).unwrap();
        assert_eq!((places.server, places.client), (None, None));
    }
}
