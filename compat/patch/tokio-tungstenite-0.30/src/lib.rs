//! `windlass-tokio-tungstenite` under the name of tokio-tungstenite 0.30, for `[patch.crates-io]`.

#![deny(unsafe_code)]

#[cfg(feature = "native-tls")]
compile_error!("Windlass has TLS by rustls alone: select `rustls-tls-native-roots` instead");

pub use windlass_tokio_tungstenite::*;
