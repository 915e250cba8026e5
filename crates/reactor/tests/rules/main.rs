//! At least one test for every rule of ARCHITECTURE.md. It fails if the rule is not enforced.

#[macro_use]
#[path = "../common/scenarios.rs"]
mod scenarios;

use scenarios::Build;

mod attacks;
mod deletion;
mod dispatch;
mod identity;
mod panics;
mod remote;
mod threads;
mod tools;
mod turns;
