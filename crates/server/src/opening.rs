//! A connection before it is a WebSocket: its requests and their responses.

use std::{borrow::Cow, rc::Rc, time::SystemTime};

use windlass::stream::{Address, Input, Stream};
use windlass_ws::{
    Engine,
    deflate::Agreement,
    handshake::{HeadReader, Rejection, Request, Upgrade},
};

use crate::{
    Handler, Options,
    connection::Seat,
    driver::{Driver, First, Open, Source, State},
    hall::Hall,
    http::{
        Accept, Door, LazyPeer, Next, Opened, Place, Reject, Served, UpgradeRequest, reject,
        without_body,
    },
    roster::Flags,
    service::Inner,
};

/// Memory of sent responses that is kept for the next ones, in bytes. Large pages are rare.
const ANSWER_KEPT: usize = 16 << 10;

/// Response text while connections hold the maximum memory.
const OUT_OF_MEMORY: &str = "the server's memory limit is reached; try again later";

/// The outcome of a request.
enum Step<D> {
    /// The request is answered, and another one may follow.
    Answered,
    /// The request is answered, and the connection ends.
    End,
    Open {
        engine: Engine,
        is_packed: bool,
        data: D,
        protocol: Option<Cow<'static, str>>,
    },
}

impl<H: Handler> Driver<H> {
    /// Handles bytes of requests. Bytes after an upgrade belong to the first frames: a client need
    /// not wait for the response.
    #[cold]
    #[inline(never)]
    pub(crate) fn opening(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let State::Opening { member, reader, requests, is_full, door, .. } = &mut self.state else {
            return;
        };
        let (member, is_full, door) = (*member, *is_full, *door);
        let service = Rc::clone(&self.service);
        let hall = &*service.hall;
        let mut answer = hall.answer.take();
        let (mut at, mut pending) = (0, reader.take());
        let reader_was_there = pending.is_some();
        let step = loop {
            let bytes = &input[at..];
            let found = match &mut pending {
                _ if bytes.is_empty() => break None,
                Some(reader) => reader.request(bytes),
                None => Request::parse(bytes, &hall.options.head_limits),
            };
            let (step, used) = match found {
                Ok(Some((request, used))) => {
                    let from = answer.len();
                    let step = service.answer(&request, door, *requests, stream, &mut answer);
                    if matches!(step, Step::End) && request.header_bytes("Upgrade").is_some() {
                        service.tell_refused(stream, &answer[from..]);
                    }
                    (step, used)
                }
                Ok(None) => break None,
                Err(rejection) => {
                    let from = answer.len();
                    reject(rejection, SystemTime::now(), &mut answer);
                    service.tell_refused(stream, &answer[from..]);
                    (Step::End, bytes.len())
                }
            };
            at += used;
            // The reader is finished. While a reader exists, a request counts as begun.
            pending = None;
            match step {
                Step::Answered => *requests += 1,
                other => break Some(other),
            }
        };
        if step.is_none() && pending.is_none() && at < input.len() {
            // The head is incomplete.
            let mut begun = Box::new(HeadReader::new(hall.options.head_limits));
            // The same bytes were parsed without an error just now.
            let _ = begun.request(&input[at..]);
            pending = Some(begun);
        }
        let in_pieces = pending.as_ref().map_or(0, |reader| reader.buffered());
        if in_pieces > 0 || reader_was_there {
            hall.note_in_pieces(member, in_pieces);
        }
        *reader = pending;
        if !answer.is_empty() {
            hall.books.borrow_mut().roster.at(member).opened = hall.tick.get();
            // A failed stream reports its end separately.
            let _ = stream.send(&answer);
            answer.clear();
            answer.shrink_to(ANSWER_KEPT);
        }
        hall.answer.set(answer);
        match step {
            None | Some(Step::Answered) => {}
            Some(Step::End) => {
                self.state.refuse();
                hall.close_answered(stream);
            }
            Some(Step::Open { engine, is_packed, data, protocol }) => {
                hall.open(member, is_packed);
                hall.keep_protocol(member, protocol.as_deref());
                let mut seat = Seat::new(member, hall.tick.get(), engine.has_deflate());
                if is_full {
                    // The output consists of pages that the client has not read. The driver will be
                    // told when it has.
                    seat.told_full = true;
                    hall.mark(member, Flags::FULL);
                    stream.pause();
                }
                self.state = State::Open(Open { engine, seat, data });
                let State::Open(open) = &mut self.state else { return };
                return open.go_on(&service, stream, Source::Bytes(&mut input[at..]), First::Open);
            }
        }
        if in_pieces > 0 || stream.buffered() > 0 {
            hall.look_at_memory(&mut stream.turn());
        }
    }

    /// Ends a connection that did not open.
    pub(crate) fn give_up(&mut self, stream: &mut Stream<'_>, wants: Flags) {
        let State::Opening { reader, requests, .. } = &self.state else { return };
        let hall = &self.service.hall;
        if wants.any(Flags::WANTS_TIMEOUT) {
            // A client that got a response and asks for nothing more is merely closed, not refused.
            if reader.is_some() || *requests == 0 {
                hall.stats.handshake_timeouts.add(1);
            }
            if reader.is_some() {
                let mut answer = Vec::new();
                reject(Rejection::Timeout, SystemTime::now(), &mut answer);
                self.service.tell_refused(stream, &answer);
                let _ = stream.send(&answer);
            }
        }
        hall.close_answered(stream);
    }
}

