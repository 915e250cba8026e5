//! windlass-websocket against clients and servers of other languages, plain and over TLS.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::{
    ALONE, Client, Results, SILENCE_MAX, install, lines,
    our_client::{COMPRESSED, FRAGMENTS, OurClient, TESTS},
    our_server, report,
    verdict::Verdict,
};
use crate::process::Process;

/// A library of another language.
struct Library {
    /// The folder of `conformance/clients`.
    language: &'static str,
    /// The tests of its client.
    client: &'static [&'static str],
    /// Tests that its server cannot run, with the reason.
    cannot: &'static [(&'static str, &'static str)],
}

const LIBRARIES: [Library; 5] = [
    Library { language: "python", client: &ALONE, cannot: &[] },
    Library { language: "node", client: &ALONE, cannot: &[] },
    Library { language: "go", client: &ALONE, cannot: &[] },
    Library { language: "perl", client: &SHORT, cannot: &[] },
    Library {
        language: "ruby",
        client: &UNCOMPRESSED,
        cannot: &[
            (COMPRESSED, "websocket-driver compresses only with another library"),
            (FRAGMENTS, "websocket-driver sends no fragments"),
        ],
    },
];

/// Tests of [`ALONE`].
const SHORT: [&str; 6] = [
    "text_comes_back",
    "binary_comes_back",
    "compressed_text_comes_back",
    "compressed_binary_comes_back",
    "pings_are_answered",
    "closing_codes_come_back",
];
const UNCOMPRESSED: [&str; 4] =
    ["text_comes_back", "binary_comes_back", "pings_are_answered", "closing_codes_come_back"];

/// The identity of the servers of this run.
struct Identity {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// Runs all libraries. Returns true if no test failed.
pub(crate) fn run() -> Result<bool> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is in the workspace")?;
    let output = crate::output::folder(root, "clients");
    let folder = output.join("echo");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    println!("     Running echo (conformance/conformance-echo)");
    let start = Instant::now();
    let certificates = root.join("crates/tls/tests/certificates");
    let identity = Identity {
        authority: certificates.join("ca.pem"),
        certificate: certificates.join("localhost.pem"),
        key: certificates.join("localhost.key"),
    };
    let plain = our_server::plain()?;
    let secure = our_server::tls(&identity.certificate, &identity.key)?;
    let urls = [
        ("plain", format!("ws://{}", plain.address)),
        ("tls", format!("wss://localhost:{}", secure.address.port())),
    ];
    let mut results = Results::default();
    for library in &LIBRARIES {
        let name = library.language;
        match install::install(name, root, &output)? {
            Err(reason) => {
                for (way, _) in &urls {
                    results.ignore(&format!("client::{name}::{way}"), library.client, &reason);
                    results.ignore(&format!("server::{name}::{way}"), &TESTS, &reason);
                }
            }
            Ok(program) => {
                let client = Client { name, program };
                for (way, url) in &urls {
                    let said = alone(&client, way, url, &folder, &identity);
                    results.take(&format!("client::{name}::{way}"), said, library.client);
                    served(library, &client, way, &folder, &identity, &mut results);
                }
            }
        }
    }
    let fault = plain.stop().and_then(|()| secure.stop()).err().map(|error| format!("{error:#}"));
    Ok(report(&results, fault, start, &folder))
}

/// The lines of a client with our server.
fn alone(
    client: &Client,
    way: &str,
    url: &str,
    folder: &Path,
    identity: &Identity,
) -> Result<Vec<String>> {
    let command = client.program.command_trusting(&identity.authority, &["alone", url]);
    let log = folder.join(format!("{}-client-{way}.log", client.name));
    Process::start(command, &log).and_then(lines)
}

/// Runs the tests of our client with a server.
fn served(
    library: &Library,
    client: &Client,
    way: &str,
    folder: &Path,
    identity: &Identity,
    results: &mut Results,
) {
    let prefix = format!("server::{}::{way}", client.name);
    let started = start_server(client, way, folder, identity);
    for test in TESTS {
        let cannot = library.cannot.iter().find(|(name, _)| *name == test);
        let verdict = match (cannot, &started) {
            (Some((_, reason)), _) => Verdict::Ignored((*reason).to_owned()),
            (None, Ok((ours, _process))) => ours.run(test),
            (None, Err(error)) => Verdict::Failed(format!("{error:#}")),
        };
        results.0.push((format!("{prefix}::{test}"), verdict));
    }
}

/// Starts a server at a port of the kernel's choice. It is killed when its process is dropped.
fn start_server(
    client: &Client,
    way: &str,
    folder: &Path,
    identity: &Identity,
) -> Result<(OurClient, Process)> {
    let (certificate, key) =
        (identity.certificate.display().to_string(), identity.key.display().to_string());
    let (scheme, arguments) = match way {
        "plain" => ("ws", vec!["serve", "plain"]),
        _ => ("wss", vec!["serve", &*certificate, &*key]),
    };
    let log = folder.join(format!("{}-server-{way}.log", client.name));
    let process = Process::start(client.program.command(&arguments), &log)?;
    let port: u16 = process.wait_for(SILENCE_MAX, |line| {
        line.strip_prefix("listening on ").and_then(|port| port.parse().ok())
    })?;
    let host = if way == "plain" { "127.0.0.1" } else { "localhost" };
    Ok((OurClient::new(format!("{scheme}://{host}:{port}"), &identity.authority)?, process))
}
