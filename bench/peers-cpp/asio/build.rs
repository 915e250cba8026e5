//! Compiles the coroutines against the distribution's Asio, for the same processor and with the
//! same optimization as the Rust programs.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=src/glue.cpp");
    println!("cargo::rerun-if-changed=src/http.hpp");
    println!("cargo::rerun-if-changed=../counted.hpp");
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(reason) = compile() {
        println!("cargo::error={reason}");
    }
}

fn compile() -> Result<(), String> {
    let include = ["/usr/include", "/usr/local/include"].map(Path::new);
    let header = include.iter().map(|folder| folder.join("asio.hpp")).find(|file| file.exists());
    let header = header.ok_or("asio.hpp was not found; install libasio-dev")?;
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::rustc-env=ASIO_VERSION={}", version(&header)?);
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .opt_level(3)
        .debug(true)
        .define("ASIO_NO_DEPRECATED", None)
        .warnings(false)
        .file("src/glue.cpp");
    let fits = build.is_flag_supported("-fcoroutines").unwrap_or(false);
    if !fits {
        return Err("no C++ compiler with coroutines was found".to_owned());
    }
    build
        .flag("-fcoroutines")
        .try_compile("asio_glue")
        .map_err(|error| format!("the C++ compiler refuses: {error}"))
}

/// Returns the version in `asio/version.hpp`: `#define ASIO_VERSION 102201 // 1.22.1`.
fn version(header: &Path) -> Result<String, String> {
    let file: PathBuf = header.with_file_name("asio").join("version.hpp");
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let line = text.lines().find(|line| line.starts_with("#define ASIO_VERSION "));
    let number = line.and_then(|line| line.split_whitespace().nth(2)?.parse::<u32>().ok());
    let number = number.ok_or("asio/version.hpp has no version")?;
    Ok(format!("{}.{}.{}", number / 100_000, number / 100 % 1_000, number % 100))
}
