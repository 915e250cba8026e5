//! The number of random cases of a test.
//!
//! Each run of `cargo test` tries the same cases: `.cargo/config.toml` fixes proptest's seed. The
//! stage `soak` of `cargo xtask ci` sets another seed each time, and a factor. Its command line
//! shows both, so a failure can be repeated.

/// The variable with the factor.
const FACTOR: &str = "WINDLASS_TEST_CASES_FACTOR";

/// The number of cases to try, if a plain `cargo test` tries so many.
///
/// # Panics
/// If the factor is no number, because the test would try less than was asked for.
#[must_use]
pub fn cases(ordinary: u32) -> u32 {
    let factor = std::env::var(FACTOR)
        .map_or(1, |factor| factor.parse().unwrap_or_else(|_| panic!("{FACTOR}={factor}")));
    ordinary * factor
}
