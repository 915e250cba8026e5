//! The windlass program.
//!
//! `windlass serve`, which is also what it does when no subcommand is named: an echo server to try the reactor with.

#![deny(unsafe_code)]

mod accept;
mod echo;
mod nofile;
mod serve;
mod server;

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};

/// Servers to try the Windlass reactor with.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// What `serve` takes, for the case that no subcommand is named.
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listen on a TCP address and echo (the default)
    Serve(serve::Args),
}

/// 0 after a clean stop, 1 when something failed, 2 for arguments that make no sense (clap's own choice).
fn main() -> ExitCode {
    let cli = Cli::parse();
    let Command::Serve(args) = cli.command.unwrap_or(Command::Serve(cli.serve));
    match serve::run(&args, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, error::ErrorKind};

    fn serve_args(arguments: &[&str]) -> Result<serve::Args, clap::Error> {
        let cli = Cli::try_parse_from([&["windlass"], arguments].concat())?;
        let Command::Serve(args) = cli.command.unwrap_or(Command::Serve(cli.serve));
        Ok(args)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_subcommand_it_serves() {
        assert_eq!(serve_args(&[]).unwrap().listen.to_string(), "127.0.0.1:9001");
        assert_eq!(serve_args(&["--listen", "[::1]:7"]).unwrap().listen.to_string(), "[::1]:7");
        assert_eq!(serve_args(&["serve", "--connections", "3"]).unwrap().connections, Some(3));
    }

    #[test]
    fn nonsense_is_refused() {
        for nonsense in [
            &["--listen", "9001"][..],
            &["--connections", "0"],
            &["--buffer", "0"],
            &["--mode", "morse"],
            &["--listen", "127.0.0.1:0", "serve"],
            &["swerve"],
        ] {
            let error = serve_args(nonsense).unwrap_err();
            assert_ne!(error.kind(), ErrorKind::DisplayHelp, "{nonsense:?}");
            assert_eq!(error.exit_code(), 2, "{nonsense:?}");
        }
    }
}
