//! A client and a server in memory send, answer, ping and close. The bytes between them arrive in
//! pieces of any length. Each side receives what the other sent, in order, up to the end.

use std::{collections::VecDeque, sync::Arc};

use windlass_ws::{CloseCode, Config, End, Engine, FrameSendError, MessageRef, Scratch};

use super::{
    deflate,
    endpoint::{Endpoint, OTHER, Reaction, Seen, entropy},
    input::{Cuts, Input},
};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut session = Session::new(&mut input);
    while !input.is_empty() {
        session.step(&mut input);
    }
    session.finish();
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes in flight.
    bytes: VecDeque<u8>,
    /// Messages that were sent but not received.
    messages: VecDeque<Seen>,
    /// Pings that were sent but not received.
    pings: VecDeque<Vec<u8>>,
    /// Pings that were received but whose pongs were not.
    pongs: VecDeque<Vec<u8>>,
    /// The contents of the sender's Close frame.
    close: Option<(u16, String)>,
}

/// Side 0 is the client, side 1 the server. Direction N carries the bytes of side N.
struct Session {
    sides: [Endpoint; 2],
    directions: [Direction; 2],
    /// How many events of each side have been checked.
    checked: [usize; 2],
    scratches: [Scratch; 2],
    /// The scratch of the thread, which both ends share.
    is_shared: bool,
    reactions: Vec<u8>,
    reacted: usize,
    cuts: Cuts,
}

