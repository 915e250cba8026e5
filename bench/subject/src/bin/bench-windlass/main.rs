//! Windlass for the workloads of `windlass-bench`: events and timers, other threads, and the
//! WebSocket protocol.

#![deny(unsafe_code)]

mod backend;
mod counter;
mod events;
mod registration;
mod remote;
mod streams;
mod websocket;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use windlass::{Builder, Key, Reactor};
use windlass_bench_driver::sleep::SleepSubject;
use windlass_bench_driver::source::Hits;
use windlass_bench_driver::timers::TimerSubject;
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite};

use events::Windlass;

fn main() -> ExitCode {
    let suites = vec![
        Suite::dispatch::<Windlass>(),
        Suite::kick::<Windlass>(),
        Suite::poll0::<Windlass>(),
        Suite::first_event::<Windlass>(),
        Suite::timers::<Windlass>(),
        Suite::sleep::<Windlass>(),
        Suite::streams::<streams::Streams>(),
        Suite::flow::<counter::Counter>(),
        Suite::wake::<remote::Woken>(),
        Suite::call::<remote::Calls>(),
        Suite::post::<remote::Queue>(),
        Suite::engine::<websocket::Connection>(),
        Suite::unmask::<websocket::Unmask>(),
        Suite::utf8::<websocket::Validator>(),
        Suite::deflate::<websocket::deflate::Deflate>(),
    ];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

/// As [`events`] and [`remote`] make their reactors.
fn build(builder: Builder) -> Result<Reactor, Error> {
    Ok(builder.build()?)
}

/// As [`events`] takes its turns.
#[inline(always)]
fn turn(reactor: &mut Reactor) -> std::io::Result<()> {
    reactor.run_once(None)?;
    Ok(())
}

impl TimerSubject for Windlass {
    type Key = Key;

    fn new(backend: &str) -> Result<Self, Error> {
        Self::make(backend)
    }

    fn insert(&mut self, deadline: Instant, fired: Hits) -> Result<Key, Error> {
        let key = self.0.at(deadline, move || fired.add());
        key.map_err(|refused| std::io::Error::from(refused).into())
    }

    fn every(&mut self, period: Duration, fired: Hits) -> Result<(), Error> {
        // A timer can only be due in every turn if the resolution is as fine as its period.
        self.0 = Reactor::builder()
            .backend(self.0.backend())
            .events_per_turn(EVENTS_PER_TURN)
            .timer_resolution(period)
            .build()?;
        let key = self.0.every(period, move || fired.add());
        key.map(drop).map_err(|refused| std::io::Error::from(refused).into())
    }

    fn cancel(&mut self, key: Key) -> Result<(), Error> {
        Ok(self.0.cancel(key)?)
    }

    fn reset(&mut self, key: &mut Key, deadline: Instant) -> Result<(), Error> {
        Ok(self.0.reset_at(*key, deadline)?)
    }

    fn turn(&mut self) -> Result<(), Error> {
        self.0.run_once(Duration::ZERO)?;
        Ok(())
    }
}

impl SleepSubject for Windlass {
    fn new(backend: &str) -> Result<Self, Error> {
        Self::make(backend)
    }

    fn sleep(&mut self, span: Duration) -> Result<(), Error> {
        let fired = Hits::default();
        let hits = fired.clone();
        self.0.after(span, move || hits.add()).map_err(std::io::Error::from)?;
        while fired.count() == 0 {
            self.0.run_once(None)?;
        }
        Ok(())
    }
}
