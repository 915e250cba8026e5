//! The suite `http`: requests over keep-alive connections.
//!
//! [`HttpRuntime`] is an asynchronous runtime whose tasks serve connections. [`HttpWorkload`] runs
//! the cases on one. What has no futures implements [`TaskSubject`](crate::tasks::TaskSubject)
//! itself, with the same messages, and [`OtherClient`] as the client on another processor.

mod case;
mod client;
mod idle;
mod message;
mod runtime;
mod same_thread;
mod workload;

use std::net::SocketAddr;
use std::thread::JoinHandle;

use crate::alloc::{CountMode, CountModeGuard, counting};
use crate::measured::{Error, Unsupported};
use crate::tasks::Laps;
use crate::threads;

pub use case::{ClientPlace, HttpCase, HttpServer, PacedRate};
pub use message::{BODY, REQUEST, RESPONSE, Received};
pub use runtime::{HttpRuntime, HttpStream, Serving, mock};
pub use workload::HttpWorkload;

use client::{ClientResult, Pace};

/// The gauge for the rate at full speed before the paced requests.
pub const REACHED_PER_S: &str = "requests_per_s_before";

/// The share of a rate at which paced requests are due.
pub const PACE: f64 = 0.7;

/// The client on another processor, while it runs.
#[derive(Debug)]
pub struct OtherClient {
    thread: JoinHandle<Result<ClientResult, String>>,
    /// Two threads allocate, and are timed.
    _not_counted: CountModeGuard,
}

impl OtherClient {
    /// Starts the client of a case of the suite: it opens so many connections to the address, and
    /// closes them after its last request.
    ///
    /// # Errors
    ///
    /// If it has no processor.
    pub fn start(case: &HttpCase, address: SocketAddr, rounds: u64) -> Result<Self, Error> {
        threads::check_processors()?;
        let (connections, pace) = match *case {
            HttpCase::Requests { connections, .. } | HttpCase::MultiThread { connections, .. } => {
                (connections, Pace::FullSpeed)
            }
            HttpCase::PacedRequests { connections, rate: PacedRate::Own, .. } => {
                (connections, Pace::Own)
            }
            HttpCase::PacedRequests { connections, rate: PacedRate::PerSecond(rate), .. } => {
                (connections, Pace::PerSecond(rate))
            }
            HttpCase::PacedRequests { rate: PacedRate::Common, .. } => {
                return Err(Unsupported("no rate is known that is common to all").into());
            }
            HttpCase::IdleKeepAlive { .. } => return Err("this case has another client".into()),
        };
        let not_counted = counting(CountMode::Not);
        let thread = client::start(address, connections, rounds, pace);
        Ok(Self { thread, _not_counted: not_counted })
    }

    /// Waits for its end, after all connections have ended.
    ///
    /// # Errors
    ///
    /// If a connection failed, or another response came.
    pub fn finish(self, laps: &Laps) -> Result<(), Error> {
        let result = threads::join(self.thread)?;
        laps.set(result.ns, result.requests);
        result.latencies_ns.iter().for_each(|&ns| laps.record_ns(ns));
        let cpu_us = result.server_cpu_ns as f64 / 1e3 / result.requests as f64;
        laps.gauge("server_cpu_us_per_request", cpu_us);
        if let Some(rate) = result.rate {
            laps.gauge(REACHED_PER_S, rate);
        }
        if let Some(rate) = result.due_per_s {
            laps.gauge("requests_due_per_s", rate);
        }
        Ok(())
    }
}
