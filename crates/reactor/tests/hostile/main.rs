//! Attacks on the reactor in safe code, from a review that tried to break it. A comment at a test
//! says which bug the attack found; "regression" means that it is fixed.

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::{backend, pattern, scenarios::Build};

mod child;
mod embedding;
mod groups;
mod members;
mod misuse;
mod panics;
mod program;
mod remote;
mod streams;
mod threads;
#[path = "../rules/tools.rs"]
#[expect(dead_code, reason = "shared with the tests of the rules, which need more of it")]
mod tools;
mod wakers;

/// Starts the builder of a reactor for attacks that do not depend on the backend.
fn builder() -> windlass::Builder {
    windlass::Reactor::builder().backend(backend::chosen())
}
