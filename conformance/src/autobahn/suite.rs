//! The suite: its installation, and one of its processes.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::cases::CaseId;
use super::verdict::{self, Outcomes};
use crate::process::Process;

/// The name of our agent in the suite's reports.
pub(super) const AGENT: &str = "windlass";

/// The longest message of the suite, in bytes: cases 9.1.6 and 9.2.6.
pub(super) const MESSAGE_MAX: usize = 16 << 20;

/// The exit status of `install` if the suite cannot be installed on this machine.
const CANNOT: i32 = 3;

/// Maximum time without output of a process of the suite. It announces each case, and limits the
/// longest one to 480 seconds.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(500);

/// The result of `install`.
#[derive(Debug)]
pub(super) enum Installation {
    /// The path of the program.
    There(PathBuf),
    /// The reason why it cannot be installed on this machine.
    Cannot(String),
}

/// Installs the suite, unless it is already installed.
pub(super) fn install(root: &Path) -> Result<Installation> {
    let script = root.join("conformance/autobahn/install");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| script.display().to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    eprint!("{errors}");
    if output.status.code() == Some(CANNOT) {
        return Ok(Installation::Cannot(
            errors.lines().last().unwrap_or("no reason given").to_owned(),
        ));
    }
    ensure!(output.status.success(), "{} left with {}", script.display(), output.status);
    let path = String::from_utf8(output.stdout).context("the path is not UTF-8")?;
    Ok(Installation::There(path.trim_end().into()))
}

/// One process of the suite: its cases and its output folder.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) wstest: &'a Path,
    pub(super) cases: &'a [CaseId],
    pub(super) folder: PathBuf,
}

impl Job<'_> {
    /// Starts the process in `mode`. Its output folder is empty, because the index of an earlier
    /// run must not be taken for that of this run.
    fn start(&self, mode: &str, mut spec: Value) -> Result<Process> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        }
        fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        spec["outdir"] = json!(self.folder);
        // Complete names, because patterns match by prefix: `12.*.1` also matches 12.1.10.
        spec["cases"] = self.cases.iter().map(ToString::to_string).collect();
        let path = self.folder.join("spec.json");
        fs::write(&path, spec.to_string()).with_context(|| path.display().to_string())?;
        let mut command = Command::new(self.wstest);
        command
            .args(["--mode", mode, "--webport", "0", "--spec"])
            .arg(path)
            .current_dir(&self.folder);
        Process::start(command, &self.folder.join("log"))
    }

    /// Runs as the client against the server of this URL, to its end.
    pub(super) fn play_client(&self, url: &str) -> Result<Outcomes> {
        let servers = json!([{"agent": AGENT, "url": url}]);
        let process = self.start("fuzzingclient", json!({"servers": servers}))?;
        // Its exit status is always 0.
        process.wait_end(SILENCE_MAX)?;
        self.read_index()
    }

    /// Runs as the server on this address, which must be free.
    pub(super) fn play_server(&self, address: SocketAddr) -> Result<Process> {
        self.start("fuzzingserver", json!({"url": format!("ws://{address}")}))
    }

    /// Reads the suite's results.
    pub(super) fn read_index(&self) -> Result<Outcomes> {
        let path = self.folder.join("index.json");
        let text = fs::read_to_string(&path).with_context(|| {
            format!("the suite wrote no {}; its log is beside it", path.display())
        })?;
        verdict::read_index(&text, AGENT)
    }
}
