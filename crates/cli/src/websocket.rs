//! `--mode echo`: a WebSocket on every path, whose messages come back.

use std::{cell::RefCell, io::IoSlice, rc::Rc, sync::Arc, time::Duration};

use windlass::{
    Key, Turn,
    stream::{CloseReason, Input, SendError, Stream, StreamHandler, Timeout},
};
use windlass_ws::{
    CloseCode, Config, Engine, Event, Outcome, Scratch,
    deflate::DeflateConfig,
    handshake::{Accept, HeadLimits, HeadReader, Rejection, Request},
};

use crate::counts::{Counts, add};

/// What the connections of one worker share.
pub(crate) struct Shared {
    pub(crate) counts: Arc<Counts>,
    pub(crate) config: Arc<Config>,
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) scratch: RefCell<Scratch>,
}

/// One connection.
pub(crate) struct WebSocket {
    shared: Rc<Shared>,
    state: State,
}

enum State {
    /// The request, as far as it has come, and the timer that ends the wait for the rest.
    Opening(Box<Opening>),
    Open(Engine),
    /// Nothing that comes matters any more.
    Ended,
}

struct Opening {
    head: HeadReader,
    timer: Option<Key>,
}

impl WebSocket {
    pub(crate) fn new(shared: &Rc<Shared>) -> Self {
        let opening = Opening { head: HeadReader::new(HeadLimits::DEFAULT), timer: None };
        Self { shared: Rc::clone(shared), state: State::Opening(Box::new(opening)) }
    }

    /// Bytes of the request. What follows it belongs to the first frames: a client need not wait for the answer.
    fn open(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let State::Opening(opening) = &mut self.state else { return };
        let mut answer = Vec::with_capacity(256);
        let (opened, used) = match opening.head.request(&input) {
            Ok(None) => return,
            Ok(Some((request, used))) => (accept(&self.shared, &request, &mut answer), used),
            Err(rejection) => (Err(rejection), 0),
        };
        if let Some(timer) = opening.timer.take() {
            // If it has fired, the stream is closing.
            let _ = stream.turn().cancel(timer);
        }
        match opened {
            Ok(engine) => {
                self.state = State::Open(engine);
                // There is room: nothing was sent before.
                let _ = stream.send(&answer);
                self.echo(stream, &mut input[used..]);
            }
            Err(rejection) => {
                add(&self.shared.counts.refused, 1);
                self.state = State::Ended;
                answer.clear();
                rejection.write(&mut answer);
                let _ = stream.send(&answer);
                stream.close();
            }
        }
    }

    /// Sends the messages in these bytes back, gathered with what was sent before.
    fn echo(&mut self, stream: &mut Stream<'_>, frames: &mut [u8]) {
        let Self { shared, state } = self;
        let State::Open(engine) = state else { return };
        let scratch = &mut *shared.scratch.borrow_mut();
        let outcome = process(engine, scratch, frames, &shared.counts);
        let sent = gather(scratch, &outcome, frames, stream);
        settle(state, stream, &outcome, sent);
    }
}

/// Does what a pass has left to be done, after its output was sent.
fn settle(state: &mut State, stream: &mut Stream<'_>, outcome: &Outcome, sent: Result<(), SendError>) {
    if sent.is_err() {
        // Reading stops at the high mark, so only one message's echo can be too much. It must not be lost in silence.
        *state = State::Ended;
        stream.abort();
    } else if outcome.end.is_some() {
        *state = State::Ended;
        stream.close();
    }
}

impl StreamHandler for WebSocket {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.shared.counts.opened();
        let State::Opening(opening) = &mut self.state else { return };
        let key = stream.key();
        let too_late = move |mut turn: Turn<'_, _>| {
            if let Ok(mut stream) = turn.stream(key) {
                let mut answer = Vec::new();
                Rejection::Timeout.write(&mut answer);
                let _ = stream.send(&answer);
                stream.close();
            }
        };
        // Without a timer the connection waits as long as the client does; there are as many timers as connections.
        opening.timer = stream.turn().after(self.shared.handshake_timeout, too_late).ok();
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let Self { shared, state: State::Open(engine) } = self else { return self.open(stream, input) };
        let scratch = &mut *shared.scratch.borrow_mut();
        let mut outcome = process(engine, scratch, &mut input, &shared.counts);
        let sent = match outcome.in_place.take() {
            Some(range) if range.is_empty() => Ok(()),
            Some(range) => stream.reply(input, range),
            None => gather(scratch, &outcome, &input, stream),
        };
        if sent.is_err() || outcome.end.is_some() {
            settle(&mut self.state, stream, &outcome, sent);
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        add(&self.shared.counts.reading_paused, 1);
        stream.pause();
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        stream.resume();
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        if let (Timeout::Idle, State::Open(engine)) = (timeout, &mut self.state) {
            let scratch = &mut *self.shared.scratch.borrow_mut();
            if let Ok(goodbye) = engine.close(CloseCode::GOING_AWAY, "nothing was heard for too long", scratch) {
                let _ = stream.send(goodbye);
                return stream.close();
            }
        }
        stream.abort();
    }

    fn on_close(&mut self, reason: CloseReason, mut turn: Turn<'_>) {
        if let State::Opening(opening) = &mut self.state
            && let Some(timer) = opening.timer.take()
        {
            let _ = turn.cancel(timer);
        }
        self.shared.counts.closed(!matches!(reason, CloseReason::Closed | CloseReason::IdleTimeout));
    }
}

/// Answers a request as it deserves: by an upgrade, if it asks for one.
fn accept(shared: &Shared, request: &Request<'_>, answer: &mut Vec<u8>) -> Result<Engine, Rejection> {
    let upgrade = request.upgrade()?;
    let options = Accept::DEFAULT.deflate(shared.deflate.as_ref());
    let accepted = upgrade.accept(&options, answer).expect("there is no subprotocol and no header of ours in it");
    Ok(match (accepted.deflate, &shared.deflate) {
        (Some(agreement), Some(config)) => Engine::with_deflate(&shared.config, &agreement, config),
        _ => Engine::new(&shared.config),
    })
}

/// Answers each message by itself.
fn process(engine: &mut Engine, scratch: &mut Scratch, frames: &mut [u8], counts: &Counts) -> Outcome {
    let mut messages = 0;
    let mut pass = engine.process(frames, scratch);
    while let Some(event) = pass.next() {
        // A reply is refused once the client has been told that the connection ends, and then nobody waits for it.
        match event {
            Event::Text(text) => {
                messages += 1;
                let _ = text.reply();
            }
            Event::Binary(bytes) => {
                messages += 1;
                let _ = bytes.reply();
            }
            // Pings and a Close are answered by the engine, and violations are what `Outcome::end` is for.
            _ => {}
        }
    }
    let outcome = pass.finish();
    add(&counts.messages, messages);
    add(&counts.bytes, outcome.len as u64);
    outcome
}

/// Sends output that lies in several places.
fn gather(scratch: &Scratch, outcome: &Outcome, frames: &[u8], stream: &mut Stream<'_>) -> Result<(), SendError> {
    let pieces: Vec<IoSlice<'_>> = scratch.output(outcome, frames).map(IoSlice::new).collect();
    stream.send_vectored(&pieces)
}
