//! The repository's root and files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The repository's root: the parent of `xtask/`.
///
/// `cargo run` sets `CARGO_MANIFEST_DIR` at run time. It is preferred to the compiled-in value,
/// because several checkouts may share one target directory.
pub(crate) fn root() -> PathBuf {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    match manifest_dir.parent() {
        Some(parent) => parent.to_path_buf(),
        None => manifest_dir,
    }
}

/// The target directory of cargo.
pub(crate) fn target(root: &Path) -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR");
    given.map_or_else(|| root.join("target"), |given| root.join(given))
}

/// One text file of the repository.
#[derive(Debug, Default)]
pub(crate) struct TextFile {
    /// Path from the root, with `/` between its parts.
    pub(crate) path: String,
    /// The whole content.
    pub(crate) text: String,
    /// Whether it is a symbolic link to another file of the repository.
    pub(crate) is_link: bool,
}

impl TextFile {
    /// Whether this is Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The files that are tracked, or that `git add --all` would add.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) texts: Vec<TextFile>,
    /// The paths of those that are not UTF-8.
    pub(crate) binaries: Vec<String>,
}

/// Lists the text files: see [`files`].
///
/// # Errors
///
/// If git is missing or `root` is not a checkout.
pub(crate) fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    Ok(files(root)?.texts)
}

/// The paths of all files that are tracked, or that `git add --all` would add. A deleted file that
/// is not yet committed is among them.
///
/// # Errors
///
/// If git is missing or `root` is not a checkout.
pub(crate) fn names(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        // In containers, a checkout often belongs to another user. Only names are read here.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git is needed to list the repository's files")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = output.stdout.split(|byte| *byte == 0);
    let names = names.filter_map(|name| std::str::from_utf8(name).ok());
    Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Lists and reads all files.
///
/// # Errors
///
/// If git is missing or `root` is not a checkout.
pub(crate) fn files(root: &Path) -> Result<Files> {
    let Files { mut texts, mut binaries } = Files::default();
    for path in names(root)? {
        // A file that was deleted cannot be read, and is skipped.
        let full = root.join(&path);
        let Ok(bytes) = std::fs::read(&full) else {
            continue;
        };
        match String::from_utf8(bytes) {
            Ok(text) => {
                texts.push(TextFile { path, text, is_link: full.is_symlink() });
            }
            Err(_) => binaries.push(path),
        }
    }
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    texts.dedup_by(|a, b| a.path == b.path);
    Ok(Files { texts, binaries })
}
