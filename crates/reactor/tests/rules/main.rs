//! At least one test for every rule of ARCHITECTURE.md. It fails if the rule is not enforced.

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::scenarios::Build;

mod attacks;
mod deletion;
mod dispatch;
mod identity;
mod panics;
mod remote;
mod threads;
mod tools;
mod turns;
