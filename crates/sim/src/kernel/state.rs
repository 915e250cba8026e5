//! The state of the simulated kernel, and what all its parts use: faults, traces and wakes.

use std::sync::Arc;

use rustix::io::Errno;

use crate::choices::{Choices, Track};
use crate::faults::{Fault, Faults};
use crate::ids::{ActorId, Fd, HostId};
use crate::kernel::actors::Actors;
use crate::kernel::datagrams::Datagram;
use crate::kernel::hosts::Network;
use crate::object::conn::Conn;
use crate::object::files::Pipe;
use crate::object::{Kind, Object, Watch};
use crate::poll::queue::Queue;
use crate::poll::set::Set;
use crate::schedule::{Schedule, Wakes};
use crate::slab::{Key, Slab};
use crate::trace::{Recorder, What};

/// The wall clock at the beginning: 2026-11-27, 00:00 UTC.
const WALL_NS: i64 = 1_795_737_600_000_000_000;

/// After so many calls with `EINTR` in a row, one is not interrupted: callers repeat them at once.
const INTERRUPTS_MAX: u32 = 64;

#[derive(Debug)]
pub(crate) struct State {
    pub(super) faults: Faults,
    pub(super) choices: Choices,
    pub(super) schedule: Schedule,
    pub(super) recorder: Recorder,
    pub(super) wakes: Arc<Wakes>,
    pub(super) actors: Actors,
    /// The actor that runs. It owns new descriptors.
    pub(super) current: Option<ActorId>,
    pub(super) objects: Slab<Object>,
    pub(super) conns: Slab<Conn>,
    pub(super) pipes: Slab<Pipe>,
    pub(super) datagrams: Slab<Datagram>,
    pub(super) sets: Slab<Set>,
    pub(super) queues: Slab<Queue>,
    pub(super) network: Network,
    /// Requests of rings that a wake has made worth another attempt.
    pub(super) retries: Vec<(Key, Key)>,
    /// How many calls in a row were interrupted.
    interrupts: u32,
    pub(super) wall_ns: i64,
    pub(super) steps: u64,
    pub(super) steps_max: u64,
    pub(super) time_max_ns: u64,
}

