//! `cargo xtask dist`: the program as an archive with its checksum, for a release.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::package::succeed;
use crate::{metadata, repository, toolchain};

/// The released program and its package.
const PACKAGE: &str = "windlass-cli";
const PROGRAM: &str = "windlass";
/// What the released program has, and a plain build has not.
const FEATURES: &str = "cluster";

/// The documents in the archive.
const DOCUMENTS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Builds the program and writes `windlass-VERSION-TARGET.tar.gz` and its `.sha256` to
/// `target/dist`. With `tag`, the tag must be `v` and the version.
///
/// # Errors
///
/// If the tag is of another version, or a command fails.
pub(crate) fn run(tag: Option<&str>) -> Result<bool> {
    let root = repository::root();
    let packages = metadata::workspace(&root)?;
    let package = packages.iter().find(|package| package.name == PACKAGE);
    let version = &package.context("the workspace has no program to release")?.version;
    check_tag(tag, version)?;

    let host = toolchain::host().map_err(anyhow::Error::msg)?;
    let name = format!("{PROGRAM}-{version}-{host}");
    let target = repository::target(&root);
    let dist = target.join("dist");
    let folder = dist.join(&name);
    std::fs::create_dir_all(&folder)?;
    let build = ["build", "--release", "--locked", "-p", PACKAGE, "--features", FEATURES];
    succeed(Command::new("cargo").args(build).current_dir(&root))?;
    std::fs::copy(target.join("release").join(PROGRAM), folder.join(PROGRAM))?;
    for document in DOCUMENTS {
        std::fs::copy(root.join(document), folder.join(document)).context(*document)?;
    }
    succeed(&mut archive(&dist, &name))?;
    std::fs::remove_dir_all(&folder)?;
    println!("{}", checksum(&dist, &format!("{name}.tar.gz"))?.trim_end());
    Ok(true)
}

fn check_tag(tag: Option<&str>, version: &str) -> Result<()> {
    match tag {
        Some(tag) if tag.strip_prefix('v') != Some(version) => {
            bail!("the tag is {tag}, but the version of {PACKAGE} is {version}: tag v{version}")
        }
        _ => Ok(()),
    }
}

/// Packs the folder `name` in `dist`. Times and owners are left out, so that the archive is
/// reproducible.
fn archive(dist: &Path, name: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"])
        .args(["--use-compress-program=gzip --no-name", "-cf"])
        .args([&format!("{name}.tar.gz"), name])
        .current_dir(dist);
    tar
}

/// Writes the checksum of `file` beside it, as a line for `sha256sum --check`. Returns the line.
fn checksum(dist: &Path, file: &str) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).current_dir(dist).output();
    let output = output.context("sha256sum cannot be started")?;
    if !output.status.success() {
        bail!("sha256sum failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let line = String::from_utf8(output.stdout)?;
    std::fs::write(dist.join(format!("{file}.sha256")), &line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_another_version_is_rejected() {
        assert!(check_tag(None, "1.2.3").is_ok());
        assert!(check_tag(Some("v1.2.3"), "1.2.3").is_ok());
        let error = check_tag(Some("v1.2.4"), "1.2.3").expect_err("another version");
        assert!(error.to_string().contains("tag v1.2.3"), "{error}");
        assert!(check_tag(Some("1.2.3"), "1.2.3").is_err());
    }

    #[test]
    fn an_archive_has_a_checksum_and_is_the_same_each_time() {
        let dist = std::env::temp_dir().join(format!("windlass-dist-{}", std::process::id()));
        let folder = dist.join("windlass-x");
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut lines = Vec::new();
        for _ in 0..2 {
            std::fs::write(folder.join(PROGRAM), "program").expect("a file");
            succeed(&mut archive(&dist, "windlass-x")).expect("tar works");
            lines.push(checksum(&dist, "windlass-x.tar.gz").expect("sha256sum works"));
        }
        let kept = std::fs::read_to_string(dist.join("windlass-x.tar.gz.sha256"));
        std::fs::remove_dir_all(&dist).expect("it is there");
        assert_eq!(lines[0], lines[1]);
        assert_eq!(kept.expect("it is written"), lines[0]);
        assert!(lines[0].ends_with("  windlass-x.tar.gz\n"), "{}", lines[0]);
    }
}
