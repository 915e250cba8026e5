//! The stages of the program `conformance`: the Autobahn TestSuite, and clients and servers of
//! others.

use super::backends;
use crate::command::Cmd;
use crate::stage::{Part, Stage, Step};

/// Runs the program of `conformance`.
const CONFORMANCE: &[&str] = &["run", "--release", "-p", "conformance"];

fn conformance(suite: &str) -> Cmd {
    Cmd::cargo(CONFORMANCE.iter().copied()).args(["--", suite])
}

/// The cases of the Autobahn TestSuite that depend on how bytes arrive and leave, for backends
/// other than epoll and for sessions of TLS: messages and pings in pieces of one byte and more,
/// fragments with pings between them, a fragment after a pause, the ends of a connection, the
/// largest messages whole and in pieces, and compressed ones. The others test the engine, which
/// does no I/O, so they need one backend.
const OF_THE_TRANSPORT: &[&str] = &[
    "1.1.7", "1.1.8", "1.2.8", "2.6", "2.10", "2.11", "5.8", "5.19", "5.20", "6.4.3", "7.1.1",
    "7.1.5", "7.3.6", "7.7.1", "9.1.6", "9.2.6", "9.3.5", "9.5.4", "9.7.4", "10.1.1", "12.1.11",
    "13.7.11",
];

/// The Autobahn TestSuite: the server and the client, which uses no backend. `--quick` selects the
/// short cases and a sample of the rest. It runs on epoll, and [`OF_THE_TRANSPORT`] on the other
/// backends and over TLS. The whole run has every case on each backend, and tokio-tungstenite on
/// windlass-task. Cases count as tests. The build is optimised because of the volume of data.
pub(super) fn autobahn(name: &'static str, is_quick: bool) -> Stage {
    let suite = |which: &[&str], role: &[&str]| {
        let command = conformance("autobahn");
        let command = command.args(which.iter().copied()).args(role.iter().copied());
        vec![Step::Command(command)]
    };
    if !is_quick {
        let mut parts = backends::parts(|backend| suite(&[], &["--backend", backend]));
        parts.push(Part { name: "", steps: Ok(suite(&[], &["--client"])) });
        // It takes as long as the short part of the server, so it is no part of every run.
        parts.extend(backends::parts_on(&["epoll", "uring"], |backend| {
            let suite = ["--features", "tungstenite", "--", "autobahn", "--quick", "--tungstenite"];
            let run = Cmd::cargo(CONFORMANCE.iter().copied()).args(suite);
            vec![Step::Command(run.args(["--backend", backend]))]
        }));
        parts.extend(autobahn_of_websocket(&[], &[]));
        parts.extend(autobahn_of_compat(&[]));
        parts.extend(autobahn_of_compat(&["--uncompressed"]));
        return Stage::parts(name, parts);
    }
    let few: Vec<&str> = OF_THE_TRANSPORT.iter().flat_map(|case| ["--case", case]).collect();
    let mut parts = backends::parts(|backend| {
        let which = if backend == "epoll" { &["--quick"] } else { &few[..] };
        suite(which, &["--backend", backend])
    });
    parts.push(Part { name: "", steps: Ok(suite(&["--quick"], &["--client"])) });
    // A session is the same code on every backend.
    let steps = Ok(suite(&few, &["--backend", "epoll", "--tls"]));
    parts.push(Part { name: "epoll over TLS", steps });
    parts.extend(autobahn_of_websocket(&["--quick"], &few));
    parts.extend(autobahn_of_compat(&few));
    Stage::parts(name, parts)
}

/// The Autobahn TestSuite through windlass-websocket: each role on each runtime. A role has the
/// cases `most` on one runtime and `few` on the other one: the crate is the same code on both.
fn autobahn_of_websocket(most: &[&str], few: &[&str]) -> Vec<Part> {
    vec![
        autobahn_of(most, &["--websocket", "tokio"]),
        autobahn_of(few, &["--websocket", "task"]),
        autobahn_of(few, &["--websocket", "tokio", "--client"]),
        autobahn_of(most, &["--websocket", "task", "--client"]),
    ]
}

/// The Autobahn TestSuite through the crates with the interface of tungstenite, in each role.
fn autobahn_of_compat(which: &[&str]) -> Vec<Part> {
    let crates = ["tungstenite", "tokio-tungstenite"].into_iter();
    let of = |role: &[&str]| autobahn_of(which, role);
    crates.flat_map(|it| [of(&["--compat", it]), of(&["--compat", it, "--client"])]).collect()
}

fn autobahn_of(which: &[&str], role: &[&str]) -> Part {
    let suite = conformance("autobahn").args(which.iter().copied()).args(role.iter().copied());
    Part { name: "", steps: Ok(vec![Step::Command(suite)]) }
}

/// Third-party clients against the server on each backend, then clients and servers against
/// windlass-websocket. Those that cannot be installed here count as ignored.
pub(super) fn clients() -> Stage {
    let run =
        |backend: &str| vec![Step::Command(conformance("clients").args(["--backend", backend]))];
    let mut parts = backends::parts(run);
    parts.push(Part { name: "", steps: Ok(vec![Step::Command(conformance("echo"))]) });
    Stage::parts("clients", parts)
}
