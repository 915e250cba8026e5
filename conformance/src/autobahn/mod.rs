//! The Autobahn TestSuite: installs it, runs its cases in several processes, and compares the
//! outcomes with the committed table.

mod cases;
mod client;
mod compat;
mod shards;
mod suite;
mod table;
#[cfg(feature = "tungstenite")]
mod tungstenite;
mod verdict;
mod websocket;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use self::cases::CaseId;
use self::compat::Compat;
use self::suite::{Installation, Job};
use self::verdict::{CaseOutcome, Outcomes};
use self::websocket::Runtime;
use crate::echo_server::EchoServer;
use crate::server::Server;

/// Number of parts per concurrent process. A part that takes longer than expected delays the end by
/// at most its own duration.
const PARTS_PER_SHARD: usize = 4;

/// The suite's messages have up to 16 MiB, and are echoed.
const SERVER_OPTIONS: [&str; 4] = ["--message-max", "16777216", "--buffer", "33554432"];

/// Groups that need an extension, which tungstenite does not have, and our crates with its
/// interface only if they are asked.
const COMPRESSION: [u16; 2] = [12, 13];

fn can_run_uncompressed(case: &CaseId) -> bool {
    !COMPRESSION.contains(&case.group())
}

/// What the suite tests. It has a table of its own.
#[derive(Clone, Copy, Debug)]
struct Tested {
    /// In the names of its runs and of its table.
    role: &'static str,
    /// In the comment of its table.
    subject: &'static str,
}

const SERVER: Tested = Tested { role: "server", subject: "Windlass" };
const CLIENT: Tested = Tested { role: "client", subject: "Windlass" };
const TUNGSTENITE: Tested =
    Tested { role: "tungstenite", subject: "tokio-tungstenite on windlass-task" };

/// The path of the committed table.
fn table_of(root: &Path, role: &str) -> PathBuf {
    root.join(format!("conformance/autobahn/results-{role}.txt"))
}

/// The options of `conformance autobahn`.
#[derive(Debug, clap::Args)]
pub(crate) struct AutobahnArgs {
    /// Run only the cases that take seconds, and a fixed sample of the others
    #[arg(long)]
    quick: bool,

    /// Case to run; may be repeated [default: all]
    #[arg(long, value_name = "CASE", conflicts_with = "quick")]
    case: Vec<CaseId>,

    /// Test the client instead of the server
    #[arg(long, conflicts_with = "server")]
    client: bool,

    /// Backend of the server: a value of `windlass serve --backend`
    #[arg(long, value_name = "NAME", default_value = "auto", conflicts_with = "server")]
    backend: String,

    /// Test tokio-tungstenite on windlass-task instead of the server, without the cases of
    /// compression, which it does not have; needs the feature `tungstenite`
    #[arg(long, conflicts_with_all = ["client", "server", "tls"])]
    tungstenite: bool,

    /// Test windlass-websocket on this runtime instead of the engine's own server or client. Its
    /// outcomes must be those of the engine's table
    #[arg(long, value_name = "RUNTIME", value_enum)]
    #[arg(conflicts_with_all = ["server", "tls", "tungstenite", "update"])]
    websocket: Option<Runtime>,

    /// Test this crate with the interface of tungstenite instead of the engine's own server or
    /// client. Its outcomes must be those of the engine's table
    #[arg(long, value_name = "CRATE", value_enum)]
    #[arg(conflicts_with_all = ["server", "tls", "tungstenite", "update", "websocket"])]
    compat: Option<Compat>,

    /// Test that crate with its default settings: without compression, and without the cases of it
    #[arg(long, requires = "compat")]
    uncompressed: bool,

    /// Connect with TLS: wss://. `windlass serve` then makes itself a certificate
    #[arg(long, conflicts_with = "client")]
    tls: bool,

    /// Number of concurrent processes of the suite [default: two per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: Option<u16>,

    /// Address of a running server to test, instead of starting `windlass serve`
    #[arg(long, value_name = "ADDR")]
    server: Option<SocketAddr>,

    /// Write the outcomes into the committed table
    #[arg(long)]
    update: bool,
}

