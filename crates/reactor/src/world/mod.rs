//! The world of a simulation: the simulated kernel, its hosts, and the programs that it runs.
//!
//! 1. Everything of a world stays on one thread, and one thing runs at a time. The scheduler of the
//!    simulated kernel decides which. A program is taken out of the table while it runs, so its
//!    code may use the world, but not wait in it: a nested wait could never end.
//! 2. Virtual time moves only while the world looks for the next program.
//! 3. The owner of a simulated object names its world by a number ([`SimObject`]). Programs refer
//!    to their world and are owned by it, so [`World::end_all`] ends them.

mod object;
mod rest;

use core::{
    any::{Any, TypeId},
    cell::{Cell, RefCell},
};
use std::{
    collections::BTreeMap,
    fmt, io,
    net::IpAddr,
    rc::{Rc, Weak},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    time::{Duration, Instant},
};

use rustix::io::Errno;
use windlass_sim::{ActorId, Fd, HostId, Kernel as SimKernel, SimAddr, SocketKind, Step};

use crate::util::unwind_safe_drop::Panics;

pub use object::SimFd;
pub use object::SimId;
pub(crate) use object::{SimObject, errno};

/// The virtual time of a wait that may not block and finds nothing, and of a turn after which the
/// next one follows at once.
pub(crate) const STEP_NS: u64 = 1_000;

thread_local! {
    /// The simulations of this thread, the latest last.
    static WORLDS: RefCell<Vec<Weak<World>>> = const { RefCell::new(Vec::new()) };
}

/// What the world runs: a reactor, or a simulated thread.
pub(crate) trait Program {
    /// Runs one step, which does not block.
    fn step(&mut self) -> Next;
}

/// When a program runs again, unless something wakes it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After this time.
    After(Duration),
    /// After a step of time, in which others may run.
    Soon,
    /// Only if something becomes ready.
    Waits,
    /// It is dropped.
    Ends,
}

/// A variable of the environment, with which reactors have rings unless the program says otherwise.
const HAS_RINGS: &str = "WINDLASS_SIM_RING";

/// See [`Host::set_context`].
type Leave = fn() -> Box<dyn Any>;

/// A program and its host.
type Placed = (HostId, Box<dyn Program>);

pub(crate) struct World {
    id: u64,
    kernel: SimKernel,
    /// Virtual time zero.
    epoch: Instant,
    /// Where things are made whose host is not said: that of the program that runs.
    host: Cell<HostId>,
    programs: RefCell<BTreeMap<ActorId, Placed>>,
    /// A program runs, so the world cannot.
    is_running: Cell<bool>,
    /// See [`Sim::set_ring`](crate::sim::Sim::set_ring).
    has_rings: Cell<bool>,
    /// The simulation has ended. Objects of it may be there still.
    has_ended: Cell<bool>,
    /// See [`Host::set_context`].
    leave: Cell<Option<Leave>>,
    /// See [`Host::shared`]. Its order is not used.
    shared: RefCell<BTreeMap<(HostId, TypeId), Rc<dyn Any>>>,
}

