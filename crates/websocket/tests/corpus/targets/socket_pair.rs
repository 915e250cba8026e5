//! A server and a client over a stream in memory make the handshake, send, receive, reply, ping,
//! split, reunite and close. Futures are dropped after any poll. Each side receives what the other
//! one has sent, in order, up to the end.

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use futures_core::Stream as _;
use windlass_websocket::{
    ClientRequest, CloseCode, Config, Message, Piece, Prepared, Reader, SendError, WebSocket,
    Writer,
};

use super::{
    input::Input,
    stream::{SharedPipe, Stream, poll_times},
};

/// More rounds than the end of any session takes.
const ROUNDS_MAX: usize = 1 << 20;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (server, client) = (input.config(), input.config());
    let Some(mut session) = Session::new(&mut input, &server, &client) else { return };
    while !input.is_empty() {
        session.step(&mut input);
    }
    session.finish();
}

/// A socket, whole or in halves.
enum Socket {
    Whole(Box<WebSocket<Stream>>),
    Halves(Reader<Stream>, Writer<Stream>),
    /// While it changes its form.
    None,
}

struct Side {
    socket: Socket,
    config: Config,
    /// What this side has sent and the other one has not received. A future that was dropped may
    /// have sent its message, or not.
    sent: VecDeque<(Message, bool)>,
    /// The message that it is receiving in pieces. A whole one would discard the rest.
    pieces: Option<Vec<u8>>,
    /// Its Close frame is queued, or the other side's has arrived.
    has_closed: bool,
    /// It has told its end.
    has_ended: bool,
}

struct Session {
    sides: [Side; 2],
    /// In each message, so that no two are the same.
    number: u32,
}

impl Session {
    /// `None` if the script of the streams is so slow that the handshake takes too long.
    fn new(input: &mut Input<'_>, server: &Config, client: &Config) -> Option<Self> {
        let pipes = [SharedPipe::default(), SharedPipe::default()];
        let mut stream = |read: usize| {
            let len = usize::from(input.byte() % 16);
            Stream::new(&pipes[read], &pipes[1 - read], input.bytes(len))
        };
        let (ours, theirs) = (stream(0), stream(1));
        let request = ClientRequest::new("example.com", "/", client.random_key());
        let mut accept = pin!(WebSocket::accept(ours, server));
        let mut connect = pin!(WebSocket::client(theirs, request, client));
        let (mut accepted, mut connected) = (None, None);
        for _ in 0..100_000 {
            accepted = accepted.or_else(|| poll_times(1, accept.as_mut()));
            connected = connected.or_else(|| poll_times(1, connect.as_mut()));
            if accepted.is_some() && connected.is_some() {
                break;
            }
        }
        let side = |socket, config: &Config| Side {
            socket: Socket::Whole(Box::new(socket)),
            config: config.clone(),
            sent: VecDeque::new(),
            pieces: None,
            has_closed: false,
            has_ended: false,
        };
        let server = side(accepted?.expect("the request is valid"), server);
        let client = side(connected?.expect("the response is valid"), client);
        Some(Self { sides: [server, client], number: 0 })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let (at, polls) = (usize::from(what & 1), 1 + usize::from(what >> 1 & 3));
        match what >> 3 {
            0..=9 => self.receive(at, polls, what >> 3),
            10..=19 => self.send(at, polls, what >> 3, input),
            20..=22 => self.flush(at, polls),
            23 | 24 => self.ping(at, polls, input),
            25 | 26 => self.split(at),
            27 | 28 => self.reunite(at),
            // Rare, because it ends the session.
            31 if input.byte() % 8 == 0 => self.close(at, input),
            _ => self.receive(at, 16, 0),
        }
    }

