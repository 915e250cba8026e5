//! The part that the build scripts for uWebSockets share.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Returns the compiler of a build, if it starts.
pub(crate) fn compiler(build: &cc::Build) -> Result<cc::Tool, String> {
    let compiler = build.try_get_compiler().map_err(|_| "no C++ compiler was found")?;
    let works = Command::new(compiler.path())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        return Err(format!("no C++ compiler: {} does not start", compiler.path().display()));
    }
    Ok(compiler)
}

/// Returns cargo's folder of the crate with the sources, after fetching the crate if necessary.
pub(crate) fn sources() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").ok_or("cargo does not say where it is")?;
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err("the sources of uWebSockets cannot be fetched".to_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("cargo's metadata has no packages")?;
    let package = packages.iter().find(|package| package["name"] == "libuwebsockets-sys");
    let manifest = package
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("libuwebsockets-sys is missing")?;
    Path::new(manifest)
        .parent()
        .map(Path::to_owned)
        .ok_or_else(|| "a manifest without a directory".to_owned())
}
