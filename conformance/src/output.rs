//! The folders of reports and logs.

use std::path::{Path, PathBuf};

/// Returns the folder for a suite's reports and logs, in cargo's target directory.
pub(crate) fn folder(root: &Path, suite: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |path| root.join(path));
    target.join("conformance").join(suite)
}
