//! Handlers of both ends of connections that check what they receive: no byte is lost, reordered or
//! invented, and only a complete stream has a clean end.

use std::{cell::Cell, rc::Rc};

use windlass::{
    Key, Turn,
    stream::{DisconnectReason, Input, Stream, StreamHandler, StreamWriteError},
};

use crate::pattern;

/// The bytes of a direction of a connection, from a place on.
pub fn bytes_of((connection, direction): (u8, u8), place: usize, count: usize) -> Vec<u8> {
    let direction = usize::from(connection) * 2 + usize::from(direction);
    pattern::bytes(direction * 5_003 + place, count)
}

/// Checks bytes that were received at a place: none is lost, reordered or invented.
pub fn check(of: (u8, u8), place: usize, found: &[u8]) {
    let expected = bytes_of(of, place, found.len());
    if found != expected {
        let at = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        panic!("{of:?}: wrong bytes at {}", place + at.unwrap_or_default());
    }
}

/// One direction of a connection, as its sender or its receiver sees it.
#[derive(Default)]
pub struct Flow {
    len: usize,
    done: usize,
}

impl Flow {
    /// Sends until everything is sent or the stream is full. True if everything is sent.
    fn pump(&mut self, stream: &mut Stream<'_>, of: (u8, u8)) -> bool {
        while self.done < self.len {
            let end = self.len.min(self.done + 1 + self.done % 7_000);
            let bytes = bytes_of(of, self.done, end - self.done);
            match stream.send(&bytes) {
                Ok(()) => self.done = end,
                Err(StreamWriteError::Full | StreamWriteError::Closed) => return false,
                Err(other) => panic!("{other:?}"),
            }
            if stream.is_full() {
                return false;
            }
        }
        true
    }

    /// Checks received bytes: none lost, reordered or invented.
    fn check(&mut self, input: &[u8], of: (u8, u8)) {
        assert!(input.len() <= self.len - self.done, "{of:?}: more than was sent");
        check(of, self.done, input);
        self.done += input.len();
    }
}

/// What the handlers of a run count.
#[derive(Default)]
pub struct Counts {
    pub opened: Cell<usize>,
    pub closed: Cell<usize>,
    pub clean: Cell<usize>,
    pub clients_closed: Cell<usize>,
}

/// Both ends: the client knows its number, the server reads it from the first byte.
pub struct End {
    number: Option<u8>,
    is_client: bool,
    lens: Rc<Vec<(usize, usize)>>,
    sent: Flow,
    received: Flow,
    counts: Rc<Counts>,
    is_open: bool,
    has_finished: bool,
}

impl End {
    pub fn new(number: Option<u8>, lens: &Rc<Vec<(usize, usize)>>, counts: &Rc<Counts>) -> Self {
        let mut end = Self {
            number,
            is_client: number.is_some(),
            lens: Rc::clone(lens),
            sent: Flow::default(),
            received: Flow::default(),
            counts: Rc::clone(counts),
            is_open: false,
            has_finished: false,
        };
        end.learn();
        end
    }

    fn learn(&mut self) {
        let Some(number) = self.number else { return };
        let (to_server, to_client) = self.lens[usize::from(number)];
        (self.sent.len, self.received.len) =
            if self.is_client { (to_server, to_client) } else { (to_client, to_server) };
    }

    fn pump(&mut self, stream: &mut Stream<'_>) {
        let Some(number) = self.number else { return };
        let direction = u8::from(!self.is_client);
        if self.sent.pump(stream, (number, direction)) && !self.has_finished {
            self.has_finished = true;
            stream.finish();
        }
    }
}

impl StreamHandler for End {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        assert!(!std::mem::replace(&mut self.is_open, true), "opened twice");
        self.counts.opened.set(self.counts.opened.get() + 1);
        if let (true, Some(number)) = (self.is_client, self.number) {
            let _ = stream.send(&[number]);
        }
        self.pump(stream);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        assert!(self.is_open, "data of a stream that is not open");
        let mut bytes = &input[..];
        if self.number.is_none() {
            self.number = Some(bytes[0]);
            bytes = &bytes[1..];
            self.learn();
        }
        let number = self.number.unwrap();
        self.received.check(bytes, (number, u8::from(self.is_client)));
        self.pump(stream);
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        self.pump(stream);
    }

    fn on_end(&mut self, _: &mut Stream<'_>) {
        let Flow { len, done } = self.received;
        // A FIN follows complete output only.
        assert!(self.number.is_some() && len == done, "{done} of {len} bytes before a clean end");
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        let counts = &self.counts;
        if std::mem::replace(&mut self.is_open, false) {
            counts.closed.set(counts.closed.get() + 1);
        }
        if reason == DisconnectReason::Closed {
            let is_whole =
                self.sent.done == self.sent.len && self.received.done == self.received.len;
            assert!(is_whole, "a clean end of a part");
            counts.clean.set(counts.clean.get() + 1);
        }
        if self.is_client {
            counts.clients_closed.set(counts.clients_closed.get() + 1);
        }
    }
}