impl Hall {
    /// Closes a connection that is not a WebSocket. Its last response may be a page, and a slow
    /// client has as much time for it as for other output.
    pub(crate) fn close_answered(&self, stream: &mut Stream<'_>) {
        let Options { close_timeout, write_stall_timeout, .. } = self.options;
        if stream.buffered() > ANSWER_KEPT {
            stream.set_linger(
                write_stall_timeout.map_or(close_timeout, |timeout| timeout.max(close_timeout)),
            );
        }
        stream.close();
    }

    /// Notes that a connection is open.
    pub(crate) fn open(&self, member: u32, is_packed: bool) {
        self.stats.opened.add(1);
        let mut books = self.books.borrow_mut();
        let member = books.roster.at(member);
        member.flags = if is_packed { Flags::OPEN | Flags::COMPRESSED } else { Flags::OPEN };
        member.heard = self.tick.get();
        member.opened = self.tick.get();
    }

    /// Stores the subprotocol of a connection, shared with the previous connection's if they are
    /// equal.
    pub(crate) fn keep_protocol(&self, member: u32, protocol: Option<&str>) {
        let Some(protocol) = protocol else { return };
        let last = self.last_protocol.take().filter(|last| **last == *protocol);
        let shared = last.unwrap_or_else(|| protocol.into());
        self.last_protocol.set(Some(Rc::clone(&shared)));
        self.books.borrow_mut().protocols.insert(member, shared);
    }

    /// Keeps the place of a connection in the count of its address until it ends.
    pub(crate) fn keep_place(&self, member: u32, place: Option<Place>) {
        if let Some(place) = place {
            self.books.borrow_mut().places.insert(member, place);
        }
    }
}

impl<H: Handler> Inner<H> {
    fn answer(
        &self,
        request: &Request<'_>,
        door: Door,
        before: u32,
        stream: &mut Stream<'_>,
        out: &mut Vec<u8>,
    ) -> Step<H::Data> {
        let hall = &self.hall;
        if let Err(refusal) = hall.options.hosts.check_at(request, door) {
            return self.refuse(&refusal, request, out);
        }
        if hall.budget.is_exhausted() {
            return self.refuse(&Reject::status(503).text(OUT_OF_MEMORY), request, out);
        }
        let Some(upgrade) = hall.options.routes.upgrade_of(request) else {
            return self.answer_other(request, before, stream, out);
        };
        match self.take_upgrade(&upgrade, stream, out) {
            Ok(step) => step,
            Err(refusal) => self.refuse(&refusal, request, out),
        }
    }

    #[cold]
    fn refuse(&self, refusal: &Reject, request: &Request<'_>, out: &mut Vec<u8>) -> Step<H::Data> {
        self.hall.stats.refused.add(1);
        let start = out.len();
        // A header that cannot be sent was replaced by a response with status 500.
        let _ = refusal.write(SystemTime::now(), out);
        if request.method() == "HEAD" {
            without_body(out, start);
        }
        Step::End
    }

    /// Answers a request that is not an acceptable upgrade.
    #[cold]
    fn answer_other(
        &self,
        request: &Request<'_>,
        before: u32,
        stream: &mut Stream<'_>,
        out: &mut Vec<u8>,
    ) -> Step<H::Data> {
        let waiting_bytes = stream.buffered() + out.len();
        let served = Served { requests: before, waiting_bytes, now: SystemTime::now() };
        let next = self.hall.options.routes.answer(request, &served, out);
        self.hall.stats.requests.add(1);
        if matches!(next, Next::Request) { Step::Answered } else { Step::End }
    }

    fn take_upgrade(
        &self,
        upgrade: &Upgrade<'_>,
        stream: &Stream<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Step<H::Data>, Reject> {
        let hall = &self.hall;
        if hall.is_draining.get() {
            return Err(Reject::status(503));
        }
        hall.options.origins.check(upgrade.request())?;
        let ask = || stream.peer_addr().unwrap_or(Address::Unix(None));
        let peer = LazyPeer::new(&ask);
        let welcome: Accept<H::Data> =
            self.handler.on_upgrade(&UpgradeRequest::lazy(upgrade, &peer))?;
        let deflate = hall.options.deflate.as_ref();
        let Opened { data, protocol, deflate: agreement, .. } =
            welcome.accept(upgrade, deflate, out).map_err(|_| Reject::status(500))?;
        let engine = hall.engine(agreement.as_ref());
        let is_packed = hall.takes_packed(agreement.as_ref());
        Ok(Step::Open { engine, is_packed, data, protocol })
    }
}

impl Hall {
    pub(crate) fn engine(&self, agreement: Option<&Agreement>) -> Engine {
        match (agreement, &self.options.deflate) {
            (Some(agreement), Some(config)) => {
                Engine::with_deflate(&self.config, agreement, config)
            }
            _ => Engine::new(&self.config),
        }
    }

    /// Returns whether a connection with this agreement accepts frames that were compressed for
    /// many.
    pub(crate) fn takes_packed(&self, agreement: Option<&Agreement>) -> bool {
        agreement
            .zip(self.options.deflate.as_ref())
            .is_some_and(|(agreement, config)| agreement.can_read_broadcast(config))
    }
}
