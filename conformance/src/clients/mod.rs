//! Third-party clients against `windlass serve`: each alone, all of them in one room, and all of
//! them when the server stops.
//!
//! The clients are the programs in `conformance/clients`. `conformance/README.md` describes their
//! tests.

pub(crate) mod echo;
mod install;
mod our_client;
mod our_server;
mod verdict;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use self::install::ClientProgram;
use self::verdict::Verdict;
use crate::process::Process;
use crate::server::Server;

/// The clients by language, which are folders of `conformance/clients`.
const CLIENTS: [&str; 3] = ["python", "node", "go"];

/// The tests of each client alone.
const ALONE: [&str; 13] = [
    "handshake_without_compression",
    "handshake_with_compression",
    "no_subprotocol_is_chosen",
    "another_origin_is_refused",
    "text_comes_back",
    "binary_comes_back",
    "compressed_text_comes_back",
    "compressed_binary_comes_back",
    "fragments_are_joined",
    "pings_are_answered",
    "closing_codes_come_back",
    "faults_close_with_their_code",
    "many_connections_at_once",
];
const RELAY: &str = "a_room_hears_everybody_in_order";
const GOODBYE: &str = "a_stop_says_goodbye";
/// The test of the room, on a server with several workers.
const WORKERS_RELAY: &str = "two_workers::a_room_hears_everybody_in_order";

/// The clients know the maximum message length, and one test expects that a longer message of zeros
/// is rejected for its length. The output buffer is large enough that no message is dropped.
const SERVER_OPTIONS: [&str; 6] =
    ["--message-max", "2097152", "--buffer", "16777216", "--inflate-ratio-max", "0"];

/// The option `--message-max`, for servers in this program.
const MESSAGE_MAX: usize = 2 << 20;

/// Maximum time without output of a client. Each client limits a test to a minute.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// The options of `conformance clients`.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientsArgs {
    /// Backend of the server: a value of `windlass serve --backend`
    #[arg(long, value_name = "NAME", default_value = "auto", conflicts_with = "server")]
    backend: String,

    /// Address of a running server to test, instead of starting `windlass serve`; it is not stopped
    #[arg(long, value_name = "ADDR")]
    server: Option<SocketAddr>,
}

/// An installed client.
struct Client {
    name: &'static str,
    program: ClientProgram,
}

/// The verdicts by test.
#[derive(Default)]
struct Results(Vec<(String, Verdict)>);

impl Results {
    /// Adds a client's verdicts of these tests.
    fn take(&mut self, client: &str, said: Result<Vec<String>>, expected: &[&str]) {
        let verdicts = match said {
            Ok(lines) => verdict::read(&lines, expected),
            Err(error) => {
                let failed =
                    |test: &&str| ((*test).to_owned(), Verdict::Failed(format!("{error:#}")));
                expected.iter().map(failed).collect()
            }
        };
        self.0.extend(
            verdicts.into_iter().map(|(test, verdict)| (format!("{client}::{test}"), verdict)),
        );
    }

    fn ignore(&mut self, client: &str, expected: &[&str], reason: &str) {
        let ignored =
            |test: &&str| (format!("{client}::{test}"), Verdict::Ignored(reason.to_owned()));
        self.0.extend(expected.iter().map(ignored));
    }

    fn count(&self, is_it: fn(&Verdict) -> bool) -> usize {
        self.0.iter().filter(|(_, verdict)| is_it(verdict)).count()
    }
}

/// Runs the clients. Returns true if no test failed.
pub(crate) fn run(args: &ClientsArgs) -> Result<bool> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is in the workspace")?;
    let output = crate::output::folder(root, "clients");
    let folder = output.join(&args.backend);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // The format is that of `cargo test`, because `cargo xtask ci` counts the tests by these lines.
    println!("     Running clients (conformance/conformance-clients)");
    let start = Instant::now();
    let mut results = Results::default();
    let mut clients = Vec::new();
    for name in CLIENTS {
        match install::install(name, root, &output)? {
            Ok(program) => clients.push(Client { name, program }),
            Err(reason) => results.ignore(
                name,
                &[&ALONE[..], &[RELAY, GOODBYE, WORKERS_RELAY]].concat(),
                &reason,
            ),
        }
    }
    let fault = if clients.is_empty() {
        None
    } else {
        test(args, root, folder.clone(), &clients, &mut results)?
    };
    Ok(report(&results, fault, start, &folder))
}

