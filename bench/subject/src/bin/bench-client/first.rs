//! The first connection of a server that has just started, and its first message.

use std::time::Instant;

use windlass_bench_driver::client::ServerClock;
use windlass_bench_driver::protocol::{Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::MessageSpec;
use crate::idle::Resident;
use crate::link::Link;

pub(crate) struct FirstClient {
    outcome: Outcome,
    /// Open until the server ends.
    _link: Link,
}

impl FirstClient {
    pub(crate) fn connect(server: &ServerInfo, spec: MessageSpec) -> Result<Self, Error> {
        let payload = &spec.payloads()[0];
        let request = spec.request(payload, [9, 8, 7, 6])?;
        let begun = Instant::now();
        let mut link = Link::open(server.address, false, None)?;
        let answer = link.ask(&request)?;
        let ns = begun.elapsed().as_nanos() as u64;
        if !spec.is_reply(&answer, payload)? {
            return Err("an answer is not the message".into());
        }
        let mut outcome = Outcome { ns, units: 1, turns: 1, ..Outcome::default() };
        let resident = Resident::of(server.process)?;
        for (name, value) in [
            ("server_cpu_ns", ServerClock::of(server.process)?.ns()),
            ("rss_bytes_after_start", resident.all),
            ("anonymous_bytes_after_start", resident.anonymous),
        ] {
            outcome.gauges.insert(name.to_owned(), value as f64);
        }
        Ok(Self { outcome, _link: link })
    }
}

impl Measured for FirstClient {
    /// There is one start, and it has been measured.
    fn slice(&mut self, _rounds: u64) -> Result<Outcome, Error> {
        Ok(self.outcome.clone())
    }
}
