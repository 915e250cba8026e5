//! Messages that are due at a fixed rate, whatever the server does.
//!
//! 1. Message `n` is due `n / rate` after the begin, on the connections in turn.
//! 2. It is sent when it is due, also if earlier ones of its connection are in flight.
//! 3. Its latency counts from when it was due. So what waits for a slow server, or for this client,
//!    is late by the time of the wait (coordinated omission is corrected).
//!
//! The client does not sleep, because its own wake-up would be a part of each latency.

use std::time::{Duration, Instant};

use windlass_bench_driver::client::Window;
use windlass_bench_driver::protocol::Outcome;
use windlass_bench_driver::{Error, Measured};

use crate::burst::put_percentiles;
use crate::echo::EchoClient;

/// Messages a second on all quiet connections beside a hot one: some of each slice, and far from
/// what any server can do.
const QUIET_PER_S: f64 = 2_000.0;

/// Minimum number of messages by which a server's rate is found.
const FULL_SPEED_MIN: u64 = 4_000;

/// The rate at which messages are due.
#[derive(Clone, Copy, Debug)]
enum Rate {
    PerSecond(f64),
    /// This share of what the server has reached just before.
    PerCent(u32),
}

pub(crate) struct PacedClient {
    paced: EchoClient,
    /// Always has messages in flight.
    hot: Option<EchoClient>,
    rate: Rate,
}

impl PacedClient {
    /// Messages at a share of the server's rate.
    pub(crate) fn at_share(per_cent: u32, paced: EchoClient) -> Self {
        Self { paced, hot: None, rate: Rate::PerCent(per_cent) }
    }

    /// Messages on quiet connections beside a hot one.
    pub(crate) fn beside(hot: Option<EchoClient>, paced: EchoClient) -> Self {
        Self { paced, hot, rate: Rate::PerSecond(QUIET_PER_S) }
    }

    /// Sends so many paced messages, and receives their answers. Returns their latencies.
    fn run(&mut self, rounds: u64, per_s: f64, window: &mut Window) -> Result<Vec<f64>, Error> {
        let Self { paced, hot, .. } = self;
        let EchoClient { poll, connections, shared, .. } = paced;
        let count = connections.len() as u64;
        let mut latencies_us = Vec::with_capacity(rounds as usize);
        let (mut due, mut answered) = (0, vec![0; connections.len()]);
        let origin = Instant::now();
        let due_us = |number: u64| number as f64 * 1e6 / per_s;
        let now_us = || origin.elapsed().as_nanos() as f64 / 1e3;
        while (latencies_us.len() as u64) < rounds {
            while due < rounds && due_us(due) <= now_us() {
                connections[(due % count) as usize].send_one(shared)?;
                due += 1;
            }
            for index in 0..poll.wait_within(Duration::ZERO)? {
                let place = poll.ready(index);
                let ended = connections[place].receive(shared)?;
                let now_us = now_us();
                for _ in 0..ended {
                    // A connection's answers come in the order of its messages.
                    latencies_us.push(now_us - due_us(answered[place] * count + place as u64));
                    answered[place] += 1;
                }
                window.count(ended);
            }
            if let Some(hot) = hot {
                let ready = hot.poll.wait_within(Duration::ZERO)?;
                hot.exchange(ready, |answered| {
                    window.count(answered);
                    true
                })?;
            }
        }
        Ok(latencies_us)
    }
}

impl Measured for PacedClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let (per_s, before) = match self.rate {
            Rate::PerSecond(per_s) => (per_s, 0),
            Rate::PerCent(per_cent) => {
                let full = self.paced.slice((rounds / 3).max(FULL_SPEED_MIN))?;
                let per_s = full.units as f64 * 1e9 / full.ns as f64;
                (per_s * f64::from(per_cent) / 100.0, full.turns)
            }
        };
        let mut in_flight = self.hot.as_mut().map_or(Ok(0), EchoClient::begin)?;
        let mut window = Window::new(self.paced.clock, 0, u64::MAX);
        window.count(0);
        let mut latencies_us = self.run(rounds, per_s, &mut window)?;
        window.end();
        let mut outcome = window.outcome();
        if let Some(hot) = &mut self.hot {
            while in_flight > 0 {
                let ready = hot.poll.wait()?;
                in_flight -= hot.exchange(ready, |_| false)?;
            }
        }
        outcome.turns += before;
        outcome.gauges.insert("due_per_s".to_owned(), per_s);
        put_percentiles(&mut outcome, &mut latencies_us);
        Ok(outcome)
    }
}
