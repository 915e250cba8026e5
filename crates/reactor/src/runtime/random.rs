//! Secrets and IDs.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// A random number that no peer can guess. On a thread with a simulation, the seed chooses it, and
/// each call returns another one, also in a run that was shrunk.
#[doc(hidden)]
#[must_use]
pub fn random() -> u64 {
    #[cfg(feature = "sim")]
    if let Some(world) = crate::world::World::current() {
        return world.kernel().distinct();
    }
    // The standard library seeds its hashers from the system's random numbers.
    RandomState::new().build_hasher().finish()
}
