//! What a reviewer did to the reactor who wished it harm, in safe code: each test names what it broke.

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
