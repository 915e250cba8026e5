//! Tells whether io_uring is available. Containers forbid it. A test that needs a ring is skipped
//! there, with the reason.

use std::{io::Write as _, sync::OnceLock};

use windlass::{Backend, BuildError, Reactor, RingError};

/// The reason why rings are unavailable: they are forbidden, the kernel is too old, or the feature
/// `uring` is off. `None` if they work. Also `None` for any other failure, which the tests then
/// report.
pub fn refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal =
        REFUSAL.get_or_init(|| match Reactor::builder().backend(Backend::Uring).build() {
            Err(BuildError::Ring(
                why @ (RingError::Forbidden(_) | RingError::Missing(_) | RingError::NotCompiled),
            )) => Some(why.to_string()),
            _ => None,
        });
    refusal.as_deref()
}

/// True if the test can use a ring. If not, it writes a line directly to standard error, because
/// output of the print macros appears only for failed tests. `cargo xtask` counts a test with such
/// a line as ignored (`xtask/src/tally.rs`).
pub fn are_to_be_had(test: &str) -> bool {
    let Some(why) = refusal() else { return true };
    let line = format!("skipped here: {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("there is a standard error");
    false
}