impl World {
    /// A world whose things are made at `address` unless another host is said.
    pub(crate) fn new(kernel: SimKernel, address: IpAddr) -> Rc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let host = kernel.host(address);
        let world = Rc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            kernel,
            epoch: Instant::now(),
            host: Cell::new(host),
            programs: RefCell::default(),
            is_running: Cell::new(false),
            has_rings: Cell::new(std::env::var_os(HAS_RINGS).is_some()),
            has_ended: Cell::new(false),
            leave: Cell::new(None),
            shared: RefCell::default(),
        });
        WORLDS.with_borrow_mut(|worlds| {
            worlds.retain(|world| world.strong_count() > 0);
            worlds.push(Rc::downgrade(&world));
        });
        world
    }

    /// The latest simulation of this thread that still exists. `None` at the end of the thread too.
    pub(crate) fn current() -> Option<Rc<Self>> {
        let found = WORLDS.try_with(|worlds| {
            let worlds = worlds.borrow();
            worlds.iter().rev().filter_map(Weak::upgrade).find(|world| !world.has_ended.get())
        });
        found.ok().flatten()
    }

    /// A simulation of this thread. `None` once it is gone, and at the end of the thread.
    fn find(id: u64) -> Option<Rc<Self>> {
        WORLDS
            .try_with(|worlds| {
                let worlds = worlds.borrow();
                worlds.iter().rev().filter_map(Weak::upgrade).find(|world| world.id == id)
            })
            .ok()
            .flatten()
    }

    fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn kernel(&self) -> &SimKernel {
        &self.kernel
    }

    pub(crate) fn has_rings(&self) -> bool {
        self.has_rings.get()
    }

    pub(crate) fn set_rings(&self, has_rings: bool) {
        self.has_rings.set(has_rings);
    }

    pub(crate) fn now(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.kernel.now_ns())
    }

    /// A later moment in the kernel's count.
    pub(crate) fn after(&self, left: Duration) -> u64 {
        let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        self.kernel.now_ns().saturating_add(left)
    }

    /// A listening socket: at the host that has the address, or at that of the running program.
    pub(crate) fn listen(
        &self,
        address: &SimAddr,
        backlog: i32,
        reuses_port: bool,
    ) -> Result<SimObject, Errno> {
        let (host, kind) = match address {
            SimAddr::Inet(address) => (self.host_of(address.ip()), SocketKind::Tcp),
            SimAddr::Unix(_) => (self.host.get(), SocketKind::Unix),
        };
        let fd = self.kernel.socket(host, kind).map_err(errno)?;
        let socket = SimObject::new(self, fd);
        self.kernel.set_reuse_port(fd, reuses_port).map_err(errno)?;
        self.kernel.bind(fd, address).map_err(errno)?;
        self.kernel.listen(fd, backlog.max(0).unsigned_abs()).map_err(errno)?;
        Ok(socket)
    }

    /// A signalfd for these signals, at the host of the running program.
    pub(crate) fn signalfd(&self, signals: u64) -> Result<SimFd, Errno> {
        let fd = self.kernel.signalfd(self.host.get(), signals).map_err(errno)?;
        Ok(SimFd::new(self, fd))
    }

    /// The eventfd of a latch.
    pub(crate) fn eventfd(&self) -> Result<SimObject, Errno> {
        let fd = self.kernel.eventfd(self.host.get(), 0, false).map_err(errno)?;
        Ok(SimObject::new(self, fd))
    }

    fn host_of(&self, address: IpAddr) -> HostId {
        if address.is_unspecified() || address.is_loopback() {
            self.host.get()
        } else {
            self.kernel.host(address)
        }
    }

    /// Gives the world a program, which it runs as this actor.
    pub(crate) fn add(&self, host: HostId, actor: ActorId, program: Box<dyn Program>) {
        self.programs.borrow_mut().insert(actor, (host, program));
        self.kernel.ready(actor);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Ends all programs, when the simulation ends.
    pub(crate) fn end_all(&self) {
        self.has_ended.set(true);
        let mut panics = Panics::default();
        loop {
            // Their destructors are user code.
            let next = self.programs.borrow_mut().pop_first();
            let Some((_, program)) = next else { break };
            panics.catch(|| drop(program));
        }
        panics.resume();
    }

    /// Lets the world run until the actor is to run: something of it is ready, or virtual time has
    /// reached `until`.
    ///
    /// # Errors
    /// See [`step`](Self::step).
    pub(crate) fn wait(
        &self,
        host: &Host,
        actor: ActorId,
        until: Option<u64>,
    ) -> Result<(), Errno> {
        /// Also if a program panics.
        struct Suspend<'w>(&'w World, ActorId, HostId);
        impl Drop for Suspend<'_> {
            fn drop(&mut self) {
                self.0.kernel.suspend(self.1);
                self.0.host.set(self.2);
            }
        }

        // Before anything changes: the actor may be one that waits already.
        self.check_may_wait()?;
        let suspend = Suspend(self, actor, host.id);
        self.kernel.park(actor, until);
        while self.step()? != Some(actor) {}
        drop(suspend);
        Ok(())
    }

    fn check_may_wait(&self) -> Result<(), Errno> {
        if self.is_running.get() {
            self.say("a program that the simulation runs has tried to wait");
            return Err(Errno::DEADLK);
        }
        Ok(())
    }

    /// Runs one step of a program of the world's own. Returns the actor if it is another's turn.
    ///
    /// # Errors
    /// `EDEADLK` if nothing can happen any more, and inside of a program. `ETIME` at the limit of
    /// the simulation.
    pub(crate) fn step(&self) -> Result<Option<ActorId>, Errno> {
        self.check_may_wait()?;
        match self.kernel.step() {
            Step::Run(actor) if self.run(actor) => Ok(None),
            Step::Run(actor) => {
                self.kernel.suspend(actor);
                Ok(Some(actor))
            }
            Step::End(actor) => {
                let program = self.programs.borrow_mut().remove(&actor);
                drop(program);
                Ok(None)
            }
            Step::Quiet => {
                self.say("nothing can happen any more");
                Err(Errno::DEADLK)
            }
            // `Step::Limit`.
            _ => {
                self.say("the limit of the simulation is reached");
                Err(Errno::TIME)
            }
        }
    }

    /// Writes to the trace.
    fn say(&self, text: &str) {
        SimKernel::note(&self.kernel, text, 0);
    }

    /// Runs one step of the actor's program. False if it has none.
    fn run(&self, actor: ActorId) -> bool {
        /// A program that panics runs again, as a reactor does (rule 8).
        struct Running<'w> {
            world: &'w World,
            /// The host of the program that ran before.
            before: HostId,
            host: HostId,
            actor: ActorId,
            program: Option<Box<dyn Program>>,
        }
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.world.is_running.set(false);
                self.world.host.set(self.before);
                // After the end of the simulation, in a step, the program ends here.
                let goes_on = !self.world.has_ended.get();
                if let Some(program) = self.program.take_if(|_| goes_on) {
                    let programs = &self.world.programs;
                    programs.borrow_mut().insert(self.actor, (self.host, program));
                }
                if std::thread::panicking() {
                    self.world.kernel.ready(self.actor);
                }
            }
        }

        let found = self.programs.borrow_mut().remove(&actor);
        let Some((host, program)) = found else { return false };
        let _context = self.leave.get().map(|leave| leave());
        self.is_running.set(true);
        let before = self.host.replace(host);
        let mut running = Running { world: self, before, host, actor, program: Some(program) };
        let next = running.program.as_mut().map_or(Next::Ends, |program| program.step());
        let ended = if matches!(next, Next::Ends) { running.program.take() } else { None };
        drop(running);
        match next {
            Next::After(left) => self.kernel.park(actor, Some(self.after(left))),
            Next::Soon => {
                self.kernel.park(actor, Some(self.kernel.now_ns().saturating_add(STEP_NS)));
            }
            Next::Waits => self.kernel.park(actor, None),
            Next::Ends => {
                self.kernel.suspend(actor);
                // Drops what it owns, whose destructors may use the world.
                drop(ended);
            }
        }
        true
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.kernel.now_ns()).finish_non_exhaustive()
    }
}

