//! Connections that wait, to measure the server's memory.

use std::net::SocketAddr;

use windlass_bench_driver::protocol::{Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::frame_cycle::MessageSpec;
use crate::link::{Link, TlsClient};

/// Number of connections before the measurement, so that their common set-up in the server is not
/// counted.
const BEFORE: usize = 20;

pub(crate) struct IdleClient {
    address: SocketAddr,
    /// The server sends the bytes of a request back.
    echoes_bytes: bool,
    process: u32,
    connections: usize,
    spec: MessageSpec,
    tls: Option<TlsClient>,
    /// All connections, which stay open.
    open: Vec<Link>,
}

impl IdleClient {
    pub(crate) fn connect(
        server: &ServerInfo,
        connections: usize,
        spec: MessageSpec,
        tls: Option<TlsClient>,
    ) -> Result<Self, Error> {
        let mut idle = Self {
            address: server.address,
            echoes_bytes: server.echoes_bytes,
            process: server.process,
            connections,
            spec,
            tls,
            open: Vec::with_capacity(connections),
        };
        idle.more(BEFORE)?;
        Ok(idle)
    }

    /// Opens connections, each of which has a message echoed.
    fn more(&mut self, count: usize) -> Result<(), Error> {
        let spec = self.spec;
        let payload = &spec.payloads()[0];
        let request = spec.request(payload, [9, 8, 7, 6])?;
        for _ in 0..count {
            let tls = self.tls.as_mut().map(TlsClient::begin).transpose()?;
            let mut link = Link::open(self.address, spec.deflate, tls)?;
            let answer = link.ask(&request)?;
            let is_right = match self.echoes_bytes {
                true => answer == request,
                false => spec.is_reply(&answer, payload)?,
            };
            if !is_right {
                return Err("an answer is not the message".into());
            }
            self.open.push(link);
        }
        Ok(())
    }
}

/// Resident bytes: all of them, and those without the pages of files. The latter are the program's
/// text, and their number depends on how many pages the kernel has mapped ahead.
pub(crate) struct Resident {
    pub(crate) all: u64,
    pub(crate) anonymous: u64,
}

impl Resident {
    /// Reads the memory of a process. This count is exact, because the kernel walks the page tables
    /// for it.
    pub(crate) fn of(process: u32) -> Result<Self, Error> {
        let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        let bytes = |field: &'static str| -> Result<u64, Error> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(field))
                .ok_or("the kernel does not say it")?;
            let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
            Ok(kib * 1024)
        };
        Ok(Self { all: bytes("Rss:")?, anonymous: bytes("Anonymous:")? })
    }
}

impl Measured for IdleClient {
    fn slice(&mut self, _rounds: u64) -> Result<Outcome, Error> {
        let before = Resident::of(self.process)?;
        self.more(self.connections)?;
        let units = self.connections as u64;
        let mut outcome = Outcome { ns: 1, units, turns: 1, ..Outcome::default() };
        let after = Resident::of(self.process)?;
        for (gauge, grown) in [
            ("rss_bytes_per_connection", after.all.saturating_sub(before.all)),
            ("anonymous_bytes_per_connection", after.anonymous.saturating_sub(before.anonymous)),
        ] {
            outcome.gauges.insert(gauge.to_owned(), grown as f64 / units as f64);
        }
        Ok(outcome)
    }
}
