//! Faults of connections, and their descriptions.
//!
//! A connection has at most one fault, the first, and ends with it. The texts count from one,
//! although numbers in the code begin with 0.

use std::fmt;

use super::{
    payload::{LIKE_BY_CHANCE, PayloadPool},
    schedule::MessageSequence,
};

/// The kind of a fault, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// The connection could not be made.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The server did not answer the upgrade, or answered it incorrectly.
    Handshake,
    /// An answer differs from the message in bytes, length or type.
    WrongContent,
    /// An answer arrived before that of an earlier message.
    OutOfOrder,
    /// More was received than was asked for.
    Additional,
    /// The first answer is a message of another connection: the server does not echo.
    NotAnEcho,
    /// No answer arrived in time.
    Lost,
    /// The server closed the connection while it was in use.
    ClosedEarly,
    /// The server violated the WebSocket protocol or HTTP/1.1.
    Protocol,
    /// The connection was reset or failed in another way.
    Broken,
    /// The server did not answer the Close frame.
    NotClosed,
}

impl FaultKind {
    /// All kinds, in the order of the report.
    pub(crate) const ALL: [Self; 12] = [
        Self::Connect,
        Self::Tls,
        Self::Handshake,
        Self::WrongContent,
        Self::OutOfOrder,
        Self::Additional,
        Self::NotAnEcho,
        Self::Lost,
        Self::ClosedEarly,
        Self::Protocol,
        Self::Broken,
        Self::NotClosed,
    ];

    /// Returns its name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Handshake => "handshake",
            Self::WrongContent => "wrong_content",
            Self::OutOfOrder => "out_of_order",
            Self::Additional => "additional",
            Self::NotAnEcho => "not_an_echo",
            Self::Lost => "lost",
            Self::ClosedEarly => "closed_early",
            Self::Protocol => "protocol",
            Self::Broken => "broken",
            Self::NotClosed => "not_closed",
        }
    }
}

/// The fault of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, text: impl fmt::Display) -> Self {
        Self { kind, text: text.to_string() }
    }
}

/// Formats a number of things for people.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A description of an unexpected answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) is_text: bool,
}

/// Determines the fault of a message that is not the expected answer.
#[cold]
pub(crate) fn of_message(
    answer: Answer<'_>,
    sequence: &MessageSequence,
    pool: &PayloadPool,
) -> Fault {
    let due = sequence.answered();
    if let Some(fault) =
        misplaced(sequence, |number| answer.bytes == pool.bytes(sequence.connection(), number))
    {
        return fault;
    }
    if let Some(fault) = of_another(answer.bytes, sequence, pool) {
        return fault;
    }
    if sequence.outstanding() == 0 {
        return Fault::new(
            FaultKind::Additional,
            format_args!(
                "a message of {} came although none was due",
                counted(answer.bytes.len(), "byte")
            ),
        );
    }
    let (expected, due) = (pool.bytes(sequence.connection(), due), due + 1);
    let wrong = |text: fmt::Arguments<'_>| Fault::new(FaultKind::WrongContent, text);
    if answer.bytes.len() != expected.len() {
        let (came, size) = (answer.bytes.len(), expected.len());
        return wrong(format_args!(
            "the answer to message {due} has {} instead of {size}",
            counted(came, "byte")
        ));
    }
    match first_difference(answer.bytes, expected) {
        Some(difference) => wrong(format_args!("the answer to message {due} has {difference}")),
        None => {
            let [came, sent] = [answer.is_text, pool.is_text()]
                .map(|is_text| if is_text { "text" } else { "binary" });
            wrong(format_args!("the answer to message {due} is {came}, but {sent} was sent"))
        }
    }
}

/// Determines the fault in a byte stream: `bytes` are wrong, and the `offset` bytes before them
/// match the expected answer.
#[cold]
pub(crate) fn of_bytes(
    bytes: &[u8],
    offset: usize,
    sequence: &MessageSequence,
    pool: &PayloadPool,
) -> Fault {
    let count = bytes.len().min(pool.size() - offset);
    // A few bytes may equal those of another message by chance.
    if count >= pool.size().min(LIKE_BY_CHANCE) {
        let is_like =
            |number| bytes[..count] == pool.bytes(sequence.connection(), number)[offset..][..count];
        if let Some(fault) = misplaced(sequence, is_like) {
            return fault;
        }
    }
    if sequence.outstanding() == 0 {
        return additional(bytes.len());
    }
    let expected = &pool.bytes(sequence.connection(), sequence.answered())[offset..];
    let due = sequence.answered() + 1;
    match first_difference(bytes, expected) {
        Some(difference) => {
            let text = format!("the answer to message {due} has {}", difference.behind(offset));
            Fault::new(FaultKind::WrongContent, text)
        }
        None => Fault::new(
            FaultKind::WrongContent,
            format_args!("the answer to message {due} has other bytes"),
        ),
    }
}

