//! `windlass load`: sends messages to an echo server, checks every byte of the answers, and
//! measures their latencies.
//!
//! | file | content |
//! |---|---|
//! | `plan.rs`, `target.rs` | arguments and the URL |
//! | `pool.rs`, `course.rs` | contents of messages, and the times at which they are sent |
//! | `connection.rs`, `websocket.rs`, `dialogue.rs`, `fault.rs` | one connection and its faults |
//! | `client.rs`, `desk.rs`, `worker.rs`, `control.rs` | connections and timers of a worker, and state that workers share |
//! | `tally.rs`, `report.rs`, `progress.rs` | results, and how they are shown |

mod client;
mod connection;
mod control;
mod course;
mod desk;
mod dialogue;
mod fault;
mod plan;
mod pool;
mod progress;
mod report;
mod tally;
mod target;
mod websocket;
mod worker;

use std::{process::ExitCode, sync::Arc};

use anyhow::Context as _;
use windlass::{Signal, SignalSet, stream::Workers};

use crate::nofile;
use control::Control;
pub(crate) use plan::Args;
use plan::Plan;
use report::Report;

/// Exit statuses above this value mean the end by a signal, by convention.
const SIGNALLED: u8 = 128;

/// Runs the measurement. The exit status is 0 if every message was answered correctly, and 1 if
/// anything went wrong. It is 128 plus the signal's number if a signal ended the run early and
/// nothing was wrong until then.
///
/// # Errors
///
/// If the measurement cannot start, or its results cannot be written.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Err(error) = args.check() {
        error.exit();
    }
    let addresses = args.target.resolve()?;
    // Signals are blocked before other threads start, so that those block them too.
    let signals = SignalSet::new([Signal::INT, Signal::TERM]).context("cannot receive signals")?;
    let workers = usize::from(args.workers);
    nofile::connections_max(Some(args.connections), workers)?;
    let plan = Arc::new(Plan { args, addresses });
    let control = Arc::new(Control::new(workers));
    let (planned, controlled) = (Arc::clone(&plan), Arc::clone(&control));
    let running = Workers::new(workers)
        .named("load")
        .start(move |worker| worker::set_up(worker, &planned, &controlled))
        .context("cannot start the workers")?;
    let progress = progress::show(&plan, &control);
    running.join().context("a worker failed")?;
    drop((progress, signals));
    let signal = control.signal();
    let control = Arc::into_inner(control).expect("the workers and the progress bar have ended");
    let report = Report::new(&plan, signal, control);
    report.show().context("cannot write the results")?;
    Ok(match signal {
        _ if !report.is_clean() => ExitCode::FAILURE,
        Some(signal) => ExitCode::from(SIGNALLED + u8::try_from(signal).unwrap_or(0)),
        None => ExitCode::SUCCESS,
    })
}
