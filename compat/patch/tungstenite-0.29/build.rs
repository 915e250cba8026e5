//! Leaves out what only 0.30 has.

#![deny(unsafe_code)]

fn main() {
    println!("cargo::rustc-check-cfg=cfg(tungstenite_0_29)");
    println!("cargo::rustc-cfg=tungstenite_0_29");
    if std::env::var_os("CARGO_FEATURE_NATIVE_TLS").is_some() {
        println!("cargo::error=there is TLS by rustls alone: select rustls-tls-native-roots");
    }
}
