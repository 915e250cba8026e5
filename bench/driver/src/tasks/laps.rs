//! The clock of a slice, and the latencies of its rounds.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Instant;

use crate::alloc;
use crate::measured::Error;
use crate::protocol::Outcome;

/// Maximum number of latencies that a slice keeps. A slice of seconds has fewer rounds.
const LATENCIES_MAX: u64 = 1 << 22;

/// The clock of a slice, and the latencies of its rounds. It allocates nothing between
/// [`start`](Self::start) and [`stop`](Self::stop).
#[derive(Debug)]
pub struct Laps {
    started: Cell<Instant>,
    allocations: Cell<u64>,
    ns: Cell<u64>,
    units: Cell<u64>,
    latencies: RefCell<Vec<u32>>,
    gauges: RefCell<BTreeMap<String, f64>>,
}

/// The end of the previous round.
#[derive(Clone, Copy, Debug)]
pub struct Lap(Instant);

impl Laps {
    pub(crate) fn new(rounds: u64) -> Self {
        // Threads share the rounds evenly, so there may be some more than asked for.
        let capacity = (rounds + 1024).min(LATENCIES_MAX) as usize;
        Self {
            started: Cell::new(Instant::now()),
            allocations: Cell::new(0),
            ns: Cell::new(0),
            units: Cell::new(0),
            latencies: RefCell::new(Vec::with_capacity(capacity)),
            gauges: RefCell::default(),
        }
    }

    /// Starts the clock.
    pub fn start(&self) {
        self.allocations.set(alloc::counts().allocations);
        self.started.set(Instant::now());
    }

    /// Stops the clock after this number of units.
    pub fn stop(&self, units: u64) {
        self.ns.set(self.started.get().elapsed().as_nanos() as u64);
        self.allocations.set(alloc::counts().allocations - self.allocations.get());
        self.units.set(units);
    }

    /// Sets the time and the number of units, for a program with a clock of its own.
    pub fn set(&self, ns: u64, units: u64) {
        self.ns.set(ns);
        self.units.set(units);
    }

    /// Begins the first round.
    pub fn lap(&self) -> Lap {
        Lap(Instant::now())
    }

    /// Records the latency of a round, and begins the next.
    #[inline]
    pub fn record(&self, lap: &mut Lap) {
        let now = Instant::now();
        self.record_ns((now - lap.0).as_nanos() as u64);
        lap.0 = now;
    }

    /// Records a latency.
    #[inline]
    pub fn record_ns(&self, ns: u64) {
        let mut latencies = self.latencies.borrow_mut();
        if latencies.len() < latencies.capacity() {
            latencies.push(u32::try_from(ns).unwrap_or(u32::MAX));
        }
    }

    /// Adds a figure to the report.
    pub fn gauge(&self, name: &str, value: f64) {
        self.gauges.borrow_mut().insert(name.to_owned(), value);
    }

    pub(crate) fn outcome(&self, rounds: u64) -> Result<Outcome, Error> {
        let units = self.units.get();
        if units < rounds {
            return Err(format!("{units} units were done, not {rounds}").into());
        }
        let mut latencies = self.latencies.take();
        latencies.sort_unstable();
        let mut gauges = self.gauges.take();
        if !latencies.is_empty() {
            let us = |share: f64| {
                let place = (share * (latencies.len() - 1) as f64).round() as usize;
                f64::from(latencies[place]) / 1_000.0
            };
            for (name, share) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
                gauges.insert(name.to_owned(), us(share));
            }
            gauges.insert("latency_us_max".to_owned(), us(1.0));
        }
        let (ns, allocations) = (self.ns.get(), self.allocations.get());
        Ok(Outcome { ns, units, turns: 0, allocations, gauges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_recorded_latencies() {
        let laps = Laps::new(1_000);
        laps.start();
        (1..=1_000_u64).rev().for_each(|us| laps.record_ns(us * 1_000));
        laps.stop(1_000);
        let outcome = laps.outcome(1_000).unwrap();
        assert_eq!(outcome.gauges["p50_us"], 501.0);
        assert_eq!(outcome.gauges["p999_us"], 999.0);
        assert_eq!(outcome.gauges["latency_us_max"], 1_000.0);
        // The allocations are those of the whole process, and other tests run beside this one.
        assert_eq!(outcome.units, 1_000);
    }

    #[test]
    fn a_slice_with_too_few_units_is_a_failure() {
        let laps = Laps::new(3);
        laps.start();
        laps.stop(2);
        assert!(laps.outcome(3).is_err());
    }
}