impl Session {
    fn new(input: &mut Input<'_>) -> Self {
        let flags = input.byte();
        let configs = [Arc::new(Config::client(entropy)), Arc::new(Config::server())];
        let engines = if flags & 1 == 0 {
            configs.map(|config| Engine::new(&config))
        } else {
            let (agreement, wishes) = deflate::agreement(input);
            configs.map(|config| Engine::with_deflate(&config, &agreement, &wishes))
        };
        let reactions: Vec<u8> = (0..3).map(|_| input.byte()).collect();
        let [client, server] = engines;
        Self {
            // The client sends no replies, because two echoes would never end.
            sides: [Endpoint::new(client, &[0]), Endpoint::new(server, &reactions)],
            directions: Default::default(),
            checked: [0; 2],
            scratches: [Scratch::new(), Scratch::new()],
            is_shared: flags & 2 != 0,
            reactions,
            reacted: 0,
            cuts: Cuts::new(input),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let side = usize::from(what & 1);
        match what >> 1 & 7 {
            0..=2 => self.deliver(side, input.number()),
            3 => self.send(side, &Seen::Text(input.text())),
            4 | 5 => self.send(side, &Seen::Binary(input.payload())),
            6 => self.ping(side, &input.payload()),
            // Rare, because it ends the session.
            _ if what >> 4 == 15 => {
                self.close(side, 1000 + u16::from(input.byte() % 4), &input.text())
            }
            _ => self.deliver(side, usize::MAX),
        }
    }

    fn scratch(&mut self, side: usize) -> (&mut Endpoint, &mut Scratch) {
        let scratch = if self.is_shared { 0 } else { side };
        (&mut self.sides[side], &mut self.scratches[scratch])
    }

    fn send(&mut self, side: usize, message: &Seen) {
        let (endpoint, scratch) = self.scratch(side);
        let sent = match message {
            Seen::Text(text) => endpoint.engine.send(MessageRef::Text(text), scratch),
            Seen::Binary(bytes) => endpoint.engine.send(MessageRef::Binary(bytes), scratch),
            other => panic!("no message: {other:?}"),
        };
        if let Some(bytes) = accepted(sent) {
            self.directions[side].bytes.extend(bytes);
            self.directions[side].messages.push_back(message.clone());
        }
    }

    fn ping(&mut self, side: usize, payload: &[u8]) {
        let (endpoint, scratch) = self.scratch(side);
        let sent = endpoint.engine.ping(payload, scratch);
        if payload.len() > 125 {
            assert!(sent.is_err(), "a ping of {} bytes", payload.len());
        } else if let Some(bytes) = accepted(sent) {
            self.directions[side].bytes.extend(bytes);
            self.directions[side].pings.push_back(payload.to_vec());
        }
    }

    fn close(&mut self, side: usize, code: u16, reason: &str) {
        let mut reason = reason.to_owned();
        while reason.len() > 123 {
            reason.pop();
        }
        let (endpoint, scratch) = self.scratch(side);
        if let Some(bytes) = accepted(endpoint.engine.close(CloseCode::new(code), &reason, scratch))
        {
            self.directions[side].bytes.extend(bytes);
            self.directions[side].close = Some((code, reason));
        }
    }

    /// Delivers bytes from `side` to the other one, and puts its answers in flight.
    fn deliver(&mut self, side: usize, count: usize) {
        let count = count.min(self.directions[side].bytes.len());
        let bytes: Vec<u8> = self.directions[side].bytes.drain(..count).collect();
        let mut cuts = self.cuts.clone();
        let other = 1 - side;
        let (endpoint, scratch) = self.scratch(other);
        endpoint.feed(&bytes, &mut cuts, scratch);
        let sent = std::mem::take(&mut endpoint.sent);
        self.directions[other].bytes.extend(sent);
        self.check(other);
    }

    /// Compares the new events of `side` with what the other side has sent.
    fn check(&mut self, side: usize) {
        let other = 1 - side;
        for index in self.checked[side]..self.sides[side].seen.len() {
            let seen = self.sides[side].seen[index].clone();
            match &seen {
                Seen::Text(_) | Seen::Binary(_) => {
                    let sent = self.directions[other].messages.pop_front();
                    assert_eq!(Some(&seen), sent.as_ref(), "side {side}");
                    if side == 1 {
                        self.expect_reaction(&seen);
                    }
                }
                Seen::Ping(payload) => {
                    let direction = &mut self.directions[other];
                    assert_eq!(Some(payload), direction.pings.pop_front().as_ref(), "side {side}");
                    direction.pongs.push_back(payload.clone());
                }
                // After its own Close frame, a side answers no ping.
                Seen::Pong(payload) => {
                    assert_eq!(
                        Some(payload),
                        self.directions[side].pongs.pop_front().as_ref(),
                        "side {side}"
                    );
                }
                Seen::Close(code, reason) => self.check_close(side, *code, reason),
                Seen::Violation(violation) => panic!("side {side} complains of {violation:?}"),
            }
        }
        self.checked[side] = self.sides[side].seen.len();
    }

    /// The server's handler reacts to each message, unless it has closed.
    fn expect_reaction(&mut self, seen: &Seen) {
        let reaction = Reaction::new(self.reactions[self.reacted % self.reactions.len()]);
        self.reacted += 1;
        let direction = &mut self.directions[1];
        if direction.close.is_some() {
            return;
        }
        match reaction {
            Reaction::Ignore => {}
            Reaction::Reply => direction.messages.push_back(seen.clone()),
            Reaction::Other => direction.messages.push_back(Seen::Text(OTHER.to_owned())),
            Reaction::Both => {
                direction.messages.push_back(Seen::Text(OTHER.to_owned()));
                direction.messages.push_back(seen.clone());
            }
            Reaction::Ping => direction.pings.push_back(b"are you there".to_vec()),
            Reaction::Close => direction.close = Some((1000, "enough".to_owned())),
        }
    }

    /// The Close frame is the one that was sent, or the echo of this side's own.
    fn check_close(&mut self, side: usize, code: Option<u16>, reason: &str) {
        let other = 1 - side;
        assert!(
            self.directions[other].messages.is_empty(),
            "messages that were sent before the Close frame are lost"
        );
        match (&self.directions[other].close, &self.directions[side].close) {
            (Some((sent, because)), _) => {
                assert_eq!((code, reason), (Some(*sent), because.as_str()), "side {side}")
            }
            (None, Some((own, _))) => {
                assert_eq!(code, Some(*own), "side {side}: the answer has the same code")
            }
            (None, None) => panic!("side {side} sees a Close frame that was not sent"),
        }
        let answers = self.directions[side].close.is_none();
        if answers {
            self.directions[side].close = code.map(|code| (code, reason.to_owned()));
        }
        assert_eq!(self.sides[side].end, Some(End::Closed), "both Close frames are out");
    }

    /// Delivers everything, closes if neither side has, and checks that nothing remains.
    fn finish(mut self) {
        self.settle();
        self.close(0, 1000, "that is all");
        self.settle();
        for side in 0..2 {
            assert_eq!(self.sides[side].end, Some(End::Closed), "side {side}");
            assert!(self.directions[side].messages.is_empty(), "side {side} was not heard");
            assert_eq!(self.sides[side].engine.buffered(), 0, "side {side} holds memory");
        }
    }

    fn settle(&mut self) {
        while self.directions.iter().any(|direction| !direction.bytes.is_empty()) {
            self.deliver(0, usize::MAX);
            self.deliver(1, usize::MAX);
        }
    }
}

/// The bytes to send, unless the connection is closing.
fn accepted(sent: Result<&[u8], FrameSendError>) -> Option<Vec<u8>> {
    match sent {
        Ok(bytes) => Some(bytes.to_vec()),
        Err(FrameSendError::Closed) => None,
        Err(error) => panic!("{error}"),
    }
}
