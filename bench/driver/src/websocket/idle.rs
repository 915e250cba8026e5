//! The memory of a connection that waits.

use std::marker::PhantomData;

use super::echo::EchoRounds;
use super::subject::{EngineSubject, READ_MAX};
use super::wire::Wire;
use crate::measured::{Error, Measured};
use crate::protocol::{Case, Content, Outcome};
use crate::random::Random;
use crate::{alloc, payload};

/// Connections that have echoed a message, in fragments and cut by reads, and wait.
pub(super) struct IdleEngines<S> {
    engines: usize,
    subject: PhantomData<S>,
}

impl<S: EngineSubject> IdleEngines<S> {
    pub(super) fn new(engines: usize) -> Self {
        Self { engines, subject: PhantomData }
    }
}

impl<S: EngineSubject> Measured for IdleEngines<S> {
    fn slice(&mut self, _rounds: u64) -> Result<Outcome, Error> {
        let mut thread = S::Thread::default();
        let mut input = Vec::new();
        let payload = payload::content(Content::TwoByte, 1_024);
        let message = super::frames::Message { is_text: true, payload };
        super::frames::encode(&message, 4, &mut Random::new(5), &mut input);
        let wires: Vec<Wire> = (0..=self.engines).map(|_| Wire::new(input.clone(), 300)).collect();
        let mut subjects = Vec::with_capacity(wires.len());
        let mut bytes = 0;
        for (number, wire) in wires.into_iter().enumerate() {
            let before = alloc::counts().live_bytes;
            let mut subject = S::new(wire.clone(), &mut thread)?;
            wire.rewind();
            subject.round(&mut thread)?;
            subjects.push(subject);
            // The first connection also fills the shared buffers.
            if number > 0 {
                bytes += alloc::counts().live_bytes - before;
            }
        }
        let gauges = [
            ("engine_bytes".to_owned(), S::engine_bytes() as f64),
            ("heap_bytes_per_idle_engine".to_owned(), bytes as f64 / self.engines as f64),
        ];
        drop(subjects);
        // The messages are checked in this workload, too.
        let case = Case::Echo {
            content: Content::TwoByte,
            bytes: 1_024,
            messages: 1,
            fragments: 4,
            read_bytes: READ_MAX,
        };
        EchoRounds::<S>::new(&case, true)?;
        Ok(Outcome { units: self.engines as u64, gauges: gauges.into(), ..Outcome::default() })
    }
}
