//! Compiles the glue around uWebSockets' headers, with the flags of uWebSockets' own makefile.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn main() {
    println!("cargo::rerun-if-changed=src/glue.cpp");
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(reason) = compile() {
        println!("cargo::error={reason}");
    }
}

fn compile() -> Result<(), String> {
    let sources = sources()?.join("uWebSockets");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .opt_level(3)
        .debug(true)
        .flag("-march=native")
        .define("LIBUS_NO_SSL", None)
        .include(sources.join("src"))
        .include(sources.join("uSockets/src"))
        .warnings(false)
        .file("src/glue.cpp");
    // The folder of the zlib header, from the crate of zlib.
    if let Some(include) = std::env::var_os("DEP_Z_INCLUDE") {
        build.include(include);
    }
    let compiler = build.try_get_compiler().map_err(|_| "no C++ compiler was found")?;
    let works = Command::new(compiler.path())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        return Err(format!("no C++ compiler: {} does not start", compiler.path().display()));
    }
    build
        .try_compile("uwebsockets_glue")
        .map_err(|error| format!("the C++ compiler refuses: {error}"))
}

/// Returns cargo's folder of the crate with the sources, after fetching the crate if necessary.
fn sources() -> Result<PathBuf, String> {
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