/// The fault of bytes of which none was due.
#[cold]
pub(crate) fn additional(bytes: usize) -> Fault {
    let text = format!("{} came although none was due", counted(bytes, "byte"));
    Fault::new(FaultKind::Additional, text)
}

/// Returns the fault if this is the answer to another message than the expected one.
fn misplaced(sequence: &MessageSequence, is_answer_to: impl Fn(u64) -> bool) -> Option<Fault> {
    let (due, sent) = (sequence.answered(), sequence.sent());
    if let Some(ahead) = (due + 1..sent).find(|&number| is_answer_to(number)) {
        let (due, ahead) = (due + 1, ahead + 1);
        let text = format!(
            "the answer to message {ahead} came instead of that to {due}, which is lost or \
             overtaken"
        );
        return Some(Fault::new(FaultKind::OutOfOrder, text));
    }
    let before = due.saturating_sub(sequence.depth());
    let behind = (before..due).rev().find(|&number| is_answer_to(number))?;
    Some(Fault::new(
        FaultKind::Additional,
        format_args!("the answer to message {} came twice", behind + 1),
    ))
}

/// Returns the fault if this is a message of another connection. If nothing was received before,
/// the server is assumed not to echo; a correct answer proves that it does.
fn of_another(bytes: &[u8], sequence: &MessageSequence, pool: &PayloadPool) -> Option<Fault> {
    // If the content is that of the expected message, only the type can be wrong.
    let is_due = sequence.outstanding() > 0
        && bytes == pool.bytes(sequence.connection(), sequence.answered());
    if is_due || !pool.has(bytes) {
        return None;
    }
    if sequence.answered() > 0 {
        let text = format!(
            "a message of another connection came instead of the answer to message {}",
            sequence.answered() + 1
        );
        return Some(Fault::new(FaultKind::WrongContent, text));
    }
    let text = "the server does not echo: a connection received the message of another one, as in \
                a chat room. `windlass load` needs a server that sends each message back, such as \
                `windlass serve` at /echo";
    Some(Fault::new(FaultKind::NotAnEcho, text))
}

/// The first position where two pieces differ.
struct Difference {
    at: usize,
    came: u8,
    expected: u8,
}

impl Difference {
    fn behind(self, offset: usize) -> Self {
        Self { at: self.at + offset, ..self }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a wrong byte: {:#04x} instead of {:#04x} at offset {}",
            self.came, self.expected, self.at
        )
    }
}

