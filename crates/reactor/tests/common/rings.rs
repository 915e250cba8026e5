//! Whether rings can be had here. Containers forbid them; a test that needs one is skipped there,
//! and says why.

use std::{io::Write as _, sync::OnceLock};

use windlass::{Backend, BuildError, Reactor, RingError};

/// Why there are no rings: they are forbidden, or the kernel's are too old. None where they work,
/// and where they fail for any other reason, which is for the tests to find.
pub(crate) fn refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal =
        REFUSAL.get_or_init(|| match Reactor::builder().backend(Backend::Uring).build() {
            Err(BuildError::Ring(why @ (RingError::Forbidden(_) | RingError::Missing(_)))) => {
                Some(why.to_string())
            }
            _ => None,
        });
    refusal.as_deref()
}

/// Whether a test can have a ring. Where it cannot, a line says so on the standard error itself:
/// what a test prints by macro is shown only if it fails. `cargo xtask` takes a test of which there
/// is such a line for an ignored one (`xtask/src/tally.rs`).
#[allow(dead_code, reason = "not every program of tests has tests that need a ring")]
pub(crate) fn are_to_be_had(test: &str) -> bool {
    let Some(why) = refusal() else { return true };
    let line = format!("skipped here: {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("there is a standard error");
    false
}
