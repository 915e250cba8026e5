//! The workspaces in which crates run: one with tungstenite as it is published, and one in which it
//! is patched.
//!
//! 1. Each crate has a package in `programs` that depends on it as it is published.
//! 2. A crate whose own tests run is a member too: a copy of what cargo downloaded, unchanged.
//! 3. Both workspaces have the same lock, except for what is patched. It begins as that of the
//!    repository.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::list::{Check, SHARED, USERS, User};
use crate::registry;

/// The names of the packages that are patched, and their versions.
pub(super) const PATCHED: [(&str, &str); 4] = [
    ("tungstenite", "0.29"),
    ("tungstenite", "0.30"),
    ("tokio-tungstenite", "0.29"),
    ("tokio-tungstenite", "0.30"),
];

/// A workspace, and what cargo knows about it.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) folder: PathBuf,
    metadata: Value,
}

/// Writes both: theirs and ours. The inner error is the reason why the registry cannot be reached.
///
/// # Errors
///
/// If files cannot be written, or one of them cannot be resolved.
pub(super) fn write(root: &Path, folder: &Path) -> Result<Result<[Workspace; 2], String>> {
    let [theirs, ours] = ["theirs", "ours"].map(|name| folder.join(name));
    for place in [&theirs, &ours] {
        for user in USERS {
            write_program(root, place, user)?;
        }
    }
    // Versions that earlier runs have locked stay, so that only a change compiles again.
    if !theirs.join("Cargo.lock").exists() {
        fs::copy(root.join("Cargo.lock"), theirs.join("Cargo.lock"))?;
    }
    fs::write(theirs.join("Cargo.toml"), manifest(false, ""))?;
    let metadata = match registry::metadata(&theirs)? {
        Ok(metadata) => metadata,
        Err(reason) => return Ok(Err(reason)),
    };
    for user in USERS.iter().filter(|user| user.has_tests()) {
        let package = package(&metadata, user.name, user.version)
            .with_context(|| format!("no metadata of {}", user.label()))?;
        let from = package["manifest_path"].as_str().and_then(|path| Path::new(path).parent());
        let from = from.context("a package has a folder")?;
        for place in [&theirs, &ours] {
            copy(from, &place.join("packages").join(user.label()))?;
        }
    }
    fs::write(theirs.join("Cargo.toml"), manifest(true, ""))?;
    let theirs = match registry::metadata(&theirs)? {
        Ok(metadata) => Workspace { folder: theirs, metadata },
        Err(reason) => return Ok(Err(reason)),
    };
    fs::write(ours.join("Cargo.toml"), manifest(true, &patches(root)))?;
    fs::copy(theirs.folder.join("Cargo.lock"), ours.join("Cargo.lock"))?;
    let metadata = registry::metadata(&ours)?.map_err(anyhow::Error::msg)?;
    let ours = Workspace { folder: ours, metadata };
    Ok(Ok([theirs, ours]))
}

impl Workspace {
    /// Checks that all crates use the published packages, or that none does.
    ///
    /// # Errors
    ///
    /// The first package that is wrong.
    pub(super) fn check_sources(&self, is_patched: bool) -> Result<()> {
        for (name, version) in PATCHED {
            let package = package(&self.metadata, name, &format!("{version}.0"));
            let package = package.with_context(|| format!("nothing uses {name} {version}"))?;
            ensure!(
                package["source"].is_null() == is_patched,
                "{name} {version} in {} comes from {}",
                self.folder.display(),
                package["source"]
            );
        }
        Ok(())
    }

    /// The features of a package that is patched.
    fn features(&self, name: &str, version: &str) -> Vec<String> {
        let package = package(&self.metadata, name, &format!("{version}.0"));
        let features = package.and_then(|package| package["features"].as_object());
        features.into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }
}

/// The features of theirs that ours lack, each with its package.
pub(super) fn missing_features(theirs: &Workspace, ours: &Workspace) -> Vec<String> {
    let mut missing = Vec::new();
    for (name, version) in PATCHED {
        let there = ours.features(name, version);
        let lacks = theirs.features(name, version).into_iter().filter(|it| !there.contains(it));
        missing.extend(lacks.map(|feature| format!("{name}/{feature}")));
    }
    missing.dedup();
    missing
}

fn package<'m>(metadata: &'m Value, name: &str, version: &str) -> Option<&'m Value> {
    let mut packages = metadata["packages"].as_array()?.iter();
    packages.find(|package| package["name"] == name && package["version"] == version)
}

/// The manifest of a workspace with [`USERS`], and nothing that earlier runs have left there.
fn manifest(has_packages: bool, patches: &str) -> String {
    let programs = USERS.iter().map(|user| format!("programs/{}", user.label()));
    let packages = USERS.iter().filter(|user| has_packages && user.has_tests());
    let packages = packages.map(|user| format!("packages/{}", user.label()));
    let members: Vec<String> = programs.chain(packages).collect();
    format!(
        "[workspace]\nresolver = \"2\"\nmembers = {members:#?}\n\n\
         [profile.dev]\ndebug = 0\n{patches}"
    )
}

