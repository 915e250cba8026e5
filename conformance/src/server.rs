//! `windlass serve` as the server under test.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::process::Process;

/// Maximum time until the server listens, after it was built.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The server under test.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// `None` if it was started by someone else.
    process: Option<Process>,
}

impl Server {
    /// Builds and starts `windlass serve` with these options. The program is named without its
    /// package, so that it is the one of `cargo run --release`.
    pub(crate) fn start(root: &Path, log: &Path, options: &[&str]) -> Result<Self> {
        let cargo = |arguments: &[&str]| {
            let mut command = Command::new("cargo");
            command
                .args(arguments)
                .args(["--release", "--quiet", "--bin", "windlass"])
                .current_dir(root);
            command
        };
        let built =
            cargo(&["build"]).stdin(Stdio::null()).status().context("cannot start cargo")?;
        ensure!(built.success(), "the server could not be built");
        // On Unix `cargo run` executes the program in its place, so the child's id is that of the
        // server.
        let mut command = cargo(&["run"]);
        command.args(["--", "serve", "--listen", "127.0.0.1:0"]).args(options);
        let process = Process::start(command, log)?;
        let address = process.wait_for(WAIT_MAX, address_in).with_context(|| {
            format!("the server named no address; its output is in {}", log.display())
        })?;
        Ok(Self { address, process: Some(process) })
    }

    /// Uses a running server.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { address, process: None }
    }

    /// Stops the server. Returns an error if it has ended before, or if its exit status is not 0.
    pub(crate) fn stop(self) -> Result<()> {
        if let Some(mut process) = self.process {
            ensure!(process.is_running()?, "the server did not survive the clients");
            let status = process.stop()?;
            ensure!(status.success(), "after SIGTERM the server left with {status}");
        }
        Ok(())
    }
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let place = line.strip_prefix("listening on ")?.split_whitespace().next()?;
    let place = place.trim_start_matches("https://").trim_start_matches("http://");
    place.trim_end_matches('/').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_announcement() {
        let found = |line| address_in(line).map(|address| address.to_string());
        assert_eq!(found("listening on 127.0.0.1:7").as_deref(), Some("127.0.0.1:7"));
        assert_eq!(found("listening on http://127.0.0.1:7/").as_deref(), Some("127.0.0.1:7"));
        assert_eq!(found("listening on https://127.0.0.1:7/").as_deref(), Some("127.0.0.1:7"));
        assert_eq!(found("listening on 127.0.0.1:7 (echo)").as_deref(), Some("127.0.0.1:7"));
        assert_eq!(found("stopped by TERM: 127.0.0.1:7"), None);
    }
}
