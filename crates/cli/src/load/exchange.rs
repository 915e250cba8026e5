//! The part of a connection that both protocols share: checks each answer and selects the next
//! message.

use windlass_ws::MessageRef;

use super::{
    fan_out::{MarkedMessage, Role},
    fault::{self, Answer, Fault},
    payload::PayloadPool,
    plan::LoadArgs,
    results::LoadResults,
    schedule::{LoadSchedule, MessageSequence, Nanos},
};

/// State that all exchanges of a worker share.
pub(crate) struct ExchangeState {
    pub(crate) schedule: LoadSchedule,
    pub(crate) pool: PayloadPool,
    pub(crate) results: LoadResults,
    /// The message that is published, with its mark.
    marked: MarkedMessage,
}

impl ExchangeState {
    /// The state before the start.
    pub(crate) fn new(args: &LoadArgs) -> Self {
        Self::with(LoadSchedule::WAITING, PayloadPool::of(args))
    }

    pub(crate) fn with(schedule: LoadSchedule, pool: PayloadPool) -> Self {
        Self { schedule, pool, results: LoadResults::new(), marked: MarkedMessage::default() }
    }

    /// Ends the measured time.
    pub(crate) fn end(&mut self, now: Nanos) {
        let window = &mut self.schedule.window;
        window.end = window.end.min(now);
        window.start = window.start.min(window.end);
        self.results.ended = window.end;
    }
}

