//! Cargo commands that need the registry. Those of a machine without one are left out, with the
//! reason; all other errors are failures.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The messages of cargo for a package that no registry can be asked for.
const MISSING: [&str; 2] = ["failed to download", "you're using offline mode"];

/// The output of a cargo command, or the reason why the registry cannot be reached.
///
/// # Errors
///
/// If it fails for another reason.
pub(crate) fn cargo(folder: &Path, arguments: &[&str]) -> Result<Result<String, String>> {
    let output = Command::new("cargo").current_dir(folder).args(arguments).output()?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8(output.stdout)?));
    }
    let error = String::from_utf8_lossy(&output.stderr);
    match missing(&error) {
        Some(reason) => Ok(Err(reason)),
        None => bail!("cargo {}: {}", arguments[0], error.trim()),
    }
}

/// The JSON of `cargo metadata`, or the reason why the registry cannot be reached.
///
/// # Errors
///
/// If it fails for another reason.
pub(crate) fn metadata(folder: &Path) -> Result<Result<Value, String>> {
    let printed = cargo(folder, &["metadata", "--quiet", "--format-version", "1"])?;
    let parse = |text: String| serde_json::from_str(&text).context("the JSON of cargo metadata");
    printed.map(parse).map_or_else(|reason| Ok(Err(reason)), |parsed| parsed.map(Ok))
}

/// The reason for a skip, if an error of cargo says that there is no registry.
fn missing(error: &str) -> Option<String> {
    let cause = error.lines().find(|line| MISSING.iter().any(|it| line.contains(it)))?;
    Some(format!("the registry cannot be reached: {}", cause.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_registry_is_a_reason_for_a_skip() {
        let refused = "error: failed to get `axum` as a dependency\n\nCaused by:\n  failed to \
                       download from `https://index.crates.io/config.json`\n";
        let reason = "the registry cannot be reached: failed to download from \
                      `https://index.crates.io/config.json`";
        assert_eq!(missing(refused).as_deref(), Some(reason));
        let offline = "error: no matching package\nAs a reminder, you're using offline mode";
        assert!(missing(offline).is_some());
        let version = "error: failed to select a version for the requirement `axum = \"=0.9\"`";
        assert_eq!(missing(version), None);
    }

    #[test]
    fn another_error_is_a_failure() {
        let folder = crate::repository::root();
        let error = cargo(&folder, &["metadata", "--no-such-option"]).expect_err("it fails");
        assert!(error.to_string().starts_with("cargo metadata: "), "{error}");
    }
}