    /// Receives one message, or a piece of one, if there is one, and perhaps sends it back.
    fn receive(&mut self, at: usize, polls: usize, how: u8) {
        let [server, client] = &mut self.sides;
        let (side, other) = if at == 0 { (server, client) } else { (client, server) };
        if side.has_ended {
            return;
        }
        let mut replied = None;
        let mut check = |message: &Message| loop {
            let (sent, is_certain) = other.sent.pop_front().expect("it was sent");
            if *message == sent {
                return;
            }
            assert!(!is_certain, "a message of {} bytes is lost", sent.as_bytes().len());
        };
        macro_rules! lent {
            ($recv:expr) => {
                poll_times(polls, $recv).map(|received| {
                    let Some(mut received) = received.expect("the peer is good") else {
                        return false;
                    };
                    let message = received.to_message().expect("it is unchanged");
                    check(&message);
                    if how < 4 {
                        if let Some(bytes) = received.bytes_mut() {
                            bytes.reverse();
                        }
                        let changed = received.to_message().expect("it is still UTF-8");
                        if how % 2 == 0 && received.reply().is_ok() {
                            replied = Some(changed);
                        }
                    }
                    true
                })
            };
        }
        macro_rules! owned {
            ($stream:expr) => {{
                let mut context = Context::from_waker(Waker::noop());
                match Pin::new($stream).poll_next(&mut context) {
                    Poll::Pending => None,
                    Poll::Ready(None) => Some(false),
                    Poll::Ready(Some(message)) => {
                        check(&message.expect("the peer is good"));
                        Some(true)
                    }
                }
            }};
        }
        let in_pieces = how == 9 || side.pieces.is_some();
        let pieces = &mut side.pieces;
        let mut add = |piece: Option<Piece<'_>>| {
            let Some(mut piece) = piece else { return false };
            let mut message = pieces.take().unwrap_or_default();
            message.extend_from_slice(piece.as_bytes());
            piece.bytes_mut().fill(0);
            match (piece.is_last(), piece.is_text()) {
                (false, _) => *pieces = Some(message),
                (true, false) => check(&message.into()),
                (true, true) => check(&String::from_utf8(message).expect("a text").into()),
            }
            true
        };
        macro_rules! piece {
            ($socket:expr) => {
                poll_times(polls, $socket.recv_piece())
                    .map(|piece| add(piece.expect("the peer is good")))
            };
        }
        let is_open = match &mut side.socket {
            Socket::Whole(socket) if in_pieces => piece!(socket),
            Socket::Halves(reader, _) if in_pieces => piece!(reader),
            Socket::Whole(socket) if how < 6 => lent!(socket.recv()),
            Socket::Halves(reader, _) if how < 6 => lent!(reader.recv()),
            Socket::Whole(socket) => owned!(&mut **socket),
            Socket::Halves(reader, _) => owned!(reader),
            Socket::None => None,
        };
        side.has_ended = is_open == Some(false);
        if let Some(message) = replied {
            side.sent.push_back((message, true));
        }
        if side.has_ended {
            assert!(other.sent.iter().all(|(_, is_certain)| !is_certain), "messages are lost");
            other.sent.clear();
        }
    }

    /// Sends a message. The future is dropped after so many polls.
    fn send(&mut self, at: usize, polls: usize, how: u8, input: &mut Input<'_>) {
        self.number += 1;
        let mut payload = self.number.to_be_bytes().to_vec();
        payload.iter_mut().for_each(|byte| *byte &= 0x7f);
        let len = input.len();
        payload.resize(4 + len, b'a' + (self.number % 26) as u8);
        let message = match how % 2 {
            0 => Message::from(payload),
            _ => Message::from(String::from_utf8(payload).expect("it is ASCII")),
        };
        let side = &mut self.sides[at];
        macro_rules! sent {
            ($socket:expr) => {
                match how {
                    10..=12 => poll_times(polls, $socket.send(&message)),
                    13..=15 => poll_times(polls, $socket.feed(&message)),
                    16 | 17 => poll_times(polls, $socket.feed(message.clone())),
                    _ => {
                        let prepared = Prepared::new(message.clone(), &side.config);
                        poll_times(polls, $socket.send(prepared))
                    }
                }
            };
        }
        let result = match &mut side.socket {
            Socket::Whole(socket) => sent!(socket),
            Socket::Halves(_, writer) => sent!(writer),
            Socket::None => return,
        };
        match result {
            Some(Ok(())) => side.sent.push_back((message, true)),
            Some(Err(SendError::Closed)) => {}
            Some(Err(error)) => panic!("{error}"),
            // A `feed` that is dropped has queued nothing.
            None if (13..=17).contains(&how) => {}
            None => side.sent.push_back((message, false)),
        }
    }

    fn flush(&mut self, at: usize, polls: usize) {
        let result = match &mut self.sides[at].socket {
            Socket::Whole(socket) => poll_times(polls, socket.flush()),
            Socket::Halves(_, writer) => poll_times(polls, writer.flush()),
            Socket::None => None,
        };
        if let (Some(Ok(())), Socket::Whole(socket)) = (&result, &self.sides[at].socket) {
            assert_eq!(socket.buffered(), 0, "everything is flushed");
        }
        assert!(!matches!(result, Some(Err(_))), "{result:?}");
    }

    fn ping(&mut self, at: usize, polls: usize, input: &mut Input<'_>) {
        let payload = vec![7; input.len().min(125)];
        let result = match &mut self.sides[at].socket {
            Socket::Whole(socket) => poll_times(polls, socket.ping(&payload)),
            Socket::Halves(_, writer) => poll_times(polls, writer.ping(&payload)),
            Socket::None => None,
        };
        assert!(matches!(result, None | Some(Ok(()) | Err(SendError::Closed))), "{result:?}");
    }

    fn split(&mut self, at: usize) {
        let socket = &mut self.sides[at].socket;
        *socket = match std::mem::replace(socket, Socket::None) {
            Socket::Whole(socket) => {
                let (reader, writer) = socket.split();
                Socket::Halves(reader, writer)
            }
            other => other,
        };
    }

    fn reunite(&mut self, at: usize) {
        let socket = &mut self.sides[at].socket;
        *socket = match std::mem::replace(socket, Socket::None) {
            Socket::Halves(reader, writer) => {
                Socket::Whole(Box::new(reader.reunite(writer).expect("they are of one socket")))
            }
            other => other,
        };
    }

    fn close(&mut self, at: usize, input: &mut Input<'_>) {
        let code = CloseCode::new(1000 + u16::from(input.byte() % 4));
        let reason = "r".repeat(usize::from(input.byte() % 124));
        let side = &mut self.sides[at];
        match &mut side.socket {
            Socket::Whole(socket) => socket.start_close(code, &reason).expect("it is allowed"),
            Socket::Halves(_, writer) => {
                let result = poll_times(1, writer.close(code, &reason));
                assert!(!matches!(result, Some(Err(_))), "{result:?}");
            }
            Socket::None => {}
        }
        side.has_closed = true;
    }

    /// Closes, if neither side has, and receives everything.
    fn finish(mut self) {
        for at in 0..2 {
            self.reunite(at);
            if let Socket::Whole(socket) = &mut self.sides[at].socket {
                socket.get_mut().smooth();
            }
        }
        if let Socket::Whole(client) = &mut self.sides[1].socket {
            client.start_close(CloseCode::NORMAL, "the end").expect("it is allowed");
        }
        for _ in 0..ROUNDS_MAX {
            if self.sides.iter().all(|side| side.has_ended) {
                return;
            }
            self.receive(0, 1, 5);
            self.receive(1, 1, 5);
        }
        panic!("the connection does not end");
    }
}
