//! The suite itself: its installation, and one process of it at work.

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

/// The name under which the suite reports us.
pub(super) const AGENT: &str = "windlass";

/// The longest message of the suite, in bytes: cases 9.1.6 and 9.2.6.
pub(super) const MESSAGE_MAX: usize = 16 << 20;

/// The status with which `install` says that this machine cannot have the suite.
const CANNOT: i32 = 3;

/// How long a process of the suite may be silent. It announces each case, and gives the longest 480
/// seconds.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(500);

/// What `install` came to.
#[derive(Debug)]
pub(super) enum Installed {
    /// The program to run.
    There(PathBuf),
    /// Why this machine cannot have it.
    Cannot(String),
}

/// Installs the suite, or finds that it is there.
pub(super) fn install(root: &Path) -> Result<Installed> {
    let script = root.join("conformance/autobahn/install");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| script.display().to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    eprint!("{errors}");
    if output.status.code() == Some(CANNOT) {
        return Ok(Installed::Cannot(
            errors.lines().last().unwrap_or("no reason given").to_owned(),
        ));
    }
    ensure!(output.status.success(), "{} left with {}", script.display(), output.status);
    let path = String::from_utf8(output.stdout).context("the path is not UTF-8")?;
    Ok(Installed::There(path.trim_end().into()))
}

/// One process of the suite: its cases and the folder for what it writes.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) wstest: &'a Path,
    pub(super) cases: &'a [CaseId],
    pub(super) folder: PathBuf,
}

impl Job<'_> {
    /// Starts the process in `mode`. Its output folder is its own and empty, for an index of an
    /// earlier run would be taken for this one's.
    fn start(&self, mode: &str, mut spec: Value) -> Result<Process> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        }
        fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        spec["outdir"] = json!(self.folder);
        // Whole names: patterns match by prefix, so that `12.*.1` would take 12.1.10 as well.
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

    /// Plays the client against the server at `server`, to the end.
    pub(super) fn play_client(&self, server: SocketAddr) -> Result<Outcomes> {
        let servers = json!([{"agent": AGENT, "url": format!("ws://{server}/")}]);
        let process = self.start("fuzzingclient", json!({"servers": servers}))?;
        // Its status says nothing: it is 0 whatever happened.
        process.wait_end(SILENCE_MAX)?;
        self.read_index()
    }

    /// Plays the server on this address, which must be free.
    pub(super) fn play_server(&self, address: SocketAddr) -> Result<Process> {
        self.start("fuzzingserver", json!({"url": format!("ws://{address}")}))
    }

    /// What the suite has written of its cases.
    pub(super) fn read_index(&self) -> Result<Outcomes> {
        let path = self.folder.join("index.json");
        let text = fs::read_to_string(&path).with_context(|| {
            format!("the suite wrote no {}; its log is beside it", path.display())
        })?;
        verdict::read_index(&text, AGENT)
    }
}
