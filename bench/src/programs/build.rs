//! Builds the measured programs: those of a workspace in one call of cargo, whose target folder
//! they share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{Program, Workspace};

/// Makes the counters of `windlass-server` do nothing. It is no feature, because another crate of
/// the workspace could turn a feature on for all of them.
const UNCOUNTED: &str = "--cfg windlass_uncounted";

/// The programs of one profile, or the reasons why they were not built.
#[derive(Debug, Default)]
pub(crate) struct Built(BTreeMap<(Workspace, &'static str), Result<PathBuf, String>>);

impl Built {
    /// Returns the path of a program, or why there is none.
    pub(crate) fn path(&self, program: &Program) -> Result<PathBuf, String> {
        let built = self.0.get(&(program.workspace, program.binary));
        built.cloned().unwrap_or_else(|| Err("was not built".to_owned()))
    }

    /// Adds programs of another profile.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// Builds programs with a profile.
pub(crate) fn build(programs: &[Program], profile: &str) -> Built {
    let mut all: BTreeMap<Workspace, Vec<&Program>> = BTreeMap::new();
    for program in programs {
        all.entry(program.workspace).or_default().push(program);
    }
    let mut built = Built::default();
    for (workspace, programs) in all {
        let binaries: BTreeSet<&str> = programs.iter().map(|program| program.binary).collect();
        eprintln!("building {} of {} ({profile})", count(binaries.len()), name(workspace));
        let output = cargo(workspace, &programs, profile);
        for program in programs {
            let path = match &output {
                Ok(output) => executable(&String::from_utf8_lossy(&output.stdout), program.binary)
                    .ok_or_else(|| reason(&String::from_utf8_lossy(&output.stderr), program)),
                Err(error) => Err(format!("cargo does not start: {error}")),
            };
            built.0.insert((workspace, program.binary), path);
        }
    }
    built
}

fn count(number: usize) -> String {
    if number == 1 { "a program".to_owned() } else { format!("{number} programs") }
}

fn name(workspace: Workspace) -> &'static str {
    match workspace {
        Workspace::Root => "windlass",
        Workspace::Uncounted => "windlass without counters",
        Workspace::Peers => "bench/peers",
        Workspace::PeersCpp => "bench/peers-cpp",
    }
}

fn cargo(workspace: Workspace, programs: &[&Program], profile: &str) -> std::io::Result<Output> {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = match workspace {
        Workspace::Root | Workspace::Uncounted => bench.join(".."),
        Workspace::Peers => bench.join("peers"),
        Workspace::PeersCpp => bench.join("peers-cpp"),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg("build");
    if workspace == Workspace::Uncounted {
        // In a directory of its own, so that neither build replaces the other.
        let target = std::env::current_exe()?.with_file_name("uncounted");
        command.env("RUSTFLAGS", UNCOUNTED).arg("--target-dir").arg(target);
    }
    if profile == "lto" && workspace == Workspace::Root {
        // Its servers and their dependencies take long to build. They are not counted so.
        command.args(["--no-default-features", "--features", "uring"]);
    }
    let packages: BTreeSet<&str> = programs.iter().map(|program| program.package).collect();
    let binaries: BTreeSet<&str> = programs.iter().map(|program| program.binary).collect();
    // A program that does not build leaves the others alone.
    command
        .args(["--quiet", "--locked", "--keep-going"])
        .args(["--message-format=json-render-diagnostics", "--profile", profile])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .args(binaries.iter().flat_map(|binary| ["--bin", binary]))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
}

/// Returns why a program was not built: the error that names it, or the first one.
fn reason(errors: &str, program: &Program) -> String {
    let errors = || errors.lines().filter(|line| line.starts_with("error"));
    let named = format!("`{}", program.package);
    let error = errors().find(|line| line.contains(&named)).or_else(|| errors().next());
    format!("does not build: {}", error.unwrap_or("cargo named no executable"))
}

/// Finds the executable in cargo's messages, which are one JSON object per line.
fn executable(messages: &str, binary: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let named = message["target"]["name"] == binary;
        named.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::EPOLL;

    #[test]
    fn the_executable_is_that_of_the_binary_asked_for() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"wanted"},"executable":"/x/wanted"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "wanted"), Some(PathBuf::from("/x/wanted")));
        assert_eq!(executable(messages, "other"), None);
    }

    #[test]
    fn the_reason_is_the_error_that_names_the_program() {
        let errors = "error: other\nerror: could not compile `mine` (bin \"x\")\n";
        let program = Program {
            name: "x",
            parts: &[],
            backends: EPOLL,
            workspace: Workspace::Peers,
            package: "mine",
            binary: "x",
        };
        assert_eq!(
            reason(errors, &program),
            "does not build: error: could not compile `mine` (bin \"x\")"
        );
        let other = Program { package: "yours", ..program };
        assert_eq!(reason(errors, &other), "does not build: error: other");
        assert_eq!(reason("", &other), "does not build: cargo named no executable");
    }
}
