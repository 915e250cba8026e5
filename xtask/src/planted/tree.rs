//! The copy of the tree to which patches are applied.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::fault::Fault;
use crate::command::Cmd;
use crate::repository;

/// Everything of the command, in the target directory.
const FOLDER: &str = "planted";
/// The list of the files that the last run has copied.
const LIST: &str = ".copied";

/// The address space of each process of a test, or of the compiler.
const MEMORY_MAX_KIB: u32 = 6 << 20;

#[derive(Debug)]
pub(super) struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// Makes the copy, or brings it up to date. A file that is the same is left alone, so cargo
    /// compiles only what has changed.
    ///
    /// # Errors
    ///
    /// If files cannot be read or written.
    pub(super) fn new(root: &Path) -> Result<Self> {
        let folder = repository::target(root).join(FOLDER).join("tree");
        fs::create_dir_all(&folder)?;
        let names: BTreeSet<String> = repository::names(root)?.into_iter().collect();
        let before = fs::read_to_string(folder.join(LIST)).unwrap_or_default();
        for name in before.lines().filter(|name| !names.contains(*name)) {
            let _ = fs::remove_file(folder.join(name));
        }
        let tree = Self { folder };
        for name in &names {
            tree.copy(root, name).with_context(|| name.clone())?;
        }
        fs::write(tree.folder.join(LIST), names.into_iter().collect::<Vec<_>>().join("\n"))?;
        Ok(tree)
    }

    fn copy(&self, root: &Path, name: &str) -> Result<()> {
        let (from, to) = (root.join(name), self.folder.join(name));
        fs::create_dir_all(to.parent().context("it is in a folder")?)?;
        // A file that was deleted and not committed yet is listed all the same.
        let Ok(kind) = fs::symlink_metadata(&from) else { return Ok(()) };
        if kind.is_symlink() {
            if fs::symlink_metadata(&to).is_err() {
                std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            }
            return Ok(());
        }
        let bytes = fs::read(&from)?;
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            fs::write(&to, bytes)?;
        }
        Ok(())
    }

    /// Plants a fault, calls `run`, and takes the fault out again.
    ///
    /// # Errors
    ///
    /// Those of `run`, and if the patch does not apply.
    pub(super) fn with<T>(&self, fault: &Fault, run: impl FnOnce(&Self) -> T) -> Result<T> {
        if let Some(reason) = fault.apply(&self.folder, &[])? {
            anyhow::bail!("the patch does not apply: {reason}");
        }
        let outcome = run(self);
        match fault.apply(&self.folder, &["--reverse"])? {
            None => Ok(outcome),
            Some(reason) => anyhow::bail!("the patch cannot be taken back: {reason}"),
        }
    }

    /// The command that runs the test of a fault with so many seeds.
    pub(super) fn test(&self, fault: &Fault, seeds: u64) -> Cmd {
        let Fault { package, program, test, .. } = fault;
        // A fault may take memory without end.
        Cmd::new("sh")
            .args(["-c", &format!("ulimit -v {MEMORY_MAX_KIB} && exec \"$@\""), "sh"])
            .args(["cargo", "test", "-p", package, "--features", "sim"])
            .args(["--test", program, "--", "--exact", test])
            .directory(&self.folder)
            .target(FOLDER)
            .env("WINDLASS_SIM_SEEDS", &seeds.to_string())
            .env("WINDLASS_SIM_SHRINK_RUNS", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // Planted faults leave code that is not used.
            .env("RUSTFLAGS", "--cap-lints=allow")
    }
}
