//! The counts of messages and bytes, compared with what was sent, for every mix of messages and
//! answers in a receive.

use std::{cell::RefCell, rc::Rc};

use windlass_server::{Connection, Message, ServerStats};
use windlass_testkit::frames::masked;

use crate::{
    fixture::{Client, Fixture, TestHandler},
    panics::panic_of,
};

/// What the handler does with a message, by the first byte of its payload.
const REPLY: u8 = b'0';
const NOTHING: u8 = b'1';
const SEND: u8 = b'2';
const SEND_AND_REPLY: u8 = b'3';
const REPLY_AND_SEND: u8 = b'4';
const PANIC: u8 = b'5';

const BINARY: u8 = 2;
const TEXT: u8 = 1;

fn act(connection: &mut Connection<'_>, message: Message<'_>) {
    let action = message.as_bytes().first().copied().unwrap_or(REPLY);
    if matches!(action, SEND | SEND_AND_REPLY) {
        connection.send(message.to_out()).unwrap();
    }
    let copy = (action == REPLY_AND_SEND).then(|| message.as_bytes().to_vec());
    if matches!(action, REPLY | SEND_AND_REPLY | REPLY_AND_SEND) {
        connection.reply_in_place(message).unwrap();
    }
    if let Some(copy) = copy {
        connection.send(copy).unwrap();
    }
    // Without the hook, which would print it.
    if action == PANIC {
        std::panic::resume_unwind(Box::new("as asked"));
    }
}

/// Length of a frame without a masking key.
fn frame_len(len: usize) -> u64 {
    (len + if len < 126 { 2 } else { 4 }) as u64
}

/// Bytes of a client, and the counts that must follow from them.
#[derive(Default)]
struct Program {
    bytes: Vec<u8>,
    expected: ServerStats,
}

impl Program {
    fn frame(&mut self, first: u8, payload: &[u8]) {
        let frame = masked(first, payload);
        self.expected.wire_received += frame.len() as u64;
        self.bytes.extend(frame);
    }

    fn sent(&mut self, is_text: bool, len: usize) {
        self.expected.messages_sent += 1;
        self.expected.text_sent += u64::from(is_text);
        self.expected.bytes_sent += len as u64;
        self.expected.wire_sent += frame_len(len);
    }

    /// A message in this many frames.
    fn message(&mut self, opcode: u8, action: u8, len: usize, frames: usize) {
        let payload = vec![action; len];
        let is_text = opcode == TEXT;
        let piece = len.div_ceil(frames).max(1);
        let mut pieces: Vec<_> = payload.chunks(piece).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        for (at, bytes) in pieces.iter().enumerate() {
            let fin = if at + 1 == pieces.len() { 0x80 } else { 0 };
            self.frame(fin | if at == 0 { opcode } else { 0 }, bytes);
        }
        self.expected.messages_received += 1;
        self.expected.text_received += u64::from(is_text);
        self.expected.bytes_received += len as u64;
        let copies = match if len == 0 { REPLY } else { action } {
            REPLY | SEND => [Some(is_text), None],
            SEND_AND_REPLY => [Some(is_text); 2],
            REPLY_AND_SEND => [Some(is_text), Some(false)],
            _ => [None; 2],
        };
        copies.into_iter().flatten().for_each(|is_text| self.sent(is_text, len));
    }

    fn ping(&mut self, len: usize) {
        self.frame(0x89, &vec![b'p'; len]);
        self.expected.pings_received += 1;
        self.expected.pongs_sent += 1;
        self.expected.wire_sent += frame_len(len);
    }
}

/// The counts that this test is about, since `before`.
fn since(now: &ServerStats, before: &ServerStats) -> ServerStats {
    let mut stats = ServerStats::default();
    macro_rules! subtract {
        ($($name:ident)*) => { $(stats.$name = now.$name - before.$name;)* };
    }
    subtract!(
        messages_received text_received bytes_received messages_sent text_sent bytes_sent
        wire_received wire_sent pings_received pongs_sent
    );
    stats
}

