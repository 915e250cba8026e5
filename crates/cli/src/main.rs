//! The windlass program.
//!
//! `windlass serve`, the default subcommand, is a WebSocket server with a page, chat rooms and an
//! echo. `windlass load` measures such a server, and `windlass top` shows what it does.

#![deny(unsafe_code)]

mod backend;
#[cfg(all(test, target_arch = "x86_64"))]
mod confined;
mod load;
mod nofile;
mod page;
mod serve;
mod top;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{anyhow, bail};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use windlass::stream::inherited_sockets;

/// A WebSocket server on the Windlass reactor.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// The options of `serve`, the default subcommand.
    #[command(flatten)]
    serve: Box<serve::ServeArgs>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a WebSocket server with chat rooms, an echo and a page for browsers (the default)
    Serve(Box<serve::ServeArgs>),
    /// Send messages to an echo server, verify every byte of the answers, and measure latencies
    Load(Box<load::LoadArgs>),
    /// Show what a running server does: rates, lag, connections, budgets, workers
    Top(top::TopArgs),
}

/// Returns 0 after a clean stop, 1 after a failure, and 2 for invalid arguments (clap's
/// convention).
fn main() -> ExitCode {
    #[expect(unsafe_code, reason = "sockets from the service manager are descriptors by number")]
    // SAFETY: this is the first statement of `main`, and no code of this program runs before it. So
    // this program has opened no descriptor, and has started no thread that could open one.
    let inherited = unsafe { inherited_sockets() };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let (cli, given) = match parse(arguments.clone()) {
        Ok(parsed) => parsed,
        Err(error) => return error.report(),
    };
    let ended = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => {
            let configuration = serve::Configuration { args, given };
            let read_again = Box::new(move || read_again(arguments.clone()));
            let served = serve::run(&configuration, read_again, inherited, &mut io::stdout());
            served.map(|()| ExitCode::SUCCESS)
        }
        Command::Load(args) => load::run(*args),
        Command::Top(args) => top::run(&args).map(|()| ExitCode::SUCCESS),
    };
    match ended {
        Ok(status) => status,
        Err(error) => {
            eprintln!("windlass: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Why the program does not start.
#[derive(Debug)]
enum StartError {
    /// Invalid arguments, or a request for help, which is not a failure.
    Arguments(clap::Error),
    /// A file of options that cannot be read.
    File(anyhow::Error),
    /// A file with invalid options.
    Options(PathBuf, clap::Error),
}

impl StartError {
    fn report(self) -> ExitCode {
        match self {
            Self::Arguments(error) => error.exit(),
            Self::File(error) => eprintln!("windlass: {error:#}"),
            Self::Options(path, error) => eprintln!("windlass: in {}: {error}", path.display()),
        }
        ExitCode::from(2)
    }

    /// The same on one line, for a server that goes on.
    fn into_line(self) -> anyhow::Error {
        let first = |error: clap::Error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        };
        match self {
            Self::Arguments(error) => anyhow!(first(error)),
            Self::File(error) => error,
            Self::Options(path, error) => anyhow!("in {}: {}", path.display(), first(error)),
        }
    }
}

/// Reads the configuration of a running server again, by the arguments that it was started with.
fn read_again(arguments: Vec<OsString>) -> anyhow::Result<serve::Configuration> {
    let (cli, given) = parse(arguments).map_err(StartError::into_line)?;
    match cli.command {
        None => Ok(serve::Configuration { args: cli.serve, given }),
        Some(Command::Serve(args)) => Ok(serve::Configuration { args, given }),
        Some(_) => bail!("these arguments do not start a server"),
    }
}

/// Parses the arguments, together with the options of the file that they name, if any. Also returns
/// the values of the chosen subcommand's options.
fn parse(mut arguments: Vec<OsString>) -> Result<(Cli, serve::Given), StartError> {
    let mut command = Cli::command();
    command.build();
    let matches =
        command.clone().try_get_matches_from(&arguments).map_err(StartError::Arguments)?;
    let (of, given) = match matches.subcommand() {
        Some((name, given)) => (command.find_subcommand(name).unwrap_or(&command), given),
        None => (&command, &matches),
    };
    let file = |name| given.try_get_one::<PathBuf>(name).ok().flatten().cloned();
    let path = file(serve::CONFIG).or_else(|| file(serve::CHECK));
    let start_error = |error| match &path {
        Some(path) => StartError::Options(path.clone(), error),
        None => StartError::Arguments(error),
    };
    if let Some(path) = path.as_deref().map(Path::new) {
        arguments.extend(serve::file_arguments(path, of, given).map_err(StartError::File)?);
    }
    let matches = command.clone().try_get_matches_from(arguments).map_err(start_error)?;
    let cli = Cli::from_arg_matches(&matches).map_err(StartError::Arguments)?;
    let given = serve::Given::new(of, matches.subcommand().map_or(&matches, |(_, given)| given));
    Ok((cli, given))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    fn parsed(arguments: &[&str]) -> Result<Cli, StartError> {
        let arguments = [&["windlass"], arguments].concat();
        parse(arguments.into_iter().map(OsString::from).collect()).map(|(cli, _)| cli)
    }

    fn serve_args(arguments: &[&str]) -> Box<serve::ServeArgs> {
        let cli = parsed(arguments).unwrap();
        match cli.command.unwrap_or(Command::Serve(cli.serve)) {
            Command::Serve(args) => args,
            other => panic!("not to serve: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_subcommand_it_serves() {
        assert_eq!(serve_args(&[]).listen, []);
        let places = ["--listen", "[::1]:7", "--listen", "https://localhost:8"];
        let expected = ["[::1]:7", "https://localhost:8"].map(|place| place.parse().unwrap());
        assert_eq!(serve_args(&places).listen, expected);
        assert_eq!(serve_args(&["serve", "--connections", "3"]).connections, Some(3));
    }

    #[test]
    fn a_client_is_asked_before_it_counts_as_gone() {
        for (arguments, expected) in [
            (&[][..], 30),
            (&["--idle-timeout", "20"], 10),
            (&["--idle-timeout", "1"], 1),
            (&["--idle-timeout", "0"], 30),
            (&["--idle-timeout", "20", "--ping-interval", "0"], 0),
        ] {
            assert_eq!(serve_args(arguments).ping_interval(), expected, "{arguments:?}");
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for nonsense in [
            &["--listen", "9001"][..],
            &["--connections", "0"],
            &["--connections-per-address", "0"],
            &["--buffer", "0"],
            &["--workers", "0"],
            &["--message-max", "0"],
            &["--memory", "0"],
            &["--deflate", "on"],
            &["--mode", "morse"],
            &["--slow", "fast"],
            &["--log-level", "loud"],
            &["--listen", "127.0.0.1:0", "serve"],
            &["swerve"],
        ] {
            let Err(StartError::Arguments(error)) = parsed(nonsense) else {
                panic!("{nonsense:?}")
            };
            assert_ne!(error.kind(), ErrorKind::DisplayHelp, "{nonsense:?}");
            assert_eq!(error.exit_code(), 2, "{nonsense:?}");
        }
    }

    /// A temporary file of a test.
    struct File(PathBuf);

    impl File {
        fn new(name: &str, text: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("windlass-{name}-{}.toml", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Self(path)
        }

        fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_has_options_and_the_command_line_goes_before_it() {
        let text = "mode = 'echo'\nworkers = 3\npin = true\n\
                    origin = ['https://a.example', 'any']\nconnections = 7\n";
        let file = File::new("options", text);
        for serve in [&[][..], &["serve"]] {
            let args = serve_args(&[serve, &["--config", file.path()]].concat());
            assert_eq!((args.mode, args.workers, args.pin), (serve::args::Mode::Echo, 3, true));
            assert_eq!(args.origin, ["https://a.example", "any"]);
            assert_eq!(args.connections, Some(7));
            let args = serve_args(
                &[serve, &["--config", file.path(), "--workers", "2", "--origin", "same"]].concat(),
            );
            assert_eq!((args.mode, args.workers), (serve::args::Mode::Echo, 2));
            assert_eq!(args.origin, ["same"]);
        }
        let none = File::new("none", "pin = false\n");
        assert!(!serve_args(&["--config", none.path()]).pin);
    }

    #[test]
    fn an_invalid_file_is_rejected_with_its_name() {
        for (text, expected) in [
            ("workers = 0", "'0' for '--workers <N>'"),
            ("mode = 'morse'", "'morse' for '--mode <MODE>'"),
            ("speed = 3", "there is no option `speed`"),
            ("config = 'other.toml'", "there is no option `config`"),
            ("workers = [1, 2]", "`workers` takes a string or a number, not array"),
            ("pin = 'yes'", "`pin` is true or false"),
            ("workers = ", "TOML parse error"),
        ] {
            let file = File::new("nonsense", text);
            let message = match parsed(&["--config", file.path()]).unwrap_err() {
                StartError::File(error) => format!("{error:#}"),
                StartError::Options(path, error) => format!("{}: {error}", path.display()),
                StartError::Arguments(error) => panic!("{text}: {error}"),
            };
            assert!(
                message.contains(expected) && message.contains("nonsense"),
                "{text}: {message}"
            );
        }
        let Err(StartError::File(error)) = parsed(&["--config", "/no/such/file.toml"]) else {
            panic!()
        };
        assert!(format!("{error:#}").contains("No such file"), "{error:#}");
    }
}