/// As in `docs/tungstenite-interface.md`.
fn patches(root: &Path) -> String {
    let mut text = "\n[patch.crates-io]\n".to_owned();
    for (name, version) in PATCHED {
        let key = format!("{name}-{}", version.replace('.', ""));
        let path = root.join("compat/patch").join(format!("{name}-{version}"));
        let _ = writeln!(text, "{key} = {{ package = {name:?}, path = {path:?} }}");
    }
    text
}

/// Writes the package that depends on a crate. Without a program it is an empty library, and shows
/// that the crate compiles.
fn write_program(root: &Path, place: &Path, user: &User) -> Result<()> {
    let User { name, version, features, .. } = user;
    let label = user.label();
    let folder = place.join("programs").join(&label);
    fs::create_dir_all(folder.join("src"))?;
    let mut text = format!(
        "[package]\nname = \"with-{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\n{name} = {{ version = \"={version}\"{features} }}\n",
        label.replace('.', "-")
    );
    match user.check {
        Check::Tests(..) => fs::write(folder.join("src/lib.rs"), "")?,
        Check::Program(file, needs) => {
            let path = root.join("compat/patch/programs").join(file);
            let _ = write!(
                text,
                "{SHARED}{needs}\n[[bin]]\nname = \"with-{}\"\npath = {path:?}\n",
                label.replace('.', "-")
            );
        }
    }
    fs::write(folder.join("Cargo.toml"), text)?;
    Ok(())
}

/// Copies a folder, except files that are there already: a package never changes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else if !to.exists() {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use toml::Table;

    #[test]
    fn a_copy_has_every_file() {
        let folder = std::env::temp_dir().join(format!("windlass-patched-{}", std::process::id()));
        let from = folder.join("from");
        fs::create_dir_all(from.join("src")).expect("a folder");
        fs::write(from.join("src/lib.rs"), "text").expect("a file");
        let copied = copy(&from, &folder.join("to"));
        let text = fs::read_to_string(folder.join("to/src/lib.rs"));
        fs::remove_dir_all(&folder).expect("it exists");
        copied.expect("it is copied");
        assert_eq!(text.expect("it is there"), "text");
    }

    #[test]
    fn members_are_the_users_and_nothing_else() {
        let members = |has_packages| {
            let manifest: Table = manifest(has_packages, "").parse().expect("TOML");
            let members = manifest["workspace"]["members"].as_array().expect("a list");
            let members = members.iter().filter_map(toml::Value::as_str).map(str::to_owned);
            members.collect::<Vec<String>>()
        };
        let tested = USERS.iter().filter(|user| user.has_tests()).count();
        assert_eq!(
            [members(false).len(), members(true).len()],
            [USERS.len(), USERS.len() + tested]
        );
        assert!(tested > 0 && members(true).contains(&"packages/axum-0.8.9".to_owned()));
        assert!(members(true).iter().all(|member| !member.contains('*')));
    }

    #[test]
    fn every_patched_package_is_there() {
        let root = crate::repository::root();
        for (name, version) in PATCHED {
            let path = format!("compat/patch/{name}-{version}/Cargo.toml");
            let text = fs::read_to_string(root.join(&path)).expect("it is there");
            assert!(text.contains(&format!("name = \"{name}\"")), "{path}");
            assert!(text.contains(&format!("version = \"{version}.0\"")), "{path}");
        }
    }

    fn read(path: &str) -> Table {
        let text = fs::read_to_string(crate::repository::root().join(path)).expect("it is there");
        text.parse().expect("TOML")
    }

    /// The version, whether the default features are there, and the features of a dependency.
    fn asks(dependency: &toml::Value) -> (Option<&str>, bool, BTreeSet<&str>) {
        let features = dependency.get("features").and_then(toml::Value::as_array);
        let features = features.into_iter().flatten().filter_map(toml::Value::as_str).collect();
        let has_defaults = dependency.get("default-features") != Some(&false.into());
        match dependency.as_str() {
            Some(version) => (Some(version), true, features),
            None => (dependency.get("version").and_then(|it| it.as_str()), has_defaults, features),
        }
    }

    #[test]
    fn packages_of_0_29_have_the_dependencies_and_features_of_our_crates() {
        let workspace = read("Cargo.toml");
        for name in ["tungstenite", "tokio-tungstenite"] {
            let ours = read(&format!("compat/{name}/Cargo.toml"));
            let patch = read(&format!("compat/patch/{name}-0.29/Cargo.toml"));
            let features = ours["features"].as_table().expect("features");
            assert!(!features.is_empty());
            for (feature, value) in features {
                assert_eq!(patch["features"].get(feature), Some(value), "{name}/{feature}");
            }
            for (dependency, entry) in ours["dependencies"].as_table().expect("dependencies") {
                let label = format!("{dependency} of {name}");
                let shared = &workspace["workspace"]["dependencies"][dependency];
                let theirs = patch["dependencies"].get(dependency).expect(&label);
                let optional = |entry: &toml::Value| entry.get("optional") == Some(&true.into());
                assert_eq!(optional(theirs), optional(entry), "{label}");
                let (mut version, has_defaults, mut all) = asks(shared);
                // It is found by its path, and has no other version.
                version = version.filter(|_| shared.get("path").is_none());
                all.extend(asks(entry).2);
                assert_eq!(asks(theirs), (version, has_defaults, all), "{label}");
            }
        }
    }
}
