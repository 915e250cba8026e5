//! What a reviewer did to the reactor who wished it harm, in safe code: each test names what it
//! broke.

#[macro_use]
#[path = "../common/scenarios.rs"]
mod scenarios;

use scenarios::Build;

#[path = "../common/backend.rs"]
mod backend;
mod child;
mod embedding;
mod groups;
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

/// Begins the builder of a reactor that attacks are made on which do not care for the backend.
fn builder() -> windlass::Builder {
    windlass::Reactor::builder().backend(backend::chosen())
}
