//! One test, or more, for every rule of ARCHITECTURE.md: it breaks when the rule is dropped.

#[macro_use]
#[path = "../common/scenarios.rs"]
mod scenarios;

use scenarios::Build;

mod attacks;
mod deletion;
mod identity;
mod panics;
mod remote;
mod threads;
mod tools;
mod turns;
