//! The simulated backend: readiness of objects that exist in a simulation alone.
//!
//! 1. A reactor is an *actor* of its world. A cell's number is the slot of a simulated object plus
//!    one; number 0 is the reactor's own wake. Slots are reused as descriptors are, so the rules
//!    about numbers hold here as well (rule 7).
//! 2. Closing an object takes it out of all sets, and nothing duplicates one. So a deletion leaves
//!    no entry behind, and cannot fail.
//! 3. A wait that finds nothing lets the world run until something is ready or the limit has passed
//!    in virtual time ([`World::wait`]). One that may not block takes a microsecond, so that a loop
//!    of such waits comes to an end.
//! 4. A reactor that belongs to the world ([`enter`](SimBackend::enter)) never runs the world: its
//!    waits return at once, and the world asks for its next deadline after each turn.
//! 5. The set carries addresses of cells (rule 11), which no trace may show.

use core::{any::Any, mem::MaybeUninit};
use std::{rc::Rc, sync::Arc, time::Instant};

use rustix::{
    event::epoll::{EventData, EventFlags},
    io::Errno,
    time::Timespec,
};
use windlass_flow::{Latch, SimBell};
use windlass_sim::{ActorId, Fd, HostId, PollEvent, PollSet, SimAddr, WakeHandle};

use crate::{
    AddReason,
    api::interest::{IN, WAKEUP},
    backend::batch::RawEvent,
    cell::CellPtr,
    world::{Host, STEP_NS, SimId, SimObject, World, errno},
};

/// The number of the cell that the latch wakes.
pub(crate) const WAKE_NUMBER: i32 = 0;

/// The most events of one wait.
const EVENTS_MAX: usize = 256;

pub(crate) struct SimBackend {
    host: Host,
    actor: ActorId,
    set: PollSet,
    events: Vec<PollEvent>,
    /// The latch of the reactor, and the cell that it wakes.
    latch: Option<Arc<Latch>>,
    wake: Option<CellPtr>,
    /// The world runs it, and not its owner (rule 4).
    is_hosted: bool,
}

/// Makes a reactor run.
pub(crate) struct ActorBell(WakeHandle);

impl SimBell for ActorBell {
    fn ring(&self) {
        self.0.wake();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl SimBackend {
    pub(super) fn new(host: Host) -> Self {
        let kernel = host.world().kernel();
        let actor = kernel.actor(host.id(), "reactor");
        kernel.suspend(actor);
        let set = kernel.poll_set(actor);
        let events = vec![PollEvent::default(); EVENTS_MAX];
        Self { host, actor, set, events, latch: None, wake: None, is_hosted: false }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn world(&self) -> &Rc<World> {
        self.host.world()
    }

    /// The world runs the reactor from now on. Returns its host and its actor.
    pub(crate) fn enter(&mut self) -> (HostId, ActorId) {
        self.is_hosted = true;
        (self.host.id(), self.actor)
    }

    /// What a wake of the reactor's latch does.
    pub(crate) fn bell(&self) -> ActorBell {
        ActorBell(self.world().kernel().wake_handle(self.actor))
    }

    pub(crate) fn set_latch(&mut self, latch: Arc<Latch>) {
        self.latch = Some(latch);
    }

    /// The virtual time.
    pub(super) fn now(&self) -> Instant {
        self.world().now()
    }

    /// The number of a simulated object that this reactor may watch.
    ///
    /// # Errors
    /// `Unsupported` if it belongs to another simulation, `BadDescriptor` if it is closed.
    pub(crate) fn number_of(&self, id: SimId) -> Result<i32, AddReason> {
        let fd = id.fd_in(self.world()).ok_or(AddReason::Unsupported)?;
        if self.world().kernel().fd_at(fd.slot()) != Some(fd) {
            return Err(AddReason::BadDescriptor);
        }
        let slot = i32::try_from(fd.slot()).ok();
        slot.and_then(|slot| slot.checked_add(1)).ok_or(AddReason::LimitReached)
    }

    /// Starts to connect. The result of the call stands beside the socket.
    pub(crate) fn connect(&self, to: &SimAddr) -> Result<(SimObject, Result<(), Errno>), Errno> {
        SimObject::connect(&self.host, to)
    }

    fn fd(&self, number: i32) -> Result<Fd, Errno> {
        let slot = u32::try_from(number - 1).map_err(|_| Errno::BADF)?;
        self.world().kernel().fd_at(slot).ok_or(Errno::BADF)
    }

    pub(super) fn add(&mut self, cell: CellPtr, mask: u32) -> Result<(), Errno> {
        if cell.fd() == WAKE_NUMBER {
            self.wake = Some(cell);
            return Ok(());
        }
        self.set.add(self.fd(cell.fd())?, mask & !WAKEUP, cell.expose()).map_err(errno)
    }

    pub(super) fn modify(&mut self, cell: CellPtr, mask: u32) -> Result<(), Errno> {
        self.set.modify(self.fd(cell.fd())?, mask & !WAKEUP, cell.expose()).map_err(errno)
    }

    /// An error says that the object was closed before (rule 2).
    pub(super) fn delete(&mut self, cell: CellPtr) {
        if let Ok(fd) = self.fd(cell.fd()) {
            let _ = self.set.delete(fd);
        }
    }

    /// See [`ActiveBackend::wait`](super::ActiveBackend::wait).
    ///
    /// # Errors
    /// `EINTR` as a fault. `EDEADLK` if nothing can happen any more, and also for a wait in a
    /// handler of a reactor that the world runs. `ETIME` at the limit of the simulation.
    pub(super) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        let world = Rc::clone(self.world());
        let start = world.kernel().now_ns();
        let deadline = timeout.map(|timeout| start.saturating_add(nanoseconds(timeout)));
        // Rule 3.
        let until = match deadline {
            Some(deadline) if deadline == start => Some(start.saturating_add(STEP_NS)),
            deadline => deadline,
        };
        loop {
            let count = self.fetch(room)?;
            let is_over = until.is_some_and(|until| world.kernel().now_ns() >= until);
            if count > 0 || is_over || self.is_hosted {
                return Ok(count);
            }
            world.wait(&self.host, self.actor, until)?;
        }
    }

    /// Writes what is ready to the front of `room`.
    fn fetch(&mut self, room: &mut [MaybeUninit<RawEvent>]) -> Result<usize, Errno> {
        let is_woken = self.latch.as_ref().is_some_and(|latch| latch.is_woken());
        let wake = self.wake.filter(|_| is_woken);
        let most = (room.len() - usize::from(wake.is_some())).min(EVENTS_MAX);
        let found = match most {
            0 => 0,
            most => self.set.wait(&mut self.events[..most]).map_err(errno)?,
        };
        let mut count = 0;
        let mut push = |address: u64, ready: u32| {
            room[count].write(RawEvent {
                flags: EventFlags::from_bits_retain(ready),
                data: EventData::new_u64(address),
            });
            count += 1;
        };
        if let Some(wake) = wake {
            push(wake.expose(), IN);
        }
        for event in &self.events[..found] {
            push(event.data, event.mask);
        }
        Ok(count)
    }
}

impl Drop for SimBackend {
    /// What the actor has opened stays open, for it may belong to others.
    fn drop(&mut self) {
        self.world().kernel().suspend(self.actor);
    }
}

fn nanoseconds(time: &Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
