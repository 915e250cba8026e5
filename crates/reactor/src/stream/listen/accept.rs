//! Registered listeners: accepting connections.

use core::{cell::Cell, marker::PhantomData};
use std::{os::fd::BorrowedFd, sync::Arc, time::Duration};

use crate::{
    AddError, AddReason, Errno, Event, Interest, Key, NotFound, Reactor, Subscriber, Subscription,
    Turn,
    api::timer::{Schedule, Timer},
    cell::{CellFlags, CellPtr, NO_GROUP, OWN_TIMER},
    interest,
    kernel::Kernel,
    registry::groups::Groups,
    stream::{
        Address, ListenOptions, Listener, ListenerKey, Peer, StreamHandler, StreamLimit,
        TlsSessionFactory,
        io::tls_state::OwnSession,
        lifecycle::{NewStream, NewTls},
        listen::{limit::StreamPermit, listening::Listening},
        parts::ReactorParts,
        socket::{ListenSocket, StreamSocket},
        state::StreamTable,
        status::StreamPhase,
    },
    time::{clock::nanoseconds, timing::Timing},
};

/// How many aborted connections one event skips.
const ERRORS_IN_A_ROW: usize = 16;

/// The reactor's state of a listener.
pub(crate) struct ListenerState {
    /// `None` once the listener is deleted; the entry stays until the last of its streams is
    /// closed.
    pub(super) socket: Option<ListenSocket>,
    cell: Key,
    pub(super) options: Box<ListenOptions>,
    /// The limit shared with other listeners. Each open stream holds one place of it.
    limit: Option<StreamLimit>,
    /// Makes the sessions of accepted streams.
    tls: Option<Arc<dyn TlsSessionFactory>>,
    pub(super) open: usize,
    pub(super) accepted: u64,
    pub(super) refused: u64,
    /// Paused by the user.
    pub(super) is_paused: bool,
    /// Accepting is suspended for lack of a resource; a timer runs.
    pub(super) is_resting: bool,
    /// The closure has suspended accepting for a while; a timer runs.
    is_paced: bool,
    pub(super) rests: u64,
    /// The timer of the last suspension; it may have fired.
    timer: Option<Key>,
    /// The error of the last suspension; `None` if the kernel did not cause it.
    pub(super) rest_reason: Option<Errno>,
    is_watched: bool,
    /// The shared limit was reached at the last attempt.
    is_limited: bool,
    /// How often a limit was reached.
    pub(super) limited: u64,
}

impl ListenerState {
    fn wants_connections(&self) -> bool {
        !self.is_paused
            && !self.is_resting
            && !self.is_paced
            && self.open < self.options.connections_max
    }
}

impl Drop for ListenerState {
    fn drop(&mut self) {
        // Streams may still be open when the reactor is dropped.
        if let Some(limit) = &self.limit {
            limit.give_back(self.open);
        }
    }
}

/// The value in a listener's cell.
struct AcceptCell<H, F> {
    slot: u32,
    accept: F,
    handler: PhantomData<fn() -> H>,
}

impl<H: StreamHandler, F: FnMut(&Peer<'_>) -> Option<H> + 'static> Subscriber for AcceptCell<H, F> {
    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!(
            "a listener is registered by its state's socket, and no key of the user's names its \
             cell"
        )
    }

    fn interest(&self) -> Interest {
        interest()
    }

    fn handle(&mut self, _: Event, mut turn: Turn<'_>) {
        let ReactorParts { streams, kernel, timing, groups } = turn.ops().parts();
        if let Some(socket) = &streams.listener_state(self.slot).socket {
            socket.keep_nonblocking();
        }
        for _ in 0..streams.listener_state(self.slot).options.accepts_per_event {
            let Ok(room) = streams.permit_for(kernel, timing, self.slot) else { break };
            let accepted = streams.accept_one(kernel, timing, self.slot);
            let Some((socket, address)) = accepted else { break };
            // It has no way to the reactor.
            let peer = Peer { socket: &socket, address, rest: Cell::default() };
            let handler = (self.accept)(&peer);
            let rest = peer.rest.get();
            streams.note_accepted(self.slot, handler.is_some());
            if !rest.is_zero() {
                streams.suspend_accepting(kernel, timing, self.slot, rest);
                streams.listener_state(self.slot).is_paced = true;
            }
            let Some(handler) = handler else { continue };
            let begin = Accepted { socket, handler, rest };
            if !streams.add_accepted(kernel, timing, groups, self.slot, begin) {
                break;
            }
            if let Some(room) = room {
                room.fill();
            }
        }
        streams.sync_listener(kernel, self.slot);
    }
}