/// The exchange of messages and answers on one connection, at one moment.
pub(crate) struct Exchange<'a> {
    sequence: &'a mut MessageSequence,
    role: &'a mut Role,
    state: &'a mut ExchangeState,
    now: Nanos,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        sequence: &'a mut MessageSequence,
        role: &'a mut Role,
        state: &'a mut ExchangeState,
        now: Nanos,
    ) -> Self {
        Self { sequence, role, state, now }
    }

    /// Checks a received message.
    ///
    /// # Errors
    ///
    /// The fault, unless the message equals the expected answer byte for byte, or was published.
    #[inline]
    pub(crate) fn message(&mut self, answer: Answer<'_>) -> Result<(), Fault> {
        match self.role {
            Role::Echo => {}
            // Some servers send a message to its publisher too.
            Role::Publisher(_) => return Ok(()),
            Role::Receiver(receiver) => {
                let ExchangeState { pool, results, .. } = &mut *self.state;
                return receiver.take(answer, pool, results, self.now);
            }
        }
        let is_due = self.sequence.outstanding() > 0
            && answer.is_text == self.state.pool.is_text()
            && answer.bytes
                == self.state.pool.bytes(self.sequence.connection(), self.sequence.answered());
        if !is_due {
            return Err(fault::of_message(answer, self.sequence, &self.state.pool));
        }
        self.answered();
        Ok(())
    }

    /// Checks a received piece of a byte stream. `offset` is the number of bytes of the expected
    /// answer received before it, and is updated.
    ///
    /// # Errors
    ///
    /// The fault, unless the piece continues the expected answers.
    pub(crate) fn bytes(&mut self, mut input: &[u8], offset: &mut usize) -> Result<(), Fault> {
        while !input.is_empty() {
            let (sequence, pool) = (&self.sequence, &self.state.pool);
            let expected = match sequence.outstanding() {
                0 => &[],
                _ => &pool.bytes(sequence.connection(), sequence.answered())[*offset..],
            };
            let count = expected.len().min(input.len());
            if count == 0 || input[..count] != expected[..count] {
                return Err(fault::of_bytes(input, *offset, sequence, pool));
            }
            input = &input[count..];
            *offset += count;
            if *offset == pool.size() {
                *offset = 0;
                self.answered();
            }
        }
        Ok(())
    }

    /// Checks that an answer is due when this number of bytes arrives.
    ///
    /// # Errors
    ///
    /// The fault, if none is.
    #[inline]
    pub(crate) fn expect_answer(&self, bytes: usize) -> Result<(), Fault> {
        match self.sequence.outstanding() {
            0 => Err(fault::additional(bytes)),
            _ => Ok(()),
        }
    }

    /// Returns the number of the answer that is due, counted from one.
    pub(crate) fn due(&self) -> u64 {
        self.sequence.answered() + 1
    }

    /// Notes an HTTP response. Only a status 2xx is a correct answer.
    #[inline]
    pub(crate) fn response(&mut self, status: u16, body_bytes: u64) {
        if (200..300).contains(&status) {
            self.answered();
            self.state.results.body_bytes += body_bytes;
            return;
        }
        let latency = self.sequence.answer(&self.state.schedule, self.now);
        self.state.results.other_status(status, latency.is_some(), self.now);
    }

    /// Counts a request as sent if one is to be sent now. Returns whether there is one.
    #[inline]
    pub(crate) fn next_is_due(&mut self) -> bool {
        self.sequence.next(&self.state.schedule, self.now).is_some()
    }

    #[inline]
    fn answered(&mut self) {
        let latency = self.sequence.answer(&self.state.schedule, self.now);
        self.state.results.answered(latency, self.now);
    }

    /// Returns a message to send now, if there is one, and counts it as sent.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<MessageRef<'_>> {
        let ExchangeState { schedule, pool, results, marked } = &mut *self.state;
        let number = self.sequence.next(schedule, self.now)?;
        let connection = self.sequence.connection();
        let message = pool.message(connection, number);
        let Role::Publisher(fan_out) = &*self.role else { return Some(message) };
        // Its receivers answer for it.
        let is_measured = self.sequence.answer(schedule, self.now).is_some();
        results.published += u64::from(is_measured);
        Some(fan_out.mark(connection, number, message, marked))
    }

    /// Returns whether all messages that are due have room, as answers give it.
    pub(crate) fn is_echo(&self) -> bool {
        matches!(self.role, Role::Echo)
    }

    /// Returns whether another message may be sent beside so much buffered output.
    pub(crate) fn has_room(&self, buffered: impl FnOnce() -> usize) -> bool {
        self.role.has_room(buffered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{fault::FaultKind, schedule::SendRate};

    const SIZE: usize = 16;
    const MESSAGES: u64 = 3;

    /// All messages are sent at 0, and the answers arrive at 7.
    fn ask<T>(
        check: impl FnOnce(&mut Exchange<'_>, Vec<u8>) -> T,
    ) -> (T, MessageSequence, LoadResults) {
        let schedule =
            LoadSchedule { rate: SendRate::FullSpeed, window: 0..Nanos::MAX, depth: MESSAGES };
        let mut state = ExchangeState::with(schedule, PayloadPool::new(SIZE, None, false));
        let mut role = Role::Echo;
        let mut sequence = MessageSequence::new(5, MESSAGES, MESSAGES);
        let mut exchange = Exchange::new(&mut sequence, &mut role, &mut state, 0);
        let mut sent = Vec::new();
        while let Some(message) = exchange.next() {
            sent.extend_from_slice(message.as_bytes());
        }
        let checked = check(&mut Exchange::new(&mut sequence, &mut role, &mut state, 7), sent);
        (checked, sequence, state.results)
    }

    #[test]
    fn a_stream_is_right_however_it_is_cut() {
        for step in 1..=3 * SIZE {
            let (right, sequence, results) = ask(|exchange, sent| {
                let mut offset = 0;
                sent.chunks(step).try_for_each(|piece| exchange.bytes(piece, &mut offset))
            });
            right.expect("it is what was sent");
            assert_eq!(
                (sequence.outstanding(), results.messages, results.latency.max()),
                (0, MESSAGES, 7),
                "{step}"
            );
        }
    }

    #[test]
    fn every_wrong_byte_of_a_stream_is_found_however_it_is_cut() {
        for index in 0..3 * SIZE {
            for step in [1, 2, 7, SIZE, 3 * SIZE] {
                let (found, sequence, results) = ask(|exchange, mut sent| {
                    sent[index] ^= 1;
                    let mut offset = 0;
                    sent.chunks(step).try_for_each(|piece| exchange.bytes(piece, &mut offset))
                });
                let fault = found.expect_err("one bit is wrong");
                let (message, offset) = (index / SIZE + 1, index % SIZE);
                assert_eq!(fault.kind, FaultKind::WrongContent);
                assert!(
                    fault
                        .text
                        .starts_with(&format!("the answer to message {message} has a wrong byte"))
                );
                assert!(fault.text.ends_with(&format!(" at offset {offset}")), "{}", fault.text);
                assert_eq!(
                    (sequence.answered(), results.messages),
                    (index as u64 / SIZE as u64, index as u64 / SIZE as u64)
                );
            }
        }
    }

    #[test]
    fn every_wrong_byte_of_a_message_is_found() {
        for index in 0..SIZE {
            let (found, _, results) = ask(|exchange, mut sent| {
                sent[index] ^= 0x80;
                exchange.message(Answer { bytes: &sent[..SIZE], is_text: false })
            });
            assert_eq!(
                (found.expect_err("one bit is wrong").kind, results.messages),
                (FaultKind::WrongContent, 0)
            );
        }
    }

    #[test]
    fn more_than_was_asked_for_is_found() {
        let (found, ..) = ask(|exchange, mut sent| {
            sent.push(0);
            exchange.bytes(&sent, &mut 0)
        });
        assert_eq!(found.expect_err("a byte more").kind, FaultKind::Additional);
    }
}