/// Prints the verdicts and their number. Returns true if no test failed.
fn report(results: &Results, fault: Option<String>, start: Instant, folder: &Path) -> bool {
    for (test, verdict) in &results.0 {
        println!("test {test} ... {verdict}");
    }
    if let Some(fault) = &fault {
        println!("{fault}");
    }
    let passed = results.count(|verdict| *verdict == Verdict::Passed);
    let failed = results.count(|verdict| matches!(verdict, Verdict::Failed(_)))
        + usize::from(fault.is_some());
    let ignored = results.count(|verdict| matches!(verdict, Verdict::Ignored(_)));
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
    println!("took {:.0} s; logs are in {}", start.elapsed().as_secs_f64(), folder.display());
    println!("{passed} passed, {failed} failed, {ignored} skipped");
    failed == 0
}

/// Tests a server with these clients. Returns the fault of the server itself, if it has one.
fn test(
    args: &ClientsArgs,
    root: &Path,
    folder: PathBuf,
    clients: &[Client],
    results: &mut Results,
) -> Result<Option<String>> {
    let options = [&SERVER_OPTIONS[..], &["--backend", &args.backend]].concat();
    let server = match args.server {
        Some(address) => Server::at(address),
        None => Server::start(root, &folder.join("server.log"), &options)?,
    };
    let run = TestRun { url: format!("ws://{}", server.address), folder };
    for client in clients {
        results.take(client.name, run.start(client, "alone", &[]).and_then(lines), &ALONE);
    }
    relay(&run, clients, "", results);
    if args.server.is_some() {
        for client in clients {
            results.ignore(client.name, &[GOODBYE, WORKERS_RELAY], "the server is somebody else's");
        }
        return Ok(None);
    }
    let fault = stop_with_clients(&run, clients, server, results);
    let log = run.folder.join("server-workers.log");
    let server = Server::start(root, &log, &[&options[..], &["--workers", "2"]].concat())?;
    let run = TestRun { url: format!("ws://{}", server.address), ..run };
    relay(&run, clients, "two_workers::", results);
    let stopped = server.stop().err().map(|error| format!("with two workers: {error:#}"));
    Ok(fault.or(stopped))
}

/// The address of the server, and the folder for logs.
struct TestRun {
    url: String,
    folder: PathBuf,
}

impl TestRun {
    fn start(&self, client: &Client, what: &str, names: &[&str]) -> Result<Process> {
        let command = client.program.command(&[&[what, &*self.url], names].concat());
        Process::start(command, &self.folder.join(format!("{}-{what}.log", client.name)))
    }
}

/// Returns the lines of a client until its end, whose exit status must be 0.
fn lines(process: Process) -> Result<Vec<String>> {
    let (lines, status) = process.lines_to_end(SILENCE_MAX)?;
    ensure!(status.success(), "the client left with {status}");
    Ok(lines)
}

/// Connects all clients to one room, in which each receives the messages of the others. `prefix` is
/// the beginning of the test's name.
fn relay(run: &TestRun, clients: &[Client], prefix: &str, results: &mut Results) {
    if let [only] = clients {
        return results.ignore(only.name, &[&format!("{prefix}{RELAY}")], "there is nobody else");
    }
    let start = |client: &Client| {
        let peers = clients.iter().map(|peer| peer.name).filter(|peer| *peer != client.name);
        let names: Vec<&str> = std::iter::once(client.name).chain(peers).collect();
        run.start(client, "relay", &names)
    };
    let started: Vec<Result<Process>> = clients.iter().map(start).collect();
    for (client, process) in clients.iter().zip(started) {
        let said = process.and_then(lines).map(|lines| prefixed(lines, prefix));
        results.take(client.name, said, &[&format!("{prefix}{RELAY}")]);
    }
}

/// Returns the lines with `prefix` at the beginning of the tests' names.
fn prefixed(lines: Vec<String>, prefix: &str) -> Vec<String> {
    let rename = |line: String| match line.strip_prefix("test ") {
        Some(rest) => format!("test {prefix}{rest}"),
        None => line,
    };
    lines.into_iter().map(rename).collect()
}

/// Stops the server while all clients are connected.
fn stop_with_clients(
    run: &TestRun,
    clients: &[Client],
    server: Server,
    results: &mut Results,
) -> Option<String> {
    let start = |client: &Client| {
        let process = run.start(client, "goodbye", &[])?;
        process.wait_for(SILENCE_MAX, |line| (line == "ready").then_some(()))?;
        Ok(process)
    };
    let started: Vec<Result<Process>> = clients.iter().map(start).collect();
    let stopped = server.stop();
    for (client, process) in clients.iter().zip(started) {
        results.take(client.name, process.and_then(lines), &[GOODBYE]);
    }
    stopped.err().map(|error| format!("{error:#}"))
}
