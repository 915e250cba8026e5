//! A simulation: reactors in virtual time, on simulated networks, with faults from a seed.
//!
//! A handler that runs on epoll runs here unchanged. Nothing of the machine reaches it: neither its
//! clock nor its network, and no order of threads. So a run is repeated exactly by its seed.
//!
//! ```
//! use std::{io::{Read, Write}, time::Duration};
//! use windlass::{sim::{Faults, Sim}, stream::{Input, Listener, Stream, StreamHandler}};
//!
//! struct Echo;
//! impl StreamHandler for Echo {
//!     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
//!         let _ = stream.reply(input, ..);
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let sim = Sim::new(1, Faults::calm());
//! let mut server = sim.reactor()?;
//! let listener = Listener::tcp("127.0.0.1:80".parse().unwrap())?;
//! listener.with_handler(|_| Some(Echo)).register_into(&mut server)?;
//! sim.spawn(server);
//!
//! let mut client = sim.connect("127.0.0.1:80".parse().unwrap())?;
//! client.write_all(b"hello")?;
//! let mut answer = [0; 5];
//! client.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! 1. *One thread.* A simulation lives on the thread that has made it. Its reactors, simulated
//!    threads and connections are *programs*, of which one runs at a time. The seed chooses the
//!    next one among those that can run. Threads of the system, raw descriptors and
//!    [`embed`](crate::Reactor::embed) have no place here: registering a descriptor is
//!    [`Unsupported`](crate::AddReason::Unsupported). [`Workers`](crate::stream::Workers) are
//!    programs of the simulation, and no threads.
//! 2. *Who runs a reactor.* The test runs it by [`run`](crate::Reactor::run),
//!    [`run_once`](crate::Reactor::run_once) and so on, and every wait in it lets the other
//!    programs run. Or the simulation does, after [`Sim::spawn`].
//! 3. *Time* is virtual and begins at zero. It moves only when no program can run, to the next
//!    deadline or delivery. A turn that does not wait and has nothing to do takes a microsecond, so
//!    that a program that polls sees time pass. [`Turn::now`](crate::Turn::now), timers and
//!    timeouts follow it. `Instant::now()` does not.
//! 4. *Hosts.* Each has an address, and 127.0.0.1 is the host itself. A reactor belongs to a host.
//!    An outgoing connection begins at the host of its reactor.
//! 5. *Objects without a reactor.* As long as a simulation exists, [`Listener`] and [`SignalSet`]
//!    that its thread makes are simulated; of several simulations the latest counts. A listener
//!    with an address of a host is at that host. Others are at the host whose program runs, or at
//!    that of the [`Sim`], and so is a reactor with [`Backend::Sim`](crate::Backend::Sim) and no
//!    host of its own. [`Sim::at`] says another one.
//! 6. *No descriptors.* Simulated sockets have none, and `as_fd` of a stream, listener or peer
//!    panics. [`Stream::release`](crate::stream::Stream::release) returns `None`.
//! 7. *Descriptors of handlers.* [`SimFd`] stands for an eventfd, a pipe, a datagram socket or a
//!    timerfd, and is registered as a descriptor is. So is a [`latch`](crate::latch).
//! 8. *The end.* If nothing can happen any more, a wait without a limit fails with `EDEADLK`. At
//!    the limits of the simulation it is `ETIME`. The [trace](Sim::trace) shows how it came to
//!    that.
//! 9. *Repeatable.* A run is determined by the seed and the faults, as long as the program draws no
//!    chance or time from elsewhere. Addresses and bytes of payload never reach the trace.
//!
//! [`Listener`]: crate::stream::Listener
//! [`SignalSet`]: crate::SignalSet

mod ends;

use core::fmt;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_sim::ActorId;
pub use windlass_sim::{
    Case, Check, Failure, Faults, Fd, Kernel, Link, SimAddr, SocketKind, Trace,
};

pub use crate::world::{Host, SimFd};
use crate::{
    BuildError, Builder, Reactor, TurnDriver,
    runtime::hosted::{Driven, Hosted, Outcome},
    world::{AtHost, Program, World},
};
#[doc(hidden)]
pub use crate::{
    api::ops::sim_id_of,
    runtime::hosted::Guest,
    world::{Next, SimId},
};
use ends::Waiter;
pub use ends::{SimListener, SimStream};

/// The address of the host where things are made unless another is said.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// The most entries of a trace, the last ones.
const TRACE_MAX: usize = 10_000;