/// Sends the bytes in pieces of these lengths, and returns the counts when all have come.
fn run(fixture: &mut Fixture, client: &mut Client, program: &Program, piece: usize) -> ServerStats {
    let before = fixture.service.stats();
    for bytes in program.bytes.chunks(piece) {
        client.write(bytes);
        fixture.turn();
        while client.poll().is_some() {}
    }
    let expected = before.wire_received + program.bytes.len() as u64;
    fixture.until(|fixture| {
        while client.poll().is_some() {}
        let stats = fixture.service.stats();
        (stats.wire_received == expected).then_some(())
    });
    fixture.settle();
    since(&fixture.service.stats(), &before)
}

fn fixture() -> Fixture {
    // Counts that a callback reads never go back, and are at most a receive behind.
    let last = Rc::new(RefCell::new(ServerStats::default()));
    Fixture::new(TestHandler::on_message(move |connection, _, message| {
        let now = connection.hub().stats();
        // This subtracts.
        since(&now, &last.borrow());
        *last.borrow_mut() = now;
        act(connection, message);
    }))
}

#[test]
fn each_length_and_answer_is_counted_once() {
    let mut fixture = fixture();
    let mut client = fixture.connect("/");
    for len in [0, 1, 125, 126, 255, 256, 5000] {
        for action in [REPLY, NOTHING, SEND, SEND_AND_REPLY, REPLY_AND_SEND] {
            for (opcode, frames) in [(BINARY, 1), (TEXT, 1), (BINARY, 2), (TEXT, 3)] {
                let mut program = Program::default();
                program.message(opcode, action, len, frames);
                let counts = run(&mut fixture, &mut client, &program, usize::MAX);
                let what =
                    format!("{len} bytes, action {action}, opcode {opcode}, {frames} frames");
                assert_eq!(counts, program.expected, "{what}");
            }
        }
    }
}

#[test]
fn mixed_messages_of_a_receive_are_counted_once() {
    let mut fixture = fixture();
    let mut client = fixture.connect("/");
    let mut seed = 1_u64;
    let mut next = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for round in 0..200 {
        let mut program = Program::default();
        for _ in 0..=next(12) {
            let len = [0, 3, 20, 125, 126, 300, 1500][next(7) as usize];
            // Half of the rounds have little else than answers in place, as an echo does.
            let action = match round % 2 {
                0 => b'0' + next(5) as u8,
                _ => b'0' + u8::from(next(8) == 0),
            };
            match next(if round % 4 < 2 { 10 } else { 40 }) {
                0 => program.ping(len.min(125)),
                1 => program.message(TEXT, action, len, 1),
                2 => program.message(TEXT, action, len, 2),
                3 => program.message(BINARY, action, len, 3),
                _ => program.message(BINARY, action, len, 1),
            }
        }
        let piece = if round % 3 == 0 { 1 + next(700) as usize } else { usize::MAX };
        let counts = run(&mut fixture, &mut client, &program, piece);
        assert_eq!(counts, program.expected, "round {round}");
    }
}

#[test]
fn a_panic_loses_no_count() {
    for opcode in [BINARY, TEXT] {
        for len in [20, 300] {
            let mut fixture = fixture();
            let mut client = fixture.connect("/");
            let before = fixture.service.stats();
            let mut program = Program::default();
            for action in [REPLY, NOTHING, REPLY, PANIC] {
                program.message(opcode, action, len, 1);
            }
            client.write(&program.bytes);
            assert_eq!(panic_of(&mut fixture), "as asked");
            // The answers of the panicking receive were never given to the stream.
            let sent = fixture.service.stats().wire_sent - before.wire_sent;
            assert!([0, 1, 2].map(|sent| sent * frame_len(len)).contains(&sent), "{sent}");
            program.expected.wire_sent = sent;
            let counts = since(&fixture.service.stats(), &before);
            assert_eq!(counts, program.expected, "opcode {opcode}, {len} bytes");
        }
    }
}