/// A connection that the user's closure has taken.
struct Accepted<H> {
    socket: StreamSocket,
    handler: H,
    /// For how long the listener is to accept no other ([`Peer::rest_listener`]).
    rest: Duration,
}

impl StreamTable {
    pub(in crate::stream) fn listener_slot(&self, key: ListenerKey) -> Result<u32, NotFound> {
        let is_it = |state: &ListenerState| state.cell == key.0 && state.socket.is_some();
        let slot = self
            .listeners
            .iter()
            .position(|state| state.as_ref().is_some_and(is_it))
            .ok_or(NotFound)?;
        u32::try_from(slot).map_err(|_| NotFound)
    }

    /// The keys of all listeners, which are those of their cells.
    pub(crate) fn listener_keys(&self) -> impl Iterator<Item = Key> {
        let listening = self.listeners.iter().flatten().filter(|state| state.socket.is_some());
        listening.map(|state| state.cell)
    }

    /// The entry of a slot that is known to be occupied.
    pub(super) fn listener_state(&mut self, slot: u32) -> &mut ListenerState {
        self.listeners[slot as usize]
            .as_mut()
            .expect("a listener's cell and its state live together")
    }

    pub(in crate::stream) fn add_listener<H, F>(
        &mut self,
        kernel: &mut Kernel,
        listener: Listener,
        accept: F,
    ) -> Result<ListenerKey, AddError<(Listener, F)>>
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        let listeners = &mut self.listeners;
        let slot = listeners.iter().position(Option::is_none).unwrap_or_else(|| {
            listeners.push(None);
            listeners.len() - 1
        });
        let slot = u32::try_from(slot).expect("there are fewer listeners than descriptors");
        let subscription =
            Subscription::new(AcceptCell { slot, accept, handler: PhantomData::<fn() -> H> });
        let wants = listener.options.connections_max > 0;
        let interest = if wants { interest().read() } else { interest() };
        let number = listener.socket.number_in(kernel);
        let admitted = number.and_then(|fd| kernel.admit(subscription.cell(), fd, interest));
        match admitted {
            Ok(cell) => {
                subscription.into_cell().set_flag(CellFlags::HIDDEN, true);
                let Listener { socket, options, limit, tls } = listener;
                self.listeners[slot as usize] = Some(ListenerState {
                    socket: Some(socket),
                    cell,
                    options,
                    limit,
                    tls,
                    open: 0,
                    accepted: 0,
                    refused: 0,
                    is_paused: false,
                    is_resting: false,
                    is_paced: false,
                    rests: 0,
                    timer: None,
                    rest_reason: None,
                    is_watched: wants,
                    is_limited: false,
                    limited: 0,
                });
                Ok(ListenerKey(cell))
            }
            Err(reason) => {
                let Ok(cell) = subscription.into_inner::<AcceptCell<H, F>>() else {
                    unreachable!("it was made of one above")
                };
                Err(AddError::new(reason, (listener, cell.accept)))
            }
        }
    }

    /// Reserves a place in the shared limit, if there is one. If none is free, the listener tries
    /// again later, because other listeners release places without telling it.
    fn permit_for(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        slot: u32,
    ) -> Result<Option<StreamPermit>, NoPermit> {
        let state = self.listener_state(slot);
        let Some(limit) = &state.limit else { return Ok(None) };
        if !state.wants_connections() {
            return Err(NoPermit);
        }
        let Some(room) = limit.take() else {
            // It tries repeatedly, but this counts as reaching the limit once.
            state.limited += u64::from(!state.is_limited);
            state.is_limited = true;
            self.rest_and_retry(kernel, timing, slot, Duration::ZERO);
            return Err(NoPermit);
        };
        state.is_limited = false;
        Ok(Some(room))
    }

    /// Accepts the next connection, if there is one and a place for it.
    fn accept_one(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        slot: u32,
    ) -> Option<(StreamSocket, Address)> {
        let is_full = kernel.is_full();
        let state = self.listener_state(slot);
        if !state.wants_connections() {
            return None;
        }
        if is_full {
            self.rest_listener(kernel, timing, slot, None, Duration::ZERO);
            return None;
        }
        for _ in 0..ERRORS_IN_A_ROW {
            let socket = self.listener_state(slot).socket.as_ref()?;
            match socket.accept() {
                Ok(accepted) => return Some(accepted),
                Err(Errno::AGAIN) => return None,
                Err(errno) if is_the_peers(errno) => {}
                Err(errno) => {
                    self.rest_listener(kernel, timing, slot, Some(errno), Duration::ZERO);
                    return None;
                }
            }
        }
        None
    }

    fn note_accepted(&mut self, slot: u32, is_kept: bool) {
        let state = self.listener_state(slot);
        if is_kept {
            state.accepted += 1;
        } else {
            state.refused += 1;
        }
    }

    /// Makes a stream of a connection. False if the reactor cannot register it.
    fn add_accepted<H: StreamHandler>(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        groups: &mut Groups,
        slot: u32,
        Accepted { socket, handler, rest }: Accepted<H>,
    ) -> bool {
        let state = self.listener_state(slot);
        let options = state.options.stream;
        let sessions = state.tls.clone();
        let begin = NewStream {
            socket,
            options,
            read_buf: Vec::new(),
            phase: StreamPhase::New,
            refused: None,
            listener: Some(slot),
            tls: sessions.map(|all| NewTls::Begins(OwnSession::new(all.new_session()))),
        };
        match self.add(kernel, begin, handler) {
            Ok(key) => {
                let cell = self.listener_state(slot).cell;
                let group = kernel.find(cell).map_or(NO_GROUP, CellPtr::group);
                if let (true, Some(cell)) = (group != NO_GROUP, self.member_cell(kernel, key)) {
                    groups.join(group, key, cell);
                }
                let state = self.listener_state(slot);
                state.open += 1;
                state.limited += u64::from(state.open == state.options.connections_max);
                true
            }
            Err(refused) => {
                let reason = match refused.reason {
                    AddReason::Os(errno) => Some(errno),
                    _ => None,
                };
                // Comes before the handler is dropped, which may panic (rule 3).
                self.rest_listener(kernel, timing, slot, reason, rest);
                drop(refused);
                false
            }
        }
    }

    /// Suspends accepting for lack of a resource, and not for less than `least`.
    fn rest_listener(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        slot: u32,
        reason: Option<Errno>,
        least: Duration,
    ) {
        self.rest_and_retry(kernel, timing, slot, least);
        let state = self.listener_state(slot);
        state.rests += 1;
        state.rest_reason = reason;
    }

    /// Suspends accepting for a while. An immediate retry would keep the loop busy.
    fn rest_and_retry(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        slot: u32,
        least: Duration,
    ) {
        let retry = self.listener_state(slot).options.retry.max(least);
        self.suspend_accepting(kernel, timing, slot, retry);
        self.listener_state(slot).is_resting = true;
    }

    /// Starts the timer that ends a suspension of accepting. The caller says why it is suspended.
    fn suspend_accepting(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        slot: u32,
        time: Duration,
    ) {
        // The clock may be user code, so it is read before any state changes (rule 3).
        let now = timing.now_ns(kernel);
        let state = self.listener_state(slot);
        let (cell, timer, time) = (state.cell, state.timer, time.max(Duration::from_millis(1)));
        let deadline_ns = now.saturating_add(nanoseconds(time));
        // The last suspension may have ended early, when a stream of the listener was closed.
        if timer.is_some_and(|key| timing.reset(kernel, key, deadline_ns)) {
            return;
        }
        let wake = Timer::<Reactor>::new(Schedule::After(time), move |mut turn: Turn<'_>| {
            if let Ok(listening) = turn.listener(ListenerKey(cell)) {
                let Listening { reactor, slot } = listening;
                let ReactorParts { streams, kernel, .. } = reactor.parts();
                let state = streams.listener_state(slot);
                (state.is_resting, state.is_paced) = (false, false);
                streams.sync_listener(kernel, slot);
            }
        });
        let key = timing.start(kernel, wake.call, deadline_ns, 0, OWN_TIMER);
        self.listener_state(slot).timer = Some(key);
    }

    /// Updates the listener's interest in connections.
    pub(super) fn sync_listener(&mut self, kernel: &mut Kernel, slot: u32) {
        let state = self.listener_state(slot);
        let wants = state.wants_connections();
        if state.is_watched == wants || state.socket.is_none() {
            return;
        }
        let key = state.cell;
        let Some(cell) = kernel.find(key) else { return };
        let wanted = if wants { interest().read() } else { interest() };
        // A failed change is tried again at the next one. The kernel rejects none for a descriptor
        // that we own.
        if kernel.change(cell, wanted).is_ok() {
            self.listener_state(slot).is_watched = wants;
        }
    }

    /// Called when a stream of the listener was closed.
    pub(in crate::stream) fn leave_listener(&mut self, kernel: &mut Kernel, slot: u32) {
        let state = self.listener_state(slot);
        state.open -= 1;
        if let Some(limit) = &state.limit {
            limit.give_back(1);
        }
        // The closed stream has released its resources.
        state.is_resting = false;
        if state.socket.is_none() && state.open == 0 {
            self.listeners[slot as usize] = None;
        } else {
            self.sync_listener(kernel, slot);
        }
    }

    pub(in crate::stream) fn delete_listener(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        groups: &mut Groups,
        slot: u32,
    ) {
        let mark = kernel.waiting();
        self.end_listener(kernel, timing, groups, slot, Kernel::deregister);
        kernel.drop_waiting_down_to(mark);
    }

    /// Takes back a listener that was registered in this call, and has accepted nothing.
    pub(in crate::stream) fn withdraw_listener<H, F>(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        groups: &mut Groups,
        key: ListenerKey,
    ) -> (Listener, F)
    where
        H: StreamHandler,
        F: FnMut(&Peer<'_>) -> Option<H> + 'static,
    {
        let slot = self.listener_slot(key).expect("it was registered in this call");
        let ListenerState { options, limit, tls, .. } = self.listener_state(slot);
        let (options, limit, tls) = (options.clone(), limit.clone(), tls.clone());
        let mut accept = None;
        let socket = self.end_listener(kernel, timing, groups, slot, |kernel, cell| {
            accept = Some(kernel.take_hidden::<AcceptCell<H, F>>(cell).accept);
        });
        let socket = socket.expect("a listener that is found has a socket");
        let accept = accept.expect("a listener that is registered has a cell");
        (Listener { socket, options, limit, tls }, accept)
    }

    /// Ends a listener, whose socket is returned. `end` ends its cell. Runs no user code.
    pub(in crate::stream) fn end_listener(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        groups: &mut Groups,
        slot: u32,
        end: impl FnOnce(&mut Kernel, CellPtr),
    ) -> Option<ListenSocket> {
        let state = self.listener_state(slot);
        let (key, socket, timer) = (state.cell, state.socket.take(), state.timer.take());
        if state.open == 0 {
            self.listeners[slot as usize] = None;
        }
        if let Some(timer) = timer {
            // It may have fired. Its closure is not user code.
            timing.remove_own(kernel, timer);
        }
        if let Some(cell) = kernel.find(key) {
            let group = cell.group();
            end(kernel, cell);
            if group != NO_GROUP {
                groups.leave(group, key, kernel.self_deleted());
            }
        }
        socket
    }
}

/// The shared limit is reached.
struct NoPermit;

/// True if the error of accept4(2) concerns this connection only, and not the listener.
fn is_the_peers(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::INTR
            | Errno::CONNABORTED
            | Errno::PROTO
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
    )
}
