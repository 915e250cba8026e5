//! `windlass load`: sends messages to an echo server, checks every byte of the answers, and
//! measures their latencies. Of an HTTP server it checks the responses to GET requests.
//!
//! | file | content |
//! |---|---|
//! | `plan.rs`, `target.rs`, `header.rs`, `tls.rs` | arguments, the URL, and TLS |
//! | `payload.rs`, `schedule.rs` | contents of messages, and the times at which they are sent |
//! | `exchange.rs`, `fault.rs` | checks of the answers of one connection, and its faults |
//! | `fan_out.rs` | publishers and receivers |
//! | `websocket.rs`, `http.rs`, `connection.rs` | one connection |
//! | `worker.rs`, `event_loop.rs` | the connections of a worker, and the reactor that runs them |
//! | `http2/` | the workers, connections and streams of `--http2` |
//! | `run_state.rs` | state that workers share |
//! | `results.rs`, `threshold.rs` | results, and what is expected of them |
//! | `report.rs`, `progress.rs` | how they are shown |

mod connection;
mod event_loop;
mod exchange;
mod fan_out;
mod fault;
mod header;
mod http;
mod http2;
mod payload;
mod plan;
mod progress;
mod report;
mod results;
mod run_state;
mod schedule;
mod target;
mod threshold;
mod tls;
mod websocket;
mod worker;

use std::{process::ExitCode, sync::Arc};

use anyhow::Context as _;
use windlass::{Signal, SignalSet, stream::Workers};

use crate::nofile;
use http2::Http2Workers;
use plan::LoadPlan;
use report::LoadReport;
use run_state::RunState;

pub(crate) use plan::LoadArgs;

/// Exit statuses above this value mean the end by a signal, by convention.
const SIGNALLED: u8 = 128;

/// The exit status if nothing went wrong, but a threshold of `--expect` was missed.
const MISSED: u8 = 3;

/// Runs the measurement. The exit status is 0 if every message was answered correctly, 1 if
/// anything went wrong, and 3 if a threshold was missed. It is 128 plus the signal's number if a
/// signal ended the run early and nothing was wrong until then.
///
/// # Errors
///
/// If the measurement cannot start, or its results cannot be written.
pub(crate) fn run(args: LoadArgs) -> anyhow::Result<ExitCode> {
    if let Err(error) = args.check() {
        error.exit();
    }
    // Signals are blocked before other threads start, so that those block them too.
    let signals = SignalSet::new([Signal::INT, Signal::TERM]).context("cannot receive signals")?;
    let workers = usize::from(args.workers);
    nofile::connections_max(Some(args.connections), workers)?;
    let plan = Arc::new(LoadPlan::new(args)?);
    let run_state = Arc::new(RunState::new(&plan));
    let cannot_start = "cannot start the workers";
    let progress = progress::show(&plan, &run_state);
    if plan.args.http2 {
        Http2Workers::start(&plan, &run_state).context(cannot_start)?.join()?;
    } else {
        let (planned, shared) = (Arc::clone(&plan), Arc::clone(&run_state));
        let running = Workers::new(workers)
            .named("load")
            .start(move |worker| event_loop::set_up(worker, &planned, &shared))
            .context(cannot_start)?;
        running.join().context("a worker failed")?;
    }
    drop((progress, signals));
    let signal = run_state.signal();
    let run_state =
        Arc::into_inner(run_state).expect("the workers and the progress bar have ended");
    let report = LoadReport::new(&plan, signal, run_state);
    report.show().context("cannot write the results")?;
    Ok(match signal {
        _ if !report.is_clean() => ExitCode::FAILURE,
        None if !report.is_as_expected() => ExitCode::from(MISSED),
        Some(signal) => ExitCode::from(SIGNALLED + u8::try_from(signal).unwrap_or(0)),
        None => ExitCode::SUCCESS,
    })
}
