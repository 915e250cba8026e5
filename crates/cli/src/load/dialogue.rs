//! The part of a connection that both protocols share: checks each answer and selects the next
//! message.

use windlass_ws::MessageRef;

use super::{
    course::{Course, Nanos, Session},
    fault::{self, Answer, Fault},
    pool::Pool,
    tally::Tally,
};

/// State that all dialogues of a worker share.
pub(crate) struct Talk {
    pub(crate) course: Course,
    pub(crate) pool: Pool,
    pub(crate) tally: Tally,
}

/// The dialogue of one connection, at one moment.
pub(crate) struct Dialogue<'a> {
    session: &'a mut Session,
    talk: &'a mut Talk,
    now: Nanos,
}

impl<'a> Dialogue<'a> {
    pub(crate) fn new(session: &'a mut Session, talk: &'a mut Talk, now: Nanos) -> Self {
        Self { session, talk, now }
    }

    /// Checks a received message.
    ///
    /// # Errors
    ///
    /// The fault, unless the message equals the expected answer byte for byte.
    #[inline]
    pub(crate) fn message(&mut self, answer: Answer<'_>) -> Result<(), Fault> {
        let is_due = self.session.outstanding() > 0
            && answer.is_text == self.talk.pool.is_text()
            && answer.bytes
                == self.talk.pool.bytes(self.session.connection(), self.session.answered());
        if !is_due {
            return Err(fault::of_message(answer, self.session, &self.talk.pool));
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
            let (session, pool) = (&self.session, &self.talk.pool);
            let expected = match session.outstanding() {
                0 => &[],
                _ => &pool.bytes(session.connection(), session.answered())[*offset..],
            };
            let count = expected.len().min(input.len());
            if count == 0 || input[..count] != expected[..count] {
                return Err(fault::of_bytes(input, *offset, session, pool));
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

    fn answered(&mut self) {
        let latency = self.session.answer(&self.talk.course, self.now);
        self.talk.tally.answered(latency, self.now);
    }

    /// Returns a message to send now, if there is one, and counts it as sent.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<MessageRef<'_>> {
        let number = self.session.next(&self.talk.course, self.now)?;
        Some(self.talk.pool.message(self.session.connection(), number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{course::Pace, fault::Kind};

    const SIZE: usize = 16;
    const MESSAGES: u64 = 3;

    /// All messages are sent at 0, and the answers arrive at 7.
    fn ask<T>(check: impl FnOnce(&mut Dialogue<'_>, Vec<u8>) -> T) -> (T, Session, Tally) {
        let course = Course { pace: Pace::Full, window: 0..Nanos::MAX, depth: MESSAGES };
        let mut talk = Talk { course, pool: Pool::new(SIZE, None, false), tally: Tally::new() };
        let mut session = Session::new(5, MESSAGES, MESSAGES);
        let mut dialogue = Dialogue::new(&mut session, &mut talk, 0);
        let mut sent = Vec::new();
        while let Some(message) = dialogue.next() {
            sent.extend_from_slice(message.as_bytes());
        }
        let checked = check(&mut Dialogue::new(&mut session, &mut talk, 7), sent);
        (checked, session, talk.tally)
    }

    #[test]
    fn a_stream_is_right_however_it_is_cut() {
        for step in 1..=3 * SIZE {
            let (right, session, tally) = ask(|dialogue, sent| {
                let mut offset = 0;
                sent.chunks(step).try_for_each(|piece| dialogue.bytes(piece, &mut offset))
            });
            right.expect("it is what was sent");
            assert_eq!(
                (session.outstanding(), tally.messages, tally.latency.max()),
                (0, MESSAGES, 7),
                "{step}"
            );
        }
    }

    #[test]
    fn every_wrong_byte_of_a_stream_is_found_however_it_is_cut() {
        for place in 0..3 * SIZE {
            for step in [1, 2, 7, SIZE, 3 * SIZE] {
                let (found, session, tally) = ask(|dialogue, mut sent| {
                    sent[place] ^= 1;
                    let mut offset = 0;
                    sent.chunks(step).try_for_each(|piece| dialogue.bytes(piece, &mut offset))
                });
                let fault = found.expect_err("one bit is wrong");
                let (message, offset) = (place / SIZE + 1, place % SIZE);
                assert_eq!(fault.kind, Kind::WrongContent);
                assert!(
                    fault
                        .text
                        .starts_with(&format!("the answer to message {message} has a wrong byte"))
                );
                assert!(fault.text.ends_with(&format!(" at offset {offset}")), "{}", fault.text);
                assert_eq!(
                    (session.answered(), tally.messages),
                    (place as u64 / SIZE as u64, place as u64 / SIZE as u64)
                );
            }
        }
    }

    #[test]
    fn every_wrong_byte_of_a_message_is_found() {
        for place in 0..SIZE {
            let (found, _, tally) = ask(|dialogue, mut sent| {
                sent[place] ^= 0x80;
                dialogue.message(Answer { bytes: &sent[..SIZE], is_text: false })
            });
            assert_eq!(
                (found.expect_err("one bit is wrong").kind, tally.messages),
                (Kind::WrongContent, 0)
            );
        }
    }

    #[test]
    fn more_than_was_asked_for_is_found() {
        let (found, ..) = ask(|dialogue, mut sent| {
            sent.push(0);
            dialogue.bytes(&sent, &mut 0)
        });
        assert_eq!(found.expect_err("a byte more").kind, Kind::Additional);
    }
}
