//! The WebSocket engine and its parts.

pub(crate) mod deflate;
mod parts;

use std::sync::Arc;

use windlass_bench_driver::Error;
use windlass_bench_driver::websocket::{EngineSubject, READ_MAX, Wire};
use windlass_ws::{Config, Engine, EngineEvent, Scratch};

pub(crate) use parts::{Unmask, Validator};

/// The state of a reactor for all of its connections.
pub(crate) struct Thread {
    config: Arc<Config>,
    scratch: Scratch,
    buffer: Vec<u8>,
}

impl Default for Thread {
    fn default() -> Self {
        Self {
            config: Arc::new(Config::server()),
            scratch: Scratch::default(),
            buffer: vec![0; READ_MAX],
        }
    }
}

pub(crate) struct Connection {
    engine: Engine,
    wire: Wire,
}

impl EngineSubject for Connection {
    type Thread = Thread;

    fn engine_bytes() -> usize {
        size_of::<Engine>()
    }

    fn new(wire: Wire, thread: &mut Thread) -> Result<Self, Error> {
        Ok(Self { engine: Engine::new(&thread.config), wire })
    }

    fn round(&mut self, thread: &mut Thread) -> Result<(), Error> {
        loop {
            let length = self.wire.recv(&mut thread.buffer);
            if length == 0 {
                return Ok(());
            }
            self.received(&mut thread.buffer[..length], &mut thread.scratch)?;
        }
    }
}

impl Connection {
    fn received(&mut self, input: &mut [u8], scratch: &mut Scratch) -> Result<(), Error> {
        let mut pass = self.engine.process(input, scratch);
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Text(text) => text.reply()?,
                EngineEvent::Binary(binary) => binary.reply()?,
                EngineEvent::Violation(violation) => return Err(format!("{violation:?}").into()),
                _ => {}
            }
        }
        let outcome = pass.finish();
        match outcome.in_place.clone() {
            Some(range) if range.is_empty() => {}
            Some(range) => self.wire.send(&input[range]),
            None => _ = self.wire.send_vectored(scratch.output(&outcome, input)),
        }
        match outcome.end {
            Some(end) => Err(format!("the connection has ended: {end:?}").into()),
            None => Ok(()),
        }
    }
}