/// Makes a host the one where things are made. Its drop restores the former one.
pub(crate) struct AtHost {
    world: Rc<World>,
    before: HostId,
}

impl AtHost {
    pub(crate) fn new(host: &Host) -> Self {
        let world = Rc::clone(&host.world);
        let before = world.host.replace(host.id);
        Self { world, before }
    }
}

impl Drop for AtHost {
    fn drop(&mut self) {
        self.world.host.set(self.before);
    }
}

/// The results of programs, for an owner that may be on any thread.
pub(crate) struct Results {
    world: u64,
    results: Mutex<Receiver<io::Result<()>>>,
}

impl Results {
    /// Also returns where the programs send their results. A program that drops that has ended.
    pub(crate) fn new(world: &World) -> (Sender<io::Result<()>>, Self) {
        let (sender, results) = mpsc::channel();
        (sender, Self { world: world.id, results: Mutex::new(results) })
    }

    /// Lets the world run until all programs have ended. Returns the first error.
    ///
    /// # Errors
    /// Also those of [`World::step`], and `EBADF` on another thread.
    pub(crate) fn join(self) -> io::Result<()> {
        let results = self.results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Ok(());
        loop {
            match results.try_recv() {
                Ok(result) => outcome = outcome.and(result),
                Err(TryRecvError::Disconnected) => return outcome,
                Err(TryRecvError::Empty) => {
                    World::find(self.world).ok_or(Errno::BADF)?.step()?;
                }
            }
        }
    }
}

/// A machine of a simulation, with an address of its own. Made by
/// [`Sim::host`](crate::sim::Sim::host).
#[derive(Clone, Debug)]
pub struct Host {
    world: Rc<World>,
    id: HostId,
}

impl Host {
    pub(crate) fn new(world: &Rc<World>, address: IpAddr) -> Self {
        Self { world: Rc::clone(world), id: world.kernel.host(address) }
    }

    /// Where things are made whose host is not said, in the latest simulation of this thread.
    pub(crate) fn current() -> Option<Self> {
        let world = World::current()?;
        let id = world.host.get();
        Some(Self { world, id })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.world.kernel.address_of(self.id)
    }

    /// Its name in the kernel, for links and partitions.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.id
    }

    pub(crate) fn world(&self) -> &Rc<World> {
        &self.world
    }

    /// The simulated kernel.
    #[must_use]
    pub fn kernel(&self) -> &SimKernel {
        &self.world.kernel
    }

    /// Becomes the owner of an object that a call of the kernel has made.
    #[must_use]
    pub fn adopt(&self, fd: Fd) -> SimFd {
        SimFd::new(&self.world, fd)
    }

    /// The value of this type that all programs of the host share, as those of a process share a
    /// static.
    #[doc(hidden)]
    #[must_use]
    pub fn shared<T: Default + 'static>(&self) -> Rc<T> {
        let of = (self.id, TypeId::of::<T>());
        let found = self.world.shared.borrow().get(&of).cloned();
        if let Some(value) = found.and_then(|value| value.downcast().ok()) {
            return value;
        }
        let value = Rc::<T>::default();
        self.world.shared.borrow_mut().insert(of, Rc::clone(&value) as _);
        value
    }

    /// Calls this before each program runs, and drops the result after it: for a crate that notes
    /// in a variable of the thread what runs there.
    #[doc(hidden)]
    pub fn set_context(&self, leave: Leave) {
        self.world.leave.set(Some(leave));
    }
}
