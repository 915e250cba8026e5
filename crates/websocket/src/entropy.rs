//! Unpredictable bytes for masking keys and the handshake's key.

/// Fills the slice from the system's source.
///
/// # Panics
/// If the system has none, or it fails.
#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub(crate) fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system's source of random bytes works");
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub(crate) fn fill(_: &mut [u8]) {
    panic!("wasm32-unknown-unknown has no source of random bytes: give one to Config::entropy");
}
