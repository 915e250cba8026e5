//! Compiles uWebSockets and uSockets with the flags of their own makefiles, including link-time
//! optimization between the two. There are two builds: one for the processor of this machine, as in
//! the makefiles, and one without AVX-512, which callgrind does not support.
//!
//! The package `uwebsockets-openssl-server` has the same build script, and gets TLS by OpenSSL.

#[path = "../uwebsockets-build.rs"]
mod uwebsockets;

use std::path::PathBuf;

use uwebsockets::{compiler, sources};

/// The ends of the binaries' names, and the processors for which they are compiled.
const BUILDS: [(&str, &str); 2] = [("", "native"), ("-counted", "x86-64-v3")];

/// The folder of the sources of both packages.
const SOURCES: &str = "../uwebsockets-server";

fn main() {
    println!("cargo::rerun-if-changed={SOURCES}/src/server.cpp");
    println!("cargo::rerun-if-changed={SOURCES}/build.rs");
    println!("cargo::rerun-if-changed=../uwebsockets-build.rs");
    println!("cargo::rerun-if-changed=../counted.hpp");
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    for (end, processor) in BUILDS {
        let is_secure = package.ends_with("openssl");
        if let Err(reason) = compile(&format!("{package}{end}"), processor, is_secure) {
            println!("cargo::error={reason}");
        }
    }
}

fn compile(binary: &str, processor: &str, is_secure: bool) -> Result<(), String> {
    let sources = sources()?.join("uWebSockets");
    let name = processor.replace('-', "_");
    let out =
        PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo names no directory")?).join(&name);
    let usockets = sources.join("uSockets/src");
    let mut flags = cc::Build::new();
    flags
        .cargo_metadata(false)
        .out_dir(&out)
        .opt_level(3)
        .debug(true)
        .force_frame_pointer(false)
        // For a program. In a library, functions could be replaced and would not be inlined.
        .pic(false)
        .flag("-fPIE")
        .flag(format!("-march={processor}"))
        .flag("-flto")
        .define(if is_secure { "LIBUS_USE_OPENSSL" } else { "LIBUS_NO_SSL" }, None)
        .include(sources.join("src"))
        .include(&usockets)
        .warnings(false);
    if let Some(include) = std::env::var_os("DEP_Z_INCLUDE") {
        flags.include(include);
    }
    let mut cpp = flags.clone();
    cpp.cpp(true).std("c++20").file(format!("{SOURCES}/src/server.cpp"));
    if is_secure {
        cpp.file(usockets.join("crypto/sni_tree.cpp"));
    }
    let compiler = compiler(&cpp)?;
    let refused = |error: cc::Error| format!("the compiler refuses: {error}");
    let mut objects = cpp.try_compile_intermediates().map_err(refused)?;
    let c = [
        "bsd.c",
        "context.c",
        "loop.c",
        "socket.c",
        "udp.c",
        "crypto/openssl.c",
        "eventing/epoll_kqueue.c",
    ];
    objects.extend(
        flags
            .files(c.map(|file| usockets.join(file)))
            .try_compile_intermediates()
            .map_err(refused)?,
    );
    // The link-time optimization happens here. The result is an ordinary object for Rust's linker.
    let whole = out.join("uwebsockets.o");
    let mut link = compiler.to_command();
    link.args(["-r", "-nostdlib", "-flinker-output=nolto-rel", "-o"]).arg(&whole).args(objects);
    if !link.status().is_ok_and(|status| status.success()) {
        return Err("the C++ compiler has no link-time optimization".to_owned());
    }
    // Both builds define the same symbols, so each is linked to its own binary. zlib is linked
    // again after the code that needs it.
    let zlib =
        PathBuf::from(std::env::var_os("DEP_Z_ROOT").ok_or("zlib is nowhere")?).join("lib/libz.a");
    let libraries = [whole, zlib];
    let libraries = libraries.iter().map(|library| library.display().to_string());
    let shared: &[&str] =
        if is_secure { &["-lssl", "-lcrypto", "-lstdc++"] } else { &["-lstdc++"] };
    for argument in libraries.chain(shared.iter().map(|&name| name.to_owned())) {
        println!("cargo::rustc-link-arg-bin={binary}={argument}");
    }
    Ok(())
}