/// Runs the suite. Returns true if every case passed and matches the table, or if the suite cannot
/// be installed.
pub(crate) fn run(args: &AutobahnArgs) -> Result<bool> {
    ensure!(
        cfg!(feature = "tungstenite") || !args.tungstenite,
        "this build has no tokio-tungstenite: cargo run --features tungstenite"
    );
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is in the workspace")?;
    let mut cases = match (&args.case[..], args.quick) {
        ([], true) => cases::quick(),
        ([], false) => cases::all(),
        (some, _) => some.to_vec(),
    };
    if args.tungstenite || args.uncompressed {
        cases.retain(can_run_uncompressed);
    }
    let Tested { role, subject } = match (args.client, args.tungstenite) {
        (true, _) => CLIENT,
        (_, true) => TUNGSTENITE,
        _ => SERVER,
    };
    // The format is that of `cargo test`, because `cargo xtask ci` counts the cases by these lines.
    let plain = if args.uncompressed { " uncompressed" } else { "" };
    let program = match (args.websocket, args.compat) {
        (Some(runtime), _) => format!("websocket {role} on {}", runtime.name()),
        (None, Some(tested)) => format!("{}{plain} {role}", tested.name()),
        (None, None) => role.to_owned(),
    };
    println!(
        "     Running {program} (conformance/autobahn-{})",
        if args.quick { "quick" } else { "whole" }
    );
    let wstest = match suite::install(root)? {
        Installation::There(wstest) => wstest,
        Installation::Cannot(reason) => {
            println!("test {} cases ... ignored, {reason}", cases.len());
            println!("test result: ok. 0 passed; 0 failed; {} ignored", cases.len());
            return Ok(true);
        }
    };
    let start = Instant::now();
    let run = match (args.client, args.tls) {
        _ if args.websocket.is_some() || args.compat.is_some() => program.replace(' ', "-"),
        (true, _) => role.to_owned(),
        (false, true) => format!("{role}-tls-{}", args.backend),
        (false, false) => format!("{role}-{}", args.backend),
    };
    let folder = crate::output::folder(root, "autobahn").join(run);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let shards = args.shards.map_or_else(default_shards, usize::from);
    let in_shards =
        |work: &Work<'_>| self::in_shards(&wstest, &cases, &folder, shards, |job| work(job));
    let is_compressed = !args.uncompressed;
    let (outcomes, faults) = match (args.client, args.websocket, args.compat) {
        (true, None, None) => in_shards(&|job| client::play(job, client::echo)),
        (true, Some(runtime), _) => in_shards(&|job| {
            client::play(job, |address, path| websocket::echo(runtime, address, path))
        }),
        (true, None, Some(tested)) => in_shards(&|job| {
            client::play(job, |address, path| compat::echo(tested, is_compressed, address, path))
        }),
        (false, Some(runtime), _) => {
            test_echo_server(websocket::serve(runtime, &args.backend)?, in_shards)
        }
        (false, None, Some(tested)) => {
            test_echo_server(compat::serve(tested, is_compressed)?, in_shards)
        }
        (false, None, None) if args.tungstenite => {
            test_echo_server(start_tungstenite(&args.backend)?, in_shards)
        }
        (false, None, None) => test_server(args, root, &folder, in_shards)?,
    };
    let table = table_of(root, role);
    if args.update {
        table::update(&table, subject, &outcomes)?;
    }
    // Another's outcomes are not ours to improve, but must stay as they are.
    let is_good = if args.tungstenite { CaseOutcome::is_legal } else { CaseOutcome::is_passed };
    let passed = report(&cases, &outcomes, &table::read(&table)?, &faults, is_good);
    println!("took {:.0} s; reports are in {}", start.elapsed().as_secs_f64(), folder.display());
    Ok(passed)
}

fn default_shards() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

/// What runs a part.
type Work<'a> = dyn Fn(&Job<'_>) -> Result<Outcomes> + Sync + 'a;

/// The outcomes, and the errors other than failed cases.
type Tests = (Outcomes, Vec<String>);

