//! `windlass load`: sends messages to an echo server, checks every byte that comes back, and says
//! how long that took.
//!
//! | file | what it is |
//! |---|---|
//! | `plan.rs`, `target.rs` | what was asked for: arguments, the URL |
//! | `pool.rs`, `course.rs` | what messages say, and when they are sent |
//! | `connection.rs`, `websocket.rs`, `dialogue.rs`, `fault.rs` | one connection, and what can go wrong with it |
//! | `client.rs`, `desk.rs`, `worker.rs`, `control.rs` | the connections of a worker, its timers, and what workers share |
//! | `tally.rs`, `report.rs`, `progress.rs` | what was measured, and how it is shown |

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

/// What the exit status of a program that a signal has ended is above, by custom.
const SIGNALLED: u8 = 128;

/// Measures. The exit status is 0 if every message came back as it was sent, 1 if anything went
/// wrong, and 128 plus the signal's number if a signal has ended it early and nothing was wrong
/// until then.
///
/// # Errors
///
/// When it cannot begin, or cannot write what it has measured.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Err(error) = args.check() {
        error.exit();
    }
    let addresses = args.target.resolve()?;
    // Before there are other threads, which block the signals too.
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