/// Checks a property with many seeds: each with a simulation of its own. A panic is a failure,
/// which is shrunk and reported with its trace.
///
/// ```
/// use std::time::Duration;
/// use windlass::sim::{self, Faults};
///
/// # fn main() {
/// sim::check(|sim| {
///     let mut reactor = sim.reactor().unwrap();
///     let begin = sim.now();
///     let hour = Duration::from_secs(3600);
///     reactor
///         .after_with(hour, move |mut turn| {
///             assert!(turn.now() >= begin + hour);
///             turn.stop();
///         })
///         .unwrap();
///     reactor.run().unwrap();
/// })
/// .seeds(10)
/// .faults(Faults::hostile())
/// .run();
/// # }
/// ```
pub fn check<P: Fn(&mut Sim) + Sync>(property: P) -> Check<fn(&Kernel) -> Sim, P> {
    Check::new(Sim::of as fn(&Kernel) -> Sim, property)
}

/// A simulation. Its end ends the programs that it runs. See the [module](self).
#[derive(Debug)]
pub struct Sim {
    world: Rc<World>,
    host: Host,
    waiter: Rc<Waiter>,
}

impl Sim {
    /// A simulation without programs.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let kernel = Kernel::new(seed, faults);
        kernel.set_trace_max(TRACE_MAX);
        Self::of(&kernel)
    }

    /// A simulation on this kernel.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
        let world = World::new(kernel.clone(), ADDRESS);
        let host = Host::new(&world, ADDRESS);
        let waiter = Rc::new(Waiter::new(&host));
        Self { world, host, waiter }
    }

    /// The simulated kernel, for links, partitions and choices.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        self.world.kernel()
    }

    /// The host with this address.
    #[must_use]
    pub fn host(&self, address: IpAddr) -> Host {
        Host::new(&self.world, address)
    }

    /// A reactor at the simulation's own host, with the default settings. Other settings and hosts:
    /// [`Builder::sim`].
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    pub fn reactor(&self) -> Result<Reactor, BuildError> {
        self.builder().build()
    }

    /// Settings of a reactor at the simulation's own host.
    pub fn builder(&self) -> Builder {
        Reactor::builder().sim(&self.host)
    }

    /// Whether reactors that are made from now on have a ring: streams work by completion as with
    /// [`Backend::Uring`](crate::Backend::Uring), and descriptors by polls. Default: no ring,
    /// unless the environment has the variable `WINDLASS_SIM_RING`.
    ///
    /// The seed chooses the sizes of the queues and buffers that the [`Builder`] does not set. The
    /// faults of rings come with it.
    ///
    /// ```
    /// # use windlass::sim::{Faults, Sim};
    /// # fn main() -> Result<(), windlass::BuildError> {
    /// let sim = Sim::new(1, Faults::rough());
    /// sim.set_ring(sim.kernel().choose(2) == 1);
    /// let reactor = sim.reactor()?;
    /// # drop(reactor);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Without the feature `uring`, building a reactor with a ring fails.
    pub fn set_ring(&self, has_ring: bool) {
        self.world.set_rings(has_ring);
    }

    /// Runs a reactor as one of the programs, until it is stopped.
    ///
    /// # Panics
    /// If the reactor is not one of this simulation.
    pub fn spawn(&self, reactor: Reactor) -> Running {
        self.spawn_guest(Driven { reactor, driver: None })
    }

    /// The same with a driver, as [`Reactor::run_with`].
    ///
    /// # Panics
    /// If the reactor is not one of this simulation.
    pub fn spawn_with(&self, reactor: Reactor, driver: impl TurnDriver + 'static) -> Running {
        self.spawn_guest(Driven { reactor, driver: Some(Box::new(driver)) })
    }

    /// Runs a reactor that another crate drives.
    ///
    /// # Panics
    /// If the reactor is not one of this simulation.
    #[doc(hidden)]
    pub fn spawn_guest(&self, guest: impl Guest) -> Running {
        let mut hosted = Hosted::new(guest);
        let (host, actor) = hosted.enter(&self.world);
        let outcome = hosted.outcome();
        self.world.add(host, actor, Box::new(hosted));
        Running { outcome, kernel: self.kernel().clone(), actor }
    }

    /// What the closure makes without another host is made at this one: listeners, reactors with
    /// [`Backend::Sim`](crate::Backend::Sim), [`Workers`](crate::stream::Workers).
    pub fn at<T>(&self, host: &Host, make: impl FnOnce() -> T) -> T {
        let _at = AtHost::new(host);
        make()
    }

    /// A simulated thread at a host: a closure that is called again and again, in between of the
    /// other programs. It may use what a thread could:
    /// [`Remote::try_post`](crate::Remote::try_post), [`Stop`](crate::Stop), simulated descriptors.
    pub fn thread(&self, host: &Host, closure: impl FnMut() -> ThreadStep + 'static) {
        let actor = self.kernel().actor(host.id(), "thread");
        self.world.add(host.id(), actor, Box::new(Thread(closure)));
    }

    /// Connects to a TCP address from the simulation's own host, and waits until that is done. The
    /// end of the test, which no reactor serves.
    ///
    /// # Errors
    /// Those of connect(2), and [`EDEADLK`](self) if nobody answers.
    pub fn connect(&self, to: SocketAddr) -> io::Result<SimStream> {
        SimStream::connect(&self.waiter, &SimAddr::Inet(to))
    }

    /// Listens at a TCP address, for connections that the test serves.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn listen(&self, address: SocketAddr) -> io::Result<SimListener> {
        SimListener::listen(&self.waiter, &SimAddr::Inet(address))
    }

    /// An eventfd with this count.
    ///
    /// # Errors
    /// `EMFILE` as a fault.
    pub fn eventfd(&self, count: u64) -> io::Result<SimFd> {
        Ok(SimFd::new(&self.world, self.kernel().eventfd(self.host.id(), count, false)?))
    }

    /// A pipe: the end to read from, and the end to write to.
    ///
    /// # Errors
    /// `EMFILE` as a fault.
    pub fn pipe(&self) -> io::Result<(SimFd, SimFd)> {
        let (reader, writer) = self.kernel().pipe(self.host.id())?;
        Ok((SimFd::new(&self.world, reader), SimFd::new(&self.world, writer)))
    }

    /// A datagram socket of a host with this address.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn datagram(&self, host: &Host, address: SocketAddr) -> io::Result<SimFd> {
        let fd = self.kernel().socket(host.id(), SocketKind::Udp)?;
        let socket = SimFd::new(&self.world, fd);
        self.kernel().bind(fd, &SimAddr::Inet(address))?;
        Ok(socket)
    }

    /// Sends a signal to a host.
    pub fn raise(&self, host: &Host, signal: crate::Signal) {
        self.kernel().raise(host.id(), signal.as_raw().unsigned_abs());
    }

    /// Lets the programs run for so long, in virtual time.
    ///
    /// # Errors
    /// `ETIME` at the limits of the simulation.
    pub fn run_for(&self, span: Duration) -> io::Result<()> {
        self.waiter.sleep(span)
    }

    /// Lets the programs run until this is so. It is asked after each step.
    ///
    /// # Errors
    /// `EDEADLK` if nothing can happen any more and it is not so. `ETIME` at the limits of the
    /// simulation.
    pub fn run_until(&self, mut is_so: impl FnMut() -> bool) -> io::Result<()> {
        while !is_so() {
            self.world.step()?;
        }
        Ok(())
    }

    /// The virtual time, as [`Turn::now`](crate::Turn::now) has it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.world.now()
    }

    /// The virtual time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.kernel().now_ns())
    }

    /// What has happened so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.kernel().trace()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.world.end_all();
    }
}