/// Runs the cases against the server.
fn test_server(
    args: &AutobahnArgs,
    root: &Path,
    folder: &Path,
    in_shards: impl Fn(&Work<'_>) -> Tests,
) -> Result<Tests> {
    let server = match args.server {
        Some(address) => Server::at(address),
        None => {
            let tls: &[&str] = if args.tls { &["--tls-self-signed"] } else { &[] };
            let backend = ["--mode", "echo", "--backend", &args.backend];
            let options = [&backend[..], tls, &SERVER_OPTIONS].concat();
            Server::start(root, &folder.join("server.log"), &options)?
        }
    };
    let url = format!("{}://{}/", if args.tls { "wss" } else { "ws" }, server.address);
    let (outcomes, mut faults) = in_shards(&|job| job.play_client(&url));
    faults.extend(server.stop().err().map(|error| format!("{error:#}")));
    Ok((outcomes, faults))
}

/// Runs the cases against a server of this process.
fn test_echo_server(server: EchoServer, in_shards: impl Fn(&Work<'_>) -> Tests) -> Tests {
    let url = format!("ws://{}/", server.address);
    let (outcomes, mut faults) = in_shards(&|job| job.play_client(&url));
    faults.extend(server.stop().err().map(|error| format!("{error:#}")));
    (outcomes, faults)
}

#[cfg(feature = "tungstenite")]
fn start_tungstenite(backend: &str) -> Result<EchoServer> {
    EchoServer::on_task(backend, self::tungstenite::echo)
}

/// [`run`] has refused the option.
#[cfg(not(feature = "tungstenite"))]
fn start_tungstenite(_: &str) -> Result<EchoServer> {
    anyhow::bail!("this build has no tokio-tungstenite")
}

/// Runs the parts, several at a time. The error of one part does not stop the others.
fn in_shards(
    wstest: &Path,
    cases: &[CaseId],
    folder: &Path,
    shards: usize,
    work: impl Fn(&Job<'_>) -> Result<Outcomes> + Sync,
) -> Tests {
    let parts = shards::split(cases, shards * PARTS_PER_SHARD);
    let queue: Mutex<VecDeque<(usize, &[CaseId])>> =
        Mutex::new(parts.iter().map(Vec::as_slice).enumerate().collect());
    let done = Mutex::new((Outcomes::new(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..shards {
            scope.spawn(|| {
                // No code panics while a lock is held.
                while let Some((index, cases)) =
                    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
                {
                    let job =
                        Job { wstest, cases, folder: folder.join(format!("part-{index:02}")) };
                    let outcome = work(&job);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match outcome {
                        Ok(outcomes) => done.0.extend(outcomes),
                        Err(error) => done.1.push(format!("part {index}: {error:#}")),
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the failures and the count. Returns true if there are no failures.
fn report(
    cases: &[CaseId],
    outcomes: &Outcomes,
    table: &Outcomes,
    faults: &[String],
    is_good: fn(&CaseOutcome, &CaseId) -> bool,
) -> bool {
    let mut failed = 0;
    for case in cases {
        if let Some(fault) = table::fault(case, outcomes, table, is_good) {
            println!("test {fault} ... FAILED");
            failed += 1;
        }
    }
    let surplus: Vec<&CaseId> = outcomes.keys().filter(|case| !cases.contains(case)).collect();
    if !surplus.is_empty() {
        println!("the suite ran cases that nobody asked for: {surplus:?}");
    }
    for fault in faults {
        println!("{fault}");
    }
    let is_good = failed == 0 && surplus.is_empty() && faults.is_empty();
    let verdict = if is_good { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {} passed; {failed} failed; 0 ignored", cases.len() - failed);
    is_good
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(cases: &[CaseId], run: &Outcomes, table: &Outcomes, faults: &[String]) -> bool {
        report(cases, run, table, faults, CaseOutcome::is_passed)
    }

    #[test]
    fn every_part_runs_and_a_failed_one_is_reported() {
        let cases = cases::all();
        let work = |job: &Job<'_>| {
            anyhow::ensure!(!job.folder.ends_with("part-03"), "broken");
            job.cases.iter().map(|case| Ok((case.clone(), "OK | OK | 1000".parse()?))).collect()
        };
        let (outcomes, faults) = in_shards(Path::new("wstest"), &cases, Path::new("out"), 3, work);
        assert_eq!(faults, ["part 3: broken"]);
        assert!(outcomes.len() < cases.len());
        assert!(!ours(&cases, &outcomes, &outcomes, &[]), "cases are missing");
    }

    /// An outcome that is altered in a table, or missing there, is a failure of the run.
    #[test]
    fn each_committed_table_has_all_cases_that_run_and_decides_about_them() {
        let whole = cases::all();
        let short = cases::quick().into_iter().filter(can_run_uncompressed).collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let good: fn(&CaseOutcome, &CaseId) -> bool = CaseOutcome::is_legal;
        for (tested, cases) in [(SERVER, whole.clone()), (CLIENT, whole), (TUNGSTENITE, short)] {
            let path = table_of(root, tested.role);
            let text = std::fs::read_to_string(&path).expect("the table is there");
            let table = table::read(&path).expect("it is well formed");
            assert_eq!(text, table::print(tested.subject, &table), "{}", tested.role);
            assert_eq!(table.len(), cases.len(), "{}", tested.role);
            assert!(report(&cases, &table, &table, &[], good), "{}", tested.role);
            for case in [&cases[0], &cases[cases.len() - 1]] {
                let mut altered = table.clone();
                altered.insert(case.clone(), "OK | OK | 4999".parse().expect("an outcome"));
                assert!(!report(&cases, &table, &altered, &[], good), "{case}");
                altered.remove(case);
                assert!(!report(&cases, &table, &altered, &[], good), "{case}");
            }
        }
    }

    #[test]
    fn a_run_is_good_only_without_any_fault() {
        let cases: Vec<CaseId> = vec!["1.1.1".parse().expect("a name")];
        let outcomes =
            |text: &str| Outcomes::from([(cases[0].clone(), text.parse().expect("an outcome"))]);
        let good = outcomes("OK | OK | 1000");
        assert!(ours(&cases, &good, &good, &[]));
        assert!(!ours(&cases, &good, &good, &["the server left".to_owned()]));
        assert!(!ours(&[], &good, &good, &[]), "nobody asked for it");
        assert!(!ours(&cases, &good, &outcomes("OK | OK | none"), &[]));
    }
}
