//! `cargo xtask compat`: what the crates in `compat` offer, compared with the crates whose
//! interface they have, and the tests of those on ours.
//!
//! Everything is generated in `compat` in the target directory. Nothing of the other crates is
//! committed. They come from the registry, in the versions of the lock file.

mod items;
pub(crate) mod published;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::output::print;
use crate::{repository, toolchain};

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
    /// The features that are compared.
    features: &'static [&'static str],
    /// Lines that only theirs has: how they begin, and why.
    missing: &'static [(&'static str, &'static str)],
}

const PAIRS: &[Pair] = &[
    Pair {
        theirs: "tungstenite",
        version: "0.30.0",
        ours: "windlass-tungstenite",
        features: &["url", "rustls-tls-webpki-roots"],
        missing: &[],
    },
    Pair {
        theirs: "tokio-tungstenite",
        version: "0.30.0",
        ours: "windlass-tokio-tungstenite",
        features: &["url", "rustls-tls-webpki-roots"],
        missing: &[],
    },
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
    for pair in PAIRS {
        complete &= compare(&root, &nightly, pair)?;
    }
    Ok(complete)
}

fn compare(root: &Path, nightly: &str, pair: &Pair) -> Result<bool> {
    let folder = generate(root, pair)?;
    let theirs = items::read(&document(&folder, nightly, pair.theirs)?)?;
    let ours = items::read(&document(&folder, nightly, pair.ours)?)?;
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
        "{} {}: {} lines of public items, {shared} the same in {}, which has {more} more\n",
        pair.theirs,
        pair.version,
        theirs.len(),
        pair.ours
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
    let folder = repository::target(root).join("compat").join(pair.ours);
    fs::create_dir_all(folder.join("src"))?;
    let features = format!("{:?}", pair.features);
    let path = root.join("compat").join(pair.theirs);
    let manifest = format!(
        "[workspace]\n\n[package]\nname = \"compared\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\n{theirs} = {{ version = \"={version}\", features = {features} }}\n\
         {ours} = {{ path = {path:?}, features = {features} }}\n",
        theirs = pair.theirs,
        version = pair.version,
        ours = pair.ours,
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/lib.rs"), "")?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(folder)
}

/// The JSON of rustdoc for one of its dependencies.
fn document(folder: &Path, nightly: &str, package: &str) -> Result<String> {
    let target = folder.join("target");
    let status = Command::new("cargo")
        .current_dir(folder)
        .arg(format!("+{nightly}"))
        .args(["rustdoc", "--quiet", "--lib", "--package", package, "--"])
        .args(["-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"])
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTUP_TOOLCHAIN")
        .status()?;
    if !status.success() {
        bail!("rustdoc of {package} failed");
    }
    let path = target.join("doc").join(package.replace('-', "_")).with_extension("json");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}
