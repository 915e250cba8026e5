//! Other people's clients against `windlass serve`: each alone, all of them in one room, and all of
//! them when the server stops.
//!
//! The clients are the programs in `conformance/clients`; what they test stands in
//! `conformance/README.md`.

mod install;
mod verdict;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use self::install::Program;
use self::verdict::Verdict;
use crate::process::Process;
use crate::server::Server;

/// The clients, by language: folders of `conformance/clients`.
const CLIENTS: [&str; 3] = ["python", "node", "go"];

/// What each client tests by itself.
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
/// The room once more, on a server whose connections are spread over workers.
const WORKERS_RELAY: &str = "two_workers::a_room_hears_everybody_in_order";

/// The longest message is what the clients know, and one of zeros is refused for its length;
/// nothing of what waits for a slow one is dropped.
const SERVER_OPTIONS: [&str; 6] =
    ["--message-max", "2097152", "--buffer", "16777216", "--inflate-ratio-max", "0"];

/// How long a client may say nothing. Each gives a test a minute.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// What `conformance clients` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientsArgs {
    /// What the server runs on; `windlass serve` says which there are
    #[arg(long, value_name = "NAME", default_value = "auto", conflicts_with = "server")]
    backend: String,

    /// Test this server, which listens already, instead of `windlass serve`; it is not stopped
    #[arg(long, value_name = "ADDR")]
    server: Option<SocketAddr>,
}

/// A client that is there.
struct Client {
    name: &'static str,
    program: Program,
}

/// What was found out, test by test.
#[derive(Default)]
struct Results(Vec<(String, Verdict)>);

impl Results {
    /// Adds what a client has said of these tests.
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

/// Runs the clients; true when no test failed.
pub(crate) fn run(args: &ClientsArgs) -> Result<bool> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is in the workspace")?;
    let output = crate::output::folder(root, "clients");
    let folder = output.join(&args.backend);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // The shape of these lines is that of `cargo test`, by which `cargo xtask ci` counts the tests.
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
    Ok(failed == 0)
}

/// Tests a server with these clients; what is wrong with the server itself is the answer.
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

/// Where the server is, and where logs go.
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

/// What a client says to its end, which must be a clean one.
fn lines(process: Process) -> Result<Vec<String>> {
    let (lines, status) = process.lines_to_end(SILENCE_MAX)?;
    ensure!(status.success(), "the client left with {status}");
    Ok(lines)
}

/// All clients in one room: each hears what the others say. The name of the test is given this
/// beginning.
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

/// The lines about tests with another beginning of their names.
fn prefixed(lines: Vec<String>, prefix: &str) -> Vec<String> {
    let rename = |line: String| match line.strip_prefix("test ") {
        Some(rest) => format!("test {prefix}{rest}"),
        None => line,
    };
    lines.into_iter().map(rename).collect()
}

/// All clients are there when the server is asked to stop.
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
