//! Runs third-party test suites and clients against Windlass. See
//! `cargo run -p conformance -- autobahn --help`.

#![deny(unsafe_code)]

mod autobahn;
mod clients;
mod echo_server;
mod output;
mod process;
mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run third-party test suites and clients against Windlass.
#[derive(Debug, Parser)]
#[command(name = "conformance", version)]
struct Cli {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, Subcommand)]
enum Suite {
    /// Run the Autobahn TestSuite for WebSocket: 517 cases against the server, or with --client
    /// against the client
    Autobahn(autobahn::AutobahnArgs),
    /// Run third-party WebSocket clients against the server: Python websockets, npm ws, Go
    /// gorilla/websocket
    Clients(clients::ClientsArgs),
    /// Run windlass-websocket against WebSocket clients and servers of five other languages, plain
    /// and over TLS
    Echo,
}

/// Returns 0 if every case passed or the suite cannot be installed here, 1 after a failure, and 2
/// for invalid arguments.
fn main() -> ExitCode {
    let outcome = match Cli::parse().suite {
        Suite::Autobahn(args) => autobahn::run(&args),
        Suite::Clients(args) => clients::run(&args),
        Suite::Echo => clients::echo::run(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