/// A reactor that the simulation runs.
#[derive(Clone)]
pub struct Running {
    outcome: Rc<Outcome>,
    kernel: Kernel,
    actor: ActorId,
}

/// Without the kernel, which has addresses.
impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

impl Running {
    /// Whether its run has ended: by itself, by the fault "process end", or with the simulation.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.outcome.has_ended.get()
    }

    /// Whether the fault "process end" may end it between two turns. By default it may not. Its
    /// connections end as those of a process that is killed, and it is dropped.
    pub fn set_mortal(&self, is_mortal: bool) {
        self.kernel.set_mortal(self.actor, is_mortal);
    }

    /// The result of its run, once. `None` while it runs, and if it ended by the fault "process
    /// end" or with the simulation.
    #[must_use]
    pub fn take_result(&self) -> Option<io::Result<()>> {
        self.outcome.result.borrow_mut().take()
    }
}

/// What a simulated thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadStep {
    /// It goes on soon: other programs may run before.
    Again,
    /// It sleeps for so long.
    After(Duration),
    /// It has ended.
    End,
}

struct Thread<F>(F);

impl<F: FnMut() -> ThreadStep> Program for Thread<F> {
    fn step(&mut self) -> Next {
        match (self.0)() {
            ThreadStep::Again => Next::Soon,
            ThreadStep::After(span) => Next::After(span),
            ThreadStep::End => Next::Ends,
        }
    }
}