fn first_difference(came: &[u8], expected: &[u8]) -> Option<Difference> {
    let mut pairs = came.iter().zip(expected).enumerate();
    let (at, (&came, &expected)) = pairs.find(|(_, (came, expected))| came != expected)?;
    Some(Difference { at, came, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::schedule::{LoadSchedule, Nanos, SendRate};

    const SIZE: usize = 16;

    /// A connection that has sent eight messages, of which two were answered.
    fn sequence() -> MessageSequence {
        let schedule = LoadSchedule { rate: SendRate::FullSpeed, window: 0..Nanos::MAX, depth: 6 };
        let mut sequence = MessageSequence::new(3, 6, 8);
        for now in 0..8 {
            sequence.next(&schedule, now).expect("there is room");
            if now < 2 {
                sequence.answer(&schedule, now);
            }
        }
        sequence
    }

    fn pool() -> PayloadPool {
        PayloadPool::new(SIZE, None, false)
    }

    fn message(bytes: &[u8], is_text: bool) -> (FaultKind, String) {
        let fault = of_message(Answer { bytes, is_text }, &sequence(), &pool());
        (fault.kind, fault.text)
    }

    fn stream(bytes: &[u8], offset: usize) -> (FaultKind, String) {
        let fault = of_bytes(bytes, offset, &sequence(), &pool());
        (fault.kind, fault.text)
    }

    #[test]
    fn a_wrong_byte_is_named() {
        let pool = pool();
        let mut bytes = pool.bytes(3, 2).to_vec();
        bytes[5] ^= 0xff;
        let text = format!(
            "the answer to message 3 has a wrong byte: {:#04x} instead of {:#04x} at offset 5",
            bytes[5], !bytes[5]
        );
        assert_eq!(message(&bytes, false), (FaultKind::WrongContent, text.clone()));
        assert_eq!(stream(&bytes, 0), (FaultKind::WrongContent, text.clone()));
        assert_eq!(
            stream(&bytes[2..], 2),
            (FaultKind::WrongContent, text),
            "however the stream was cut"
        );
    }

    #[test]
    fn another_message_than_the_one_that_is_due_is_recognised() {
        let pool = pool();
        let text = "the answer to message 5 came instead of that to 3, which is lost or overtaken"
            .to_owned();
        assert_eq!(message(pool.bytes(3, 4), false), (FaultKind::OutOfOrder, text.clone()));
        assert_eq!(stream(pool.bytes(3, 4), 0), (FaultKind::OutOfOrder, text.clone()));
        assert_eq!(
            stream(&pool.bytes(3, 4)[..9], 0),
            (FaultKind::OutOfOrder, text),
            "a part is enough"
        );
        let text = "the answer to message 2 came twice".to_owned();
        assert_eq!(message(pool.bytes(3, 1), false), (FaultKind::Additional, text.clone()));
        assert_eq!(stream(pool.bytes(3, 1), 0), (FaultKind::Additional, text));
    }

    #[test]
    fn a_message_of_another_connection_is_wrong() {
        let text =
            "a message of another connection came instead of the answer to message 3".to_owned();
        assert_eq!(message(pool().bytes(2, 2), false), (FaultKind::WrongContent, text));
    }

    #[test]
    fn if_the_first_message_is_another_connections_the_server_does_not_echo() {
        let schedule = LoadSchedule { rate: SendRate::FullSpeed, window: 0..Nanos::MAX, depth: 1 };
        let (mut sequence, pool) = (MessageSequence::new(3, 1, 8), pool());
        let kind_of = |sequence: &MessageSequence, pool: &PayloadPool, bytes: &[u8]| {
            of_message(Answer { bytes, is_text: false }, sequence, pool).kind
        };
        assert_eq!(
            kind_of(&sequence, &pool, pool.bytes(2, 0)),
            FaultKind::NotAnEcho,
            "nothing was sent yet"
        );
        sequence.next(&schedule, 0).expect("there is room");
        assert_eq!(kind_of(&sequence, &pool, pool.bytes(2, 5)), FaultKind::NotAnEcho);
        assert_eq!(kind_of(&sequence, &pool, b"something else!!"), FaultKind::WrongContent);
        // A few bytes may equal those of another message by chance.
        let small = PayloadPool::new(2, None, false);
        assert_eq!(kind_of(&sequence, &small, small.bytes(2, 0)), FaultKind::WrongContent);
    }

    #[test]
    fn length_and_type_count() {
        let pool = pool();
        let (kind, text) = message(&pool.bytes(3, 2)[..SIZE - 1], false);
        assert_eq!(
            (kind, &*text),
            (FaultKind::WrongContent, "the answer to message 3 has 15 bytes instead of 16")
        );
        let (kind, text) = message(pool.bytes(3, 2), true);
        assert_eq!(
            (kind, &*text),
            (FaultKind::WrongContent, "the answer to message 3 is text, but binary was sent")
        );
    }

    #[test]
    fn an_unexpected_answer_is_additional() {
        let quiet = MessageSequence::new(3, 1, 1);
        let fault = of_message(Answer { bytes: b"hello", is_text: true }, &quiet, &pool());
        assert_eq!(
            (fault.kind, &*fault.text),
            (FaultKind::Additional, "a message of 5 bytes came although none was due")
        );
        let fault = of_bytes(b"hello", 0, &quiet, &pool());
        assert_eq!(
            (fault.kind, &*fault.text),
            (FaultKind::Additional, "5 bytes came although none was due")
        );
    }

    #[test]
    fn every_kind_has_a_name_and_a_place_of_its_own() {
        for (index, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let names: std::collections::HashSet<_> = FaultKind::ALL.map(FaultKind::name).into();
        assert_eq!(names.len(), FaultKind::ALL.len());
    }
}
