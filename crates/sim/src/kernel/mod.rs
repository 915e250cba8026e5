//! The simulated kernel: a handle to its state, and the calls.
//!
//! 1. A call never waits, and never calls user code.
//! 2. Time moves in [`Kernel::step`] alone.
//! 3. What a call makes possible for others is known at once inside a host, and after the time of
//!    the link between hosts.

mod actors;
mod calls;
mod datagrams;
mod files;
mod hosts;
mod network;
mod poll_set;
mod ring;
mod sockets;
mod state;
mod streams;

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::choices::{Case, Choices, Track};
use crate::faults::{Fault, Faults, Link};
use crate::ids::{ActorId, HostId};
use crate::schedule::WakeHandle;
use crate::trace::Trace;
use state::State;

pub use actors::Step;
pub use poll_set::{PollEvent, PollSet};
pub use ring::Ring;

/// A simulated kernel with its network, clock and scheduler.
///
/// It is a handle: clones name the same kernel. It stays on its thread.
#[derive(Clone)]
pub struct Kernel {
    state: Rc<RefCell<State>>,
}

/// Without its sets, whose data may be addresses.
impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = f.debug_struct("Kernel");
        if let Ok(state) = self.state.try_borrow() {
            output.field("now_ns", &state.now_ns()).field("steps", &state.steps);
        }
        output.finish_non_exhaustive()
    }
}

impl Kernel {
    /// A kernel whose choices all come from a seed.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::with(Choices::from_seed(seed), faults)
    }

    /// A kernel that makes recorded choices, and the simplest ones after them.
    #[must_use]
    pub fn replay(case: &Case, faults: Faults) -> Self {
        Self::with(Choices::from_case(case), faults)
    }

    fn with(choices: Choices, faults: Faults) -> Self {
        Self { state: Rc::new(RefCell::new(State::new(choices, faults))) }
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Makes a call that may let requests of rings go on.
    fn call<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = call(&mut state);
        state.retry_requests();
        result
    }

    // Hosts and links.

    /// The host with an address. It is made if there is none.
    #[must_use]
    pub fn host(&self, address: IpAddr) -> HostId {
        self.state().network.host(address)
    }

    /// The address of a host.
    #[must_use]
    pub fn address_of(&self, host: HostId) -> IpAddr {
        self.state().network.address(host)
    }

    /// Sets the properties of the link between two hosts.
    pub fn set_link(&self, a: HostId, b: HostId, link: Link) {
        self.state().set_link(Some((a, b)), link);
    }

    /// Sets the properties of links that have carried nothing yet.
    pub fn set_default_link(&self, link: Link) {
        self.state().set_link(None, link);
    }

    /// Cuts the link between two hosts. Streams keep what they have, and go on when it is healed.
    pub fn partition(&self, a: HostId, b: HostId) {
        self.state().partition(a, b);
    }

    /// Ends a cut.
    pub fn heal(&self, a: HostId, b: HostId) {
        self.state().heal(a, b);
    }

    /// Changes the faults from now on, also to none. Streams keep the sizes of their buffers, and
    /// links their properties.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    // Actors and time.

    /// Makes an actor, which can run at once.
    #[must_use]
    pub fn actor(&self, host: HostId, name: &str) -> ActorId {
        self.state().actor(host, name)
    }

    /// Whether the fault "process end" may end the actor. By default it may not.
    pub fn set_mortal(&self, actor: ActorId, is_mortal: bool) {
        self.state().set_mortal(actor, is_mortal);
    }

    /// The next actor to run. Deliveries and moves of time happen on the way.
    #[must_use]
    pub fn step(&self) -> Step {
        self.call(State::step)
    }

    /// An actor waits: until a set of its has an event, a ring a completion, a wake, or a time. If
    /// there is one already, it can run again.
    pub fn park(&self, actor: ActorId, deadline_ns: Option<u64>) {
        self.state().park(actor, deadline_ns);
    }

    /// An actor can run.
    pub fn ready(&self, actor: ActorId) {
        self.state().ready(actor);
    }

    /// The scheduler no longer runs an actor, whatever happens to it, until it is parked or made
    /// ready: something else runs it, such as the test itself. Wakes in the meantime count then.
    pub fn suspend(&self, actor: ActorId) {
        self.state().suspend(actor);
    }

    /// An actor ends, as a process does: its descriptors are closed, and its sets and rings empty.
    pub fn end(&self, actor: ActorId) {
        self.call(|state| state.end(actor));
    }

    /// A handle that makes the actor run, for code that has no kernel.
    #[must_use]
    pub fn wake_handle(&self, actor: ActorId) -> WakeHandle {
        WakeHandle::new(Arc::clone(&self.state().wakes), actor)
    }

    /// The virtual time in nanoseconds, as of CLOCK_MONOTONIC. It begins at zero.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns()
    }

    /// The wall clock in nanoseconds since 1970, as of CLOCK_REALTIME. Faults step it.
    #[must_use]
    pub fn wall_ns(&self) -> i64 {
        self.state().wall_ns
    }

    /// The earliest time to which [`step`](Self::step) could move. It may turn out to be for
    /// nothing.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.state().schedule.next_ns()
    }

    /// The number of steps so far: runs of actors and deliveries.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// After so many steps [`step`](Self::step) returns [`Step::Limit`]. By default 50 million.
    pub fn set_steps_max(&self, steps_max: u64) {
        self.state().steps_max = steps_max;
    }

    /// Time does not move beyond this; [`step`](Self::step) returns [`Step::Limit`] instead.
    pub fn set_time_max(&self, time_max_ns: u64) {
        self.state().time_max_ns = time_max_ns;
    }

    // Choices and traces.

    /// A number below a bound, by the seed. It is recorded, and shrunk towards zero.
    #[must_use]
    pub fn choose(&self, below: u64) -> u64 {
        self.state().choices.below(Track::Workload, below)
    }

    /// A number that no other call returns, by the seed: an identity, or a secret. Shrinking leaves
    /// it alone.
    #[must_use]
    pub fn distinct(&self) -> u64 {
        self.state().choices.distinct()
    }

    /// True with a probability in millionths, by the seed.
    #[must_use]
    pub fn chance(&self, ppm: u32) -> bool {
        self.state().choices.flag(Track::Workload, ppm)
    }

    /// Records all choices from now on, for [`case`](Self::case).
    pub fn record_choices(&self) {
        self.state().choices.record();
    }

    /// The recorded choices.
    #[must_use]
    pub fn case(&self) -> Case {
        Case { tracks: self.state().choices.recorded() }
    }

    /// Adds a note to the trace. It is part of the hash.
    pub fn note(&self, text: &str, value: i64) {
        let mut state = self.state();
        let (at_ns, current) = (state.now_ns(), state.current);
        state.recorder.note(at_ns, current, text, value);
    }

    /// How many entries of the trace are kept, the last ones. By default none.
    pub fn set_trace_max(&self, entries: usize) {
        self.state().recorder.set_entries_max(entries);
    }

    /// The hash of the trace so far, kept or not. Equal runs have equal ones on every machine.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.state().recorder.hash()
    }

    /// The number of entries of the trace so far, kept or not.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().recorder.count()
    }

    /// How often a fault has happened.
    #[must_use]
    pub fn fault_count(&self, fault: Fault) -> u64 {
        self.state().recorder.fault_count(fault)
    }

    /// The entries of the trace that are kept.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let state = self.state();
        state.recorder.trace(state.actors.names())
    }
}
