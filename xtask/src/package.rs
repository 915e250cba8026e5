//! `cargo xtask package`: packs every crate that can be published, and checks that the libraries
//! compile from their packages.
//!
//! `cargo package` can build packages too. But it unpacks dependencies that are not published yet
//! into cargo's cache by name and version, and uses them again after their source has changed. So
//! the packages are unpacked into a workspace here, whose members are patched in for each other.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::metadata::{self, Package};
use crate::repository;

/// The files of each package besides its source.
const FILES: &[&str] = &["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packs the crates, unpacks the libraries and compiles them as far as `cargo check` does. A file
/// that is missing in a package is found by that.
///
/// # Errors
///
/// If a command fails, or a package lacks a file.
pub(crate) fn run() -> Result<bool> {
    let root = repository::root();
    let packages: Vec<Package> =
        metadata::workspace(&root)?.into_iter().filter(|package| package.is_published).collect();
    let names = packages.iter().flat_map(|package| ["-p", &package.name]);
    // The working tree is dirty if this runs before a commit.
    let pack = ["package", "--allow-dirty", "--no-verify"];
    succeed(Command::new("cargo").args(pack).args(names).current_dir(&root))?;

    let target = repository::target(&root);
    let folder = target.join("unpacked");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    for package in &packages {
        unpack(package, &target.join("package"), &folder)?;
    }
    let libraries: Vec<&Package> = packages.iter().filter(|package| package.is_library()).collect();
    std::fs::write(folder.join("Cargo.toml"), manifest(&libraries))?;
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    succeed(Command::new("cargo").args(["check", "--workspace"]).current_dir(&folder))?;
    Ok(true)
}

/// The name of a package's folder and the beginning of its file's name.
fn stem(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
}

/// Unpacks a package and checks its files.
fn unpack(package: &Package, from: &Path, to: &Path) -> Result<()> {
    let file = from.join(stem(package) + ".crate");
    // Without the times of the archive, which are those of no file. Cargo compares them.
    succeed(Command::new("tar").arg("-xzmf").arg(&file).arg("-C").arg(to))?;
    for name in FILES {
        let path = to.join(stem(package)).join(name);
        let length = std::fs::metadata(&path).map(|metadata| metadata.len());
        let length = length.with_context(|| format!("{} lacks {name}", file.display()))?;
        if length == 0 {
            bail!("{name} in {} is empty", file.display());
        }
    }
    Ok(())
}

/// A workspace of the unpacked libraries. Each takes the others from it, not from a registry.
fn manifest(libraries: &[&Package]) -> String {
    let mut text = "[workspace]\nresolver = \"3\"\nmembers = [\n".to_owned();
    for package in libraries {
        let _ = writeln!(text, "    \"{}\",", stem(package));
    }
    text.push_str("]\n\n[patch.crates-io]\n");
    for package in libraries {
        let _ = writeln!(text, "{} = {{ path = \"{}\" }}", package.name, stem(package));
    }
    text
}

/// Runs a command to its end.
///
/// # Errors
///
/// If it cannot be started or does not succeed.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} cannot be started"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package { name: name.to_owned(), version: "1.2.3".to_owned(), ..Package::default() }
    }

    #[test]
    fn unpacked_libraries_use_each_other() {
        let expected = "[workspace]\nresolver = \"3\"\nmembers = [\n\
            \x20   \"a-1.2.3\",\n    \"b-1.2.3\",\n]\n\n\
            [patch.crates-io]\na = { path = \"a-1.2.3\" }\nb = { path = \"b-1.2.3\" }\n";
        assert_eq!(manifest(&[&package("a"), &package("b")]), expected);
    }

    #[test]
    fn a_package_without_a_licence_is_found() {
        let folder = std::env::temp_dir().join(format!("windlass-package-{}", std::process::id()));
        let source = folder.join("a-1.2.3");
        std::fs::create_dir_all(&source).expect("a folder");
        let write = |name: &&&str| std::fs::write(source.join(name), "text").expect("a file");
        FILES.iter().filter(|name| **name != "LICENSE-MIT").for_each(|name| write(&name));
        let pack = || {
            let tar = ["-czf", "a-1.2.3.crate", "a-1.2.3"];
            succeed(Command::new("tar").args(tar).current_dir(&folder)).expect("tar works");
            unpack(&package("a"), &folder, &folder)
        };
        let error = pack().expect_err("a file is missing").to_string();
        write(&&"LICENSE-MIT");
        let complete = pack();
        std::fs::remove_dir_all(&folder).expect("it exists");
        assert!(error.ends_with("a-1.2.3.crate lacks LICENSE-MIT"), "{error}");
        complete.expect("no file is missing");
    }
}
