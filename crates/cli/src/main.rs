//! The windlass program.
//!
//! `windlass serve`, which is also what it does when no subcommand is named: a WebSocket server that echoes.

#![deny(unsafe_code)]

mod counts;
mod nofile;
mod raw;
mod serve;
mod sockets;
mod websocket;
mod worker;

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};

/// A WebSocket server on the Windlass reactor.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// What `serve` takes, for the case that no subcommand is named.
    #[command(flatten)]
    serve: Box<serve::Args>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listen, and send each message back (the default)
    Serve(Box<serve::Args>),
}

/// 0 after a clean stop, 1 when something failed, 2 for arguments that make no sense (clap's own choice).
fn main() -> ExitCode {
    let cli = Cli::parse();
    let Command::Serve(args) = cli.command.unwrap_or(Command::Serve(cli.serve));
    match serve::run(*args, &mut io::stdout()) {
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

    fn serve_args(arguments: &[&str]) -> Result<Box<serve::Args>, clap::Error> {
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
        assert_eq!(serve_args(&[]).unwrap().listen, None);
        assert_eq!(serve_args(&["--listen", "[::1]:7"]).unwrap().listen, Some("[::1]:7".parse().unwrap()));
        assert_eq!(serve_args(&["serve", "--connections", "3"]).unwrap().connections, Some(3));
    }

    #[test]
    fn nonsense_is_refused() {
        for nonsense in [
            &["--listen", "9001"][..],
            &["--connections", "0"],
            &["--buffer", "0"],
            &["--workers", "0"],
            &["--message-max", "0"],
            &["--deflate", "on"],
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