impl State {
    pub(super) fn new(choices: Choices, faults: Faults) -> Self {
        Self {
            network: Network::new(faults.link),
            faults,
            choices,
            schedule: Schedule::default(),
            recorder: Recorder::default(),
            wakes: Arc::default(),
            actors: Actors::default(),
            current: None,
            objects: Slab::default(),
            conns: Slab::default(),
            pipes: Slab::default(),
            datagrams: Slab::default(),
            sets: Slab::default(),
            queues: Slab::default(),
            retries: Vec::new(),
            interrupts: 0,
            wall_ns: WALL_NS,
            steps: 0,
            steps_max: 50_000_000,
            time_max_ns: u64::MAX,
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.schedule.now_ns()
    }

    #[inline]
    pub(super) fn record(&mut self, what: What, fd: Option<Fd>, value: i64) {
        self.recorder.add(self.schedule.now_ns(), self.current, what, fd, value);
    }

    /// Records the outcome of a call that returns a number, and passes it on.
    pub(super) fn outcome(
        &mut self,
        what: What,
        fd: Fd,
        result: Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let value = match result {
            Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
            Err(error) => -i64::from(error.raw_os_error()),
        };
        self.record(what, Some(fd), value);
        result
    }

    /// Whether a fault happens now.
    #[inline]
    pub(super) fn fault(&mut self, fault: Fault, fd: Option<Fd>) -> bool {
        let mut happens = self.choices.flag(Track::Fault, fault.chance(&self.faults));
        if fault == Fault::Interrupted {
            happens &= self.interrupts < INTERRUPTS_MAX;
            self.interrupts = if happens { self.interrupts + 1 } else { 0 };
        }
        if happens {
            self.record(What::Fault, fd, fault as i64);
        }
        happens
    }

    /// The same for a call that ends with the error then.
    pub(super) fn fail(&mut self, fault: Fault, fd: Option<Fd>, error: Errno) -> Result<(), Errno> {
        if self.fault(fault, fd) { Err(error) } else { Ok(()) }
    }

    /// When a short delay from now ends.
    pub(super) fn after_delay(&mut self) -> u64 {
        let delay_ns = self.choices.below(Track::Time, self.faults.delay_max_ns);
        self.now_ns() + 1 + delay_ns
    }

    /// The object of a descriptor that is open.
    pub(super) fn object(&self, fd: Fd) -> Result<&Object, Errno> {
        let object = self.objects.get(fd.as_raw()).filter(|object| !object.is_closed);
        object.ok_or(Errno::BADF)
    }

    pub(super) fn object_mut(&mut self, fd: Fd) -> Result<&mut Object, Errno> {
        let object = self.objects.get_mut(fd.as_raw()).filter(|object| !object.is_closed);
        object.ok_or(Errno::BADF)
    }

    /// The connection of a stream.
    pub(super) fn conn_of(&self, fd: Fd) -> Result<(Key, usize), Errno> {
        match self.object(fd)?.kind {
            Kind::Conn { conn, side, .. } => Ok((conn, usize::from(side))),
            Kind::Socket(_) => Err(Errno::NOTCONN),
            _ => Err(Errno::NOTSOCK),
        }
    }

    /// Makes a descriptor, unless a fault forbids it.
    pub(super) fn open(&mut self, host: HostId, kind: Kind) -> Result<Fd, Errno> {
        self.fail(Fault::TooManyFiles, None, Errno::MFILE)?;
        Ok(self.open_surely(host, kind))
    }

    pub(super) fn open_surely(&mut self, host: HostId, kind: Kind) -> Fd {
        let owner = self.current;
        let watches = Vec::new();
        let object = Object { host, owner, watches, kind, holds: 0, is_closed: false };
        let fd = Fd::from_raw(self.objects.insert(object));
        self.record(What::Open, Some(fd), i64::from(host.0));
        fd
    }

    /// Tells everybody who watches an object: `bits` is what has become possible, 0 anything.
    pub(super) fn wake(&mut self, fd: Option<Fd>, bits: u32) {
        let Some(object) = fd.and_then(|fd| self.objects.get(fd.as_raw())) else { return };
        for watch in &object.watches {
            match *watch {
                Watch::Entry { set, entry } => {
                    let Some(set) = self.sets.get_mut(set) else { continue };
                    if set.link(entry, bits) {
                        self.actors.run(&mut self.schedule, set.actor);
                    }
                }
                Watch::Request { ring, request } => {
                    let queue = self.queues.get(ring);
                    let pending = queue.and_then(|queue| queue.pending.get(request));
                    let interest = pending.map_or(0, |pending| pending.request.interest());
                    if bits == 0 || bits & interest != 0 {
                        self.retries.push((ring, request));
                    }
                }
            }
        }
    }

    /// The readiness of an object, also of one that only requests hold.
    pub(super) fn mask(&mut self, fd: Fd) -> u32 {
        let Some(object) = self.objects.get(fd.as_raw()) else { return 0 };
        match &object.kind {
            Kind::Socket(socket) => socket.mask(),
            Kind::Conn { conn, side, .. } => {
                let side = usize::from(*side);
                let Some(conn) = self.conns.get_mut(*conn) else { return 0 };
                // tcp_poll() asks to be told of room where it finds none.
                conn.ends[side].wants_room |= !conn.is_writable(side);
                conn.mask(side)
            }
            Kind::Udp(udp) => udp.mask(),
            Kind::EventCount(count) => count.mask(),
            Kind::PipeReader(pipe) => self.pipes.get(*pipe).map_or(0, Pipe::reader_mask),
            Kind::PipeWriter(pipe) => self.pipes.get(*pipe).map_or(0, Pipe::writer_mask),
            Kind::Timer(timer) => timer.mask(),
            Kind::Signals(mask) => self.network.signals_mask(object.host, *mask),
        }
    }
}
