//! `cargo xtask compat`: what the crates in `compat` offer, compared with the crates whose
//! interface they have, and the tests of those on ours.
//!
//! Everything is generated in `compat` in the target directory. Nothing of the other crates is
//! committed. They come from the registry.

mod items;
pub(crate) mod published;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::output::print;
use crate::{registry, repository, toolchain};

/// A kind of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Public items, with their signatures
    Items,
    /// The examples and tests of the published packages, on our crates
    Tests,
}

/// A crate with the interface of another one.
struct Pair {
    theirs: &'static str,
    version: &'static str,
    ours: &'static str,
    /// The folder of ours in `compat`.
    folder: &'static str,
    /// The features that are compared.
    features: &'static [&'static str],
    /// Lines that only theirs has: how they begin, and why.
    missing: &'static [(&'static str, &'static str)],
    /// A module of theirs that their tests need and ours does not offer, and its feature.
    for_tests: Option<(&'static str, &'static str)>,
    /// The package in `compat/patch` by which the tests use ours. Without it they do so directly.
    patch: Option<&'static str>,
}

impl Pair {
    const fn new(
        theirs: &'static str,
        version: &'static str,
        ours: &'static str,
        folder: &'static str,
    ) -> Self {
        let features = &["url", "rustls-tls-webpki-roots"];
        let (missing, for_tests, patch) = (&[], None, None);
        Self { theirs, version, ours, folder, features, missing, for_tests, patch }
    }
}

/// The crates that programs name.
const PAIRS: &[Pair] = &[
    Pair::new("tungstenite", "0.30.0", "windlass-tungstenite", "tungstenite"),
    Pair::new("tokio-tungstenite", "0.30.0", "windlass-tokio-tungstenite", "tokio-tungstenite"),
    Pair {
        features: &["remote_endpoint"],
        missing: &[("auto crate::EventManager: not Sync", "ours may be shared by reference, too")],
        for_tests: Some(("utilities", "test_utilities")),
        patch: Some("event-manager-0.4"),
        ..Pair::new("event-manager", "0.4.2", "windlass-event-manager", "event-manager")
    },
];

/// The packages of 0.29, which are compiled from the same sources with another interface.
const PATCHES: &[Pair] = &[
    Pair::new("tungstenite", "0.29.0", "tungstenite", "patch/tungstenite-0.29"),
    Pair::new("tokio-tungstenite", "0.29.0", "tokio-tungstenite", "patch/tokio-tungstenite-0.29"),
];

/// Compares this, or everything. Returns whether nothing differs without a reason.
///
/// # Errors
///
/// If the crates cannot be had, or their documents not be built.
pub(crate) fn run(what: Option<What>) -> Result<bool> {
    Ok(match what {
        Some(What::Items) => compare_items()?,
        Some(What::Tests) => published::run()?,
        None => compare_items()? & published::run()?,
    })
}

/// Compares the public items of each pair. Returns whether none is missing without a reason.
fn compare_items() -> Result<bool> {
    let root = repository::root();
    let nightly = toolchain::find("nightly").map_err(anyhow::Error::msg)?;
    let mut complete = true;
    for pair in PAIRS.iter().chain(PATCHES) {
        complete &= compare(&root, &nightly, pair)?;
    }
    Ok(complete)
}

fn compare(root: &Path, nightly: &str, pair: &Pair) -> Result<bool> {
    let folder = generate(root, pair)?;
    let metadata = registry::metadata(&folder)?.map_err(anyhow::Error::msg)?;
    let target = repository::target(root).join("compat/items");
    let read = |package: &str, is_published: bool| -> Result<BTreeSet<String>> {
        let id = id(&metadata, package, is_published).with_context(|| package.to_owned())?;
        items::read(&document(&folder, &target, nightly, package, id)?)
    };
    let (theirs, ours) = (read(pair.theirs, true)?, read(pair.ours, false)?);
    if theirs.is_empty() {
        bail!("{} has no public item", pair.theirs);
    }
    let unused = |(start, _): &&(&str, &str)| !only(&theirs, &ours).any(|it| it.starts_with(start));
    let mut complete = true;
    for (start, _) in pair.missing.iter().filter(unused) {
        complete = false;
        print(&format!("not missing, although xtask/src/compat says so: {start}\n"));
    }
    for line in only(&theirs, &ours) {
        match pair.missing.iter().find(|(start, _)| line.starts_with(start)) {
            Some((_, reason)) => print(&format!("explained: {line}\n    {reason}\n")),
            None => {
                complete = false;
                print(&format!("missing: {line}\n"));
            }
        }
    }
    for line in only(&ours, &theirs) {
        print(&format!("more: {line}\n"));
    }
    let (shared, more) = (theirs.intersection(&ours).count(), only(&ours, &theirs).count());
    print(&format!(
        "{} {}: {} lines of public items, {shared} the same in compat/{}, which has {more} more\n",
        pair.theirs,
        pair.version,
        theirs.len(),
        pair.folder
    ));
    Ok(complete)
}

fn only<'l>(
    one: &'l BTreeSet<String>,
    other: &'l BTreeSet<String>,
) -> impl Iterator<Item = &'l String> {
    one.difference(other)
}

/// Writes a package that depends on both.
fn generate(root: &Path, pair: &Pair) -> Result<PathBuf> {
    let folder = repository::target(root).join("compat").join(pair.folder);
    fs::create_dir_all(folder.join("src"))?;
    let (path, features) = (root.join("compat").join(pair.folder), pair.features);
    let manifest = format!(
        "[workspace]\n\n[package]\nname = \"compared\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\n\
         theirs = {{ package = {:?}, version = \"={}\", features = {features:?} }}\n\
         ours = {{ package = {:?}, path = {path:?}, features = {features:?} }}\n",
        pair.theirs, pair.version, pair.ours,
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/lib.rs"), "")?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(folder)
}

/// What cargo calls a package of this name: that of the registry, or ours. Both may have one name.
fn id<'m>(metadata: &'m Value, name: &str, is_published: bool) -> Option<&'m str> {
    let mut packages = metadata["packages"].as_array()?.iter();
    let is_it = |it: &&Value| it["name"] == name && it["source"].is_null() != is_published;
    packages.find(is_it)?["id"].as_str()
}

/// The JSON of rustdoc for one of its dependencies.
fn document(
    folder: &Path,
    target: &Path,
    nightly: &str,
    package: &str,
    id: &str,
) -> Result<String> {
    // Packages of one name write one file. An option of its own makes cargo write it again.
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let status = Command::new("cargo")
        .current_dir(folder)
        .arg(format!("+{nightly}"))
        .args(["rustdoc", "--quiet", "--lib", "--package", id, "--"])
        .args(["-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"])
        .args(["--cfg", &format!("run=\"{run}\"")])
        .env("CARGO_TARGET_DIR", target)
        .env_remove("RUSTUP_TOOLCHAIN")
        .status()?;
    if !status.success() {
        bail!("rustdoc of {id} failed");
    }
    let path = target.join("doc").join(package.replace('-', "_")).with_extension("json");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_one_name_are_told_apart() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "a", "id": "ours", "source": null },
            { "name": "a", "id": "theirs", "source": "registry" },
        ] });
        assert_eq!(id(&metadata, "a", true), Some("theirs"));
        assert_eq!(id(&metadata, "a", false), Some("ours"));
        assert_eq!(id(&metadata, "b", true), None);
    }
}
