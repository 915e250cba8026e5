//! The parts of `cargo metadata` that the checks use.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// One workspace member.
#[derive(Debug, Clone, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Whether it may be published.
    pub(crate) is_published: bool,
    /// Its folder, relative to the repository's root.
    pub(crate) folder: String,
    /// Its oldest supported compiler.
    pub(crate) rust_version: Option<String>,
    pub(crate) targets: Vec<Target>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One compiled target of a package.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// The path of its root file, relative to the repository's root.
    pub(crate) path: String,
    /// Whether a plain `cargo test` tests it.
    pub(crate) is_tested: bool,
}

/// One dependency, as declared in a manifest.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: DependencyKind,
    pub(crate) optional: bool,
    /// Whether it is a path in this repository.
    pub(crate) local: bool,
}

/// The use of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    Normal,
    Build,
    Dev,
}

impl Package {
    /// Whether it has a library, which users can depend on.
    pub(crate) fn is_library(&self) -> bool {
        self.targets.iter().any(|target| ["lib", "proc-macro"].contains(&&*target.kind))
    }
}

/// Reads the workspace's members from cargo.
///
/// # Errors
///
/// If cargo fails, for example because a manifest is malformed.
pub(crate) fn workspace(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    Ok(list(&metadata["packages"]).map(|package| parse_package(package, root)).collect())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn parse_package(package: &Value, root: &str) -> Package {
    Package {
        name: text(&package["name"]),
        version: text(&package["version"]),
        // `publish = false` is an empty list of registries.
        is_published: package["publish"].as_array().is_none_or(|list| !list.is_empty()),
        folder: relative(text(&package["manifest_path"]).trim_end_matches("/Cargo.toml"), root),
        rust_version: package["rust_version"].as_str().map(str::to_owned),
        targets: list(&package["targets"]).map(|target| parse_target(target, root)).collect(),
        dependencies: list(&package["dependencies"]).map(parse_dependency).collect(),
    }
}

fn parse_target(target: &Value, root: &str) -> Target {
    Target {
        name: text(&target["name"]),
        kind: text(&target["kind"][0]),
        path: relative(&text(&target["src_path"]), root),
        is_tested: target["test"] == true,
    }
}

/// A path relative to the repository's root.
fn relative(path: &str, root: &str) -> String {
    path.strip_prefix(root).unwrap_or(path).trim_start_matches('/').to_owned()
}

fn parse_dependency(dependency: &Value) -> Dependency {
    Dependency {
        name: text(&dependency["name"]),
        kind: match dependency["kind"].as_str() {
            Some("dev") => DependencyKind::Dev,
            Some("build") => DependencyKind::Build,
            _ => DependencyKind::Normal,
        },
        optional: dependency["optional"].as_bool().unwrap_or(false),
        local: dependency["path"].is_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_package_is_read_with_targets_and_kinds() {
        let value = json!({
            "name": "windlass", "version": "0.1.0", "publish": null, "rust_version": "1.85",
            "manifest_path": "/r/crates/reactor/Cargo.toml",
            "targets": [
                {"name": "windlass", "kind": ["lib"], "src_path": "/r/crates/reactor/src/lib.rs"},
            ],
            "dependencies": [
                {"name": "rustix", "kind": null, "optional": false},
                {"name": "mockall", "kind": null, "optional": true},
                {"name": "windlass", "kind": "dev", "optional": false, "path": "/r/crates/reactor"},
            ],
        });
        let package = parse_package(&value, "/r");
        assert!(package.is_library() && package.is_published);
        assert_eq!(package.version, "0.1.0");
        assert_eq!(package.rust_version.as_deref(), Some("1.85"));
        assert_eq!(package.folder, "crates/reactor");
        assert_eq!(package.targets[0].path, "crates/reactor/src/lib.rs");
        assert!(package.dependencies[1].optional);
        assert_eq!(package.dependencies[2].kind, DependencyKind::Dev);
        assert!(package.dependencies[2].local);
    }

    #[test]
    fn a_package_that_is_not_published_is_known() {
        assert!(!parse_package(&json!({"name": "xtask", "publish": []}), "").is_published);
        assert!(parse_package(&json!({"name": "a", "publish": ["mine"]}), "").is_published);
    }
}
