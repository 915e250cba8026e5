//! A client by the engine of `windlass-ws`: it sends its plan, and checks what comes back.

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use windlass::{
    Key, Turn,
    stream::{DisconnectReason, Input, Stream, StreamHandler},
};
use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, MessageRef, Scratch,
    handshake::{ClientRequest, HandshakeError, HeadLimits},
};

use crate::{
    bed::{Planned, Session, count},
    judge::{payload, read},
};

/// Own messages that may be under way.
const WINDOW: usize = 8;

/// What has come back.
struct Received {
    number: usize,
    session: Rc<Session>,
    /// Own messages that have come back, directly or over the room.
    own: usize,
    /// The next number of each client that comes directly, or over the room, if one has come.
    next: BTreeMap<(usize, bool), usize>,
    close: Option<CloseCode>,
}

impl Received {
    fn take(&mut self, bytes: &[u8]) {
        let (client, number, is_for_room) = read(&self.session, bytes);
        let plan = &self.session.plans[client];
        let is_alike = |other: &usize| plan[*other].is_for_room == is_for_room;
        let after = (number + 1..plan.len()).find(is_alike).unwrap_or(plan.len());
        let expected = self.next.insert((client, is_for_room), after).unwrap_or(number);
        assert!(expected <= number, "{number} of client {client} after {expected}");
        let lost = (expected..number).filter(is_alike).count();
        match &self.session.gaps {
            Some(gaps) if is_for_room => {
                *gaps.borrow_mut().entry(self.number).or_default() += lost;
            }
            _ => assert_eq!(lost, 0, "{number} of client {client} after {expected}"),
        }
        if is_for_room {
            self.session.heard.borrow_mut().insert((self.number, client));
            let mut room = self.session.room.borrow_mut();
            room.entry(self.number).or_default().push((client, number));
        } else {
            assert_eq!(client, self.number, "a reply for somebody else");
        }
        if client == self.number {
            self.own += 1;
        }
    }
}

pub(crate) struct Client {
    received: Received,
    path: String,
    /// The response to the request so far.
    head: Option<Vec<u8>>,
    engine: Engine,
    scratch: Scratch,
    sent: usize,
    has_ended: bool,
}

/// Predictable masks, for the same run again, whose bytes differ.
fn entropy(bytes: &mut [u8]) {
    bytes.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, value)| *byte = value);
}

impl Client {
    pub(crate) fn new(number: usize, session: &Rc<Session>) -> Self {
        let session = Rc::clone(session);
        Self {
            received: Received { number, session, own: 0, next: BTreeMap::new(), close: None },
            path: format!("/{number}"),
            head: Some(Vec::new()),
            engine: Engine::new(&Arc::new(Config::client(entropy))),
            scratch: Scratch::new(),
            sent: 0,
            has_ended: false,
        }
    }

    fn request(&self) -> ClientRequest<'_> {
        ClientRequest::new("server", &self.path, [7; 16])
    }

    fn plan(&self) -> &[Planned] {
        &self.received.session.plans[self.received.number]
    }

    /// Sends what is planned, and at last a Close frame.
    fn pump(&mut self, stream: &mut Stream<'_>) {
        let number = self.received.number;
        while !stream.is_full() && self.sent - self.received.own < WINDOW {
            let Some(planned) = self.plan().get(self.sent).copied() else { break };
            let bytes = payload(number, self.sent, planned.is_for_room, planned.len);
            let sent = self.engine.send(MessageRef::Binary(&bytes), &mut self.scratch);
            let Ok(frame) = sent else { return };
            self.sent += 1;
            // The end of a stream is told by `on_close`.
            let _ = stream.send(frame);
        }
        let stays = self.received.session.watchers.contains(&number);
        if !stays && self.received.own == self.plan().len() {
            if let Ok(frame) = self.engine.close(CloseCode::NORMAL, "", &mut self.scratch) {
                let _ = stream.send(frame);
            }
        }
    }

    fn process(&mut self, stream: &mut Stream<'_>, bytes: &mut [u8]) {
        let mut pass = self.engine.process(bytes, &mut self.scratch);
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Binary(bytes) => self.received.take(&bytes),
                EngineEvent::Close(close) => self.received.close = close.code,
                EngineEvent::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let outcome = pass.finish();
        let output = self.scratch.output(&outcome, bytes).flatten().copied();
        let output: Vec<u8> = output.collect();
        if !output.is_empty() {
            let _ = stream.send(&output);
        }
        if outcome.end.is_some() {
            self.has_ended = true;
            stream.finish();
        } else {
            self.pump(stream);
        }
    }
}

impl StreamHandler for Client {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let mut request = Vec::new();
        self.request().write(&mut request).unwrap();
        let _ = stream.send(&request);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        assert!(!self.has_ended, "bytes after the Close frame");
        let Some(mut head) = self.head.take() else { return self.process(stream, &mut input) };
        head.extend_from_slice(&input);
        match self.request().read_response(&head, &HeadLimits::DEFAULT) {
            Ok(None) => self.head = Some(head),
            Ok(Some((_, len))) => {
                let mut rest = head.split_off(len);
                self.process(stream, &mut rest);
            }
            // The server drains.
            Err(HandshakeError::Status(503 | 408)) => stream.close(),
            Err(other) => panic!("{other}"),
        }
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        if self.head.is_none() && !self.has_ended {
            self.pump(stream);
        }
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        let session = &self.received.session;
        count(&session.clients_ended);
        let is_done = self.received.own == self.plan().len();
        if reason == DisconnectReason::Closed && self.received.close == Some(CloseCode::NORMAL) {
            assert!(is_done, "a clean end before all messages came back");
            count(&session.clients_done);
        }
    }
}
