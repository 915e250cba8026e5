//! Tests of `EventCounter` between real processes: flow in both directions, signals, and kills in
//! the middle of calls.
//!
//! The binary starts itself as the other process, so it has its own `main`.

#![cfg_attr(loom, allow(unused, reason = "there are no processes in a model"))]
#![deny(unsafe_code)]

#[cfg(not(loom))]
mod child;
#[cfg(not(loom))]
mod hostile;
#[cfg(not(loom))]
mod passing;
#[cfg(not(loom))]
mod tests;
#[cfg(not(loom))]
mod watch;

#[cfg(not(loom))]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((child::NAME, arguments)) =
        arguments.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        child::main(arguments);
        return std::process::ExitCode::SUCCESS;
    }
    windlass_testkit::mimic::run(tests::all())
}

#[cfg(loom)]
fn main() {}
