//! Messages that are echoed.

use std::time::Instant;

use super::frames::{Message, decode, encode};
use super::subject::EngineSubject;
use super::wire::Wire;
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Content, Outcome};
use crate::random::Random;
use crate::{alloc, payload};

pub(super) struct EchoRounds<S: EngineSubject> {
    thread: S::Thread,
    subject: S,
    wire: Wire,
    messages: Vec<Message>,
    /// The number of bytes that the subject sent in the checked round. All rounds are alike.
    bytes_per_round: u64,
    /// False for a subject that copies frames without parsing them.
    echoes: bool,
}

impl<S: EngineSubject> EchoRounds<S> {
    pub(super) fn new(case: &Case, echoes: bool) -> Result<Self, Error> {
        let Case::Echo { content, bytes, messages, fragments, read_bytes } = *case else {
            return Err("not an echo".into());
        };
        let payload = payload::content(content, bytes);
        let message = Message { is_text: content != Content::Binary, payload };
        let messages = vec![message; messages];
        let (mut input, mut random) = (Vec::new(), Random::new(5));
        for message in &messages {
            encode(message, fragments, &mut random, &mut input);
        }
        let wire = Wire::new(input, read_bytes);
        let mut thread = S::Thread::default();
        let subject = S::new(wire.clone(), &mut thread)?;
        let mut echo = Self { thread, subject, wire, messages, bytes_per_round: 0, echoes };
        echo.check()?;
        Ok(echo)
    }

    /// Runs one round with recorded answers, and compares them with the messages.
    fn check(&mut self) -> Result<(), Error> {
        self.wire.take_sent();
        self.wire.record();
        self.wire.rewind();
        self.subject.round(&mut self.thread)?;
        let answers = self.wire.recorded();
        self.bytes_per_round = self.wire.take_sent().bytes;
        if !self.wire.is_read() {
            return Err("not everything was read".into());
        }
        if self.echoes && decode(&answers)? != self.messages {
            return Err("what came back is not what was sent".into());
        }
        Ok(())
    }
}

impl<S: EngineSubject> Measured for EchoRounds<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        self.wire.take_sent();
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = run(&mut self.subject, &mut self.thread, &self.wire, rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        let sent = self.wire.take_sent();
        if sent.bytes != rounds * self.bytes_per_round {
            return Err(format!(
                "{} bytes were sent, not {}",
                sent.bytes,
                rounds * self.bytes_per_round
            )
            .into());
        }
        self.check()?;
        let units = rounds * self.messages.len() as u64;
        let gauges = [("sends_per_message".to_owned(), sent.sends as f64 / units as f64)].into();
        Ok(Outcome { ns, units, turns: rounds, allocations, gauges })
    }
}

/// The measured loop.
#[inline(never)]
fn run<S: EngineSubject>(
    subject: &mut S,
    thread: &mut S::Thread,
    wire: &Wire,
    rounds: u64,
) -> Result<(), Error> {
    for _ in 0..rounds {
        wire.rewind();
        subject.round(thread)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::subject::Copying;
    use super::*;

    const CASE: Case = Case::Echo {
        content: Content::Ascii,
        bytes: 20,
        messages: 2,
        fragments: 1,
        read_bytes: 65_536,
    };

    #[test]
    fn what_does_not_echo_fails_the_check() {
        assert!(EchoRounds::<Copying>::new(&CASE, true).is_err());
    }

    #[test]
    fn the_copy_is_one_send_a_read() {
        // The allocations are those of the process.
        if !windlass_testkit::own_process::is_own_process(
            "websocket::echo::tests::the_copy_is_one_send_a_read",
        ) {
            return;
        }
        let mut echo = EchoRounds::<Copying>::new(&CASE, false).unwrap();
        let outcome = echo.slice(3).unwrap();
        assert_eq!((outcome.units, outcome.turns, outcome.allocations), (6, 3, 0));
        assert_eq!(outcome.gauges["sends_per_message"], 0.5);
    }
}
