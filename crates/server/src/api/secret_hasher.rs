//! Hashes that peers cannot predict.

use core::hash::{BuildHasher, Hasher as _};
use std::hash::DefaultHasher;

/// A hash with a secret of the process, so that peers cannot choose keys that collide. In a
/// simulation the seed chooses the secret.
#[derive(Debug)]
pub(crate) struct SecretHasher(u64);

impl SecretHasher {
    pub(crate) fn new() -> Self {
        Self(windlass::random())
    }
}

impl BuildHasher for SecretHasher {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
