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
//! 5. With a ring ([`Sim::set_ring`](crate::sim::Sim::set_ring)), cells are watched by it as by the
//!    kernel's. Its waits never block, so rules 3 and 4 hold. Number 0 is not watched by it.
//! 6. The set carries addresses of cells (rule 11), which no trace may show.

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
    AddReason, RingError,
    api::interest::{IN, WAKEUP},
    backend::{
        batch::RawEvent,
        ring_settings::{PoolSize, RingSettings},
        uring::Uring,
    },
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
    /// Rule 5.
    ring: Option<Box<Uring>>,
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
    /// `settings` are those of its ring, if it has one.
    pub(super) fn new(host: Host, settings: RingSettings) -> Result<Self, RingError> {
        let kernel = host.world().kernel();
        let actor = kernel.actor(host.id(), "reactor");
        kernel.suspend(actor);
        let set = kernel.poll_set(actor);
        let ring = host.world().has_rings().then(|| {
            let settings = choose(settings, |below| kernel.choose(below));
            Uring::in_simulation(kernel, actor, settings).map(Box::new)
        });
        let (ring, events) = (ring.transpose()?, vec![PollEvent::default(); EVENTS_MAX]);
        Ok(Self { host, actor, set, ring, events, latch: None, wake: None, is_hosted: false })
    }

    pub(super) fn ring(&self) -> Option<&Uring> {
        self.ring.as_deref()
    }

    pub(super) fn ring_mut(&mut self) -> Option<&mut Uring> {
        self.ring.as_deref_mut()
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
        if let Some(ring) = &mut self.ring {
            return ring.add(cell);
        }
        self.set.add(self.fd(cell.fd())?, mask & !WAKEUP, cell.expose()).map_err(errno)
    }

    pub(super) fn modify(&mut self, cell: CellPtr, mask: u32) -> Result<(), Errno> {
        if let Some(ring) = self.ring.as_mut().filter(|_| cell.fd() != WAKE_NUMBER) {
            return ring.modify(cell, mask);
        }
        self.set.modify(self.fd(cell.fd())?, mask & !WAKEUP, cell.expose()).map_err(errno)
    }

    /// An error says that the object was closed before (rule 2).
    pub(super) fn delete(&mut self, cell: CellPtr) {
        if let Some(ring) = self.ring.as_mut().filter(|_| cell.fd() != WAKE_NUMBER) {
            return ring.delete(cell);
        }
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
            let left = until.map(|until| until.saturating_sub(world.kernel().now_ns()));
            let left = if self.is_hosted || deadline == Some(start) { Some(0) } else { left };
            let count = self.fetch(room, left)?;
            let is_over = until.is_some_and(|until| world.kernel().now_ns() >= until);
            if count > 0 || is_over || self.is_hosted {
                return Ok(count);
            }
            world.wait(&self.host, self.actor, until)?;
        }
    }

    /// Writes what is ready to the front of `room`. It does not block; a ring is told how many
    /// nanoseconds are `left` for the wait.
    fn fetch(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        left: Option<u64>,
    ) -> Result<usize, Errno> {
        let is_woken = self.latch.as_ref().is_some_and(|latch| latch.is_woken());
        let wake = self.wake.filter(|_| is_woken);
        let most = (room.len() - usize::from(wake.is_some())).min(EVENTS_MAX);
        if let Some(ring) = &mut self.ring {
            let left = if wake.is_some() { Some(0) } else { left };
            return fetch_by_ring(ring, wake, room, left.map(timespec).as_ref());
        }
        let found = match most {
            0 => 0,
            most => self.set.wait(&mut self.events[..most]).map_err(errno)?,
        };
        let mut count = 0;
        let mut push = |address: u64, ready: u32| {
            room[count].write(event(address, ready));
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

/// Events of the ring, behind that of the reactor's wake.
fn fetch_by_ring(
    ring: &mut Uring,
    wake: Option<CellPtr>,
    room: &mut [MaybeUninit<RawEvent>],
    left: Option<&Timespec>,
) -> Result<usize, Errno> {
    let count = usize::from(wake.is_some());
    if let Some(wake) = wake {
        room[0].write(event(wake.expose(), IN));
    }
    match &mut room[count..] {
        [] => Ok(count),
        room => match ring.wait_in_simulation(room, left) {
            Ok(found) => Ok(count + found),
            Err(_) if count > 0 => Ok(count),
            Err(errno) => Err(errno),
        },
    }
}

/// The sizes of a ring that the seed chooses, where the builder has the defaults. The simplest ones
/// are the largest.
fn choose(settings: RingSettings, below: impl Fn(u64) -> u64) -> RingSettings {
    let completions = match settings.completions {
        RingSettings::COMPLETIONS => settings.completions >> below(11),
        completions => completions,
    };
    let buffers = settings.buffers.unwrap_or_else(|| PoolSize {
        count: 16 >> below(4),
        size: (PoolSize::SIZE_MIN << 6) >> below(7),
    });
    RingSettings { completions, buffers: Some(buffers), ..settings }
}

fn event(address: u64, ready: u32) -> RawEvent {
    RawEvent { flags: EventFlags::from_bits_retain(ready), data: EventData::new_u64(address) }
}

fn timespec(nanoseconds: u64) -> Timespec {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    Timespec { tv_sec: signed(seconds), tv_nsec: signed(rest) }
}

fn nanoseconds(time: &Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
