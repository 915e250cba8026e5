//! Runs other people's test suites against Windlass. `cargo run -p conformance -- autobahn --help`
//! says more.

#![deny(unsafe_code)]

mod autobahn;
mod clients;
mod output;
mod process;
mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs other people's test suites against Windlass.
#[derive(Debug, Parser)]
#[command(name = "conformance", version)]
struct Cli {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, Subcommand)]
enum Suite {
    /// The Autobahn TestSuite for WebSocket: 517 cases against the server, or with --client against
    /// the client
    Autobahn(autobahn::AutobahnArgs),
    /// Other people's WebSocket clients against the server: Python websockets, npm ws, Go
    /// gorilla/websocket
    Clients(clients::ClientsArgs),
}

/// 0 when every case passed or the suite cannot be had here, 1 otherwise, 2 for arguments that make
/// no sense.
fn main() -> ExitCode {
    let outcome = match Cli::parse().suite {
        Suite::Autobahn(args) => autobahn::run(&args),
        Suite::Clients(args) => clients::run(&args),
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
