//! Compiles the glue around uWebSockets' headers, with the flags of uWebSockets' own makefile.

#[path = "../uwebsockets-build.rs"]
mod uwebsockets;

use uwebsockets::{compiler, sources};

fn main() {
    println!("cargo::rerun-if-changed=src/glue.cpp");
    println!("cargo::rerun-if-changed=../counted.hpp");
    println!("cargo::rerun-if-changed=../uwebsockets-build.rs");
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
    compiler(&build)?;
    build
        .try_compile("uwebsockets_glue")
        .map_err(|error| format!("the C++ compiler refuses: {error}"))
}
