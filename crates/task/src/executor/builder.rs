//! The settings of an executor. Each has a bound and a default.

use std::time::Duration;

use windlass::{BuildError, Reactor};

use crate::{executor::Executor, task::shared::LocalLimits};

/// Settings of an [`Executor`]. Each method states its default.
///
/// ```
/// use windlass::{Backend, Reactor};
/// use windlass_task::Executor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut executor = Executor::builder()
///     .reactor(Reactor::builder().backend(Backend::Epoll))
///     .polls_per_turn(16)
///     .build()?;
/// assert_eq!(executor.block_on(async { 1 }), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct ExecutorBuilder {
    pub(super) reactor: windlass::Builder,
    pub(super) limits: LocalLimits,
    pub(super) timer_slack: Option<Duration>,
}

impl ExecutorBuilder {
    pub(super) fn new() -> Self {
        Self { reactor: Reactor::builder(), limits: LocalLimits::DEFAULT, timer_slack: None }
    }

    /// The settings of the reactor: backend, clock, limits. Default: those of
    /// [`Reactor::builder`].
    pub fn reactor(mut self, reactor: windlass::Builder) -> Self {
        self.reactor = reactor;
        self
    }

    /// Maximum polls of tasks between two looks at the reactor; at least 1. Default: 61.
    pub fn polls_per_turn(mut self, count: u32) -> Self {
        self.limits.polls_per_turn = count.max(1);
        self
    }

    /// Maximum operations of one poll, counted by
    /// [`poll_proceed`](crate::budget::poll_proceed); at least 1. Default: 32.
    pub fn operations_per_poll(mut self, count: u32) -> Self {
        self.limits.operations_per_poll = count.max(1);
        self
    }

    /// Maximum futures that a [`Spawner`](crate::Spawner) has queued; at least 1. Default: 1024.
    pub fn spawns_max(mut self, count: usize) -> Self {
        self.limits.spawns_max = count.max(1);
        self
    }

    /// Maximum registrations that wait for the executor's next turn; at least 1. They wait if
    /// sockets are made where there is no turn: in a handler of the reactor, or in the closure of
    /// [`with_turn`](crate::with_turn). One more is an error. Default: 1024.
    ///
    /// Changes and ends of registrations are never rejected. They are bounded by the number of
    /// registrations ([`subscribers_max`](windlass::Builder::subscribers_max)).
    pub fn queued_registrations_max(mut self, count: usize) -> Self {
        self.limits.queued_new_max = count.max(1);
        self
    }

    /// Maximum threads for the closures of [`spawn_blocking`](crate::spawn_blocking); at least 1.
    /// Default: 16.
    pub fn blocking_threads_max(mut self, count: usize) -> Self {
        self.limits.blocking.threads_max = count.max(1);
        self
    }

    /// Maximum closures of [`spawn_blocking`](crate::spawn_blocking) that wait for a thread. Zero
    /// accepts a closure only if a thread can take it at once. Default: 1024.
    pub fn blocking_queue_len_max(mut self, count: usize) -> Self {
        self.limits.blocking.queue_len_max = count;
        self
    }

    /// Measures each poll, for [`longest_poll`](crate::ExecutorStats::longest_poll). It reads the
    /// clock once for each poll and once for each turn with polls. Default: off.
    pub fn measure_polls(mut self, measures: bool) -> Self {
        self.limits.measures_polls = measures;
        self
    }

    /// How long a dropped [`TcpStream`](crate::net::TcpStream) waits for its peer to read more of
    /// the output, from the last progress on. Then the connection is reset: at the latest when
    /// twice this time has passed without progress. Zero resets at once. The time is that of the
    /// reactor's clock. Default: 30 s.
    ///
    /// Do not set it too short for slow peers: Linux announces room in a receive buffer that was
    /// full only when a sixteenth of it is free, up to 400 KB. A peer that reads 200 kB/s shows no
    /// progress for two seconds then.
    ///
    /// It matters on a ring alone, where a stream may have up to 64 KiB that its socket has not
    /// accepted. On other backends the kernel has all of the output, and limits the time
    /// (`tcp_orphan_retries`, tcp(7)).
    pub fn drop_timeout(mut self, longest: Duration) -> Self {
        self.limits.drop_timeout = longest;
        self
    }

    /// How long the executor's end waits for the sockets to accept the output of all
    /// [`TcpStream`](crate::net::TcpStream)s, by the system's clock. So
    /// [`block_on`](crate::block_on()) and the drop of an [`Executor`] may take that much longer,
    /// if peers do not read. Streams with output that is left then are reset, so that no peer takes
    /// it for complete. One that is kept elsewhere is not: [`detach`] sends its output in another
    /// executor. Zero does not wait, and `Duration::MAX` has no limit. Default: 2 s.
    ///
    /// A stream that its drop resets is not waited for: one whose `SO_LINGER` is zero, or any if
    /// `drop_timeout` is zero.
    ///
    /// It matters on a ring alone: see [`drop_timeout`](Self::drop_timeout). A process that ends
    /// without the executor's end, as by [`std::process::exit`], sends none of this output, and the
    /// kernel closes its connections.
    ///
    /// [`detach`]: crate::net::TcpStream::detach
    pub fn drain_timeout(mut self, longest: Duration) -> Self {
        self.limits.drain_timeout = longest;
        self
    }

    /// The timer slack of the executor's thread: how much later than requested the kernel may end
    /// a wait. See [`windlass::Builder::timer_slack`]. Default: unchanged, which on most systems
    /// means 50 microseconds.
    pub fn timer_slack(mut self, slack: Duration) -> Self {
        self.timer_slack = Some(slack);
        self
    }

    /// Runs the executor with a clock that stands still, for tests. Default: off.
    ///
    /// [`time::now`](crate::time::now()) reads this clock. It moves in two ways:
    ///
    /// - [`time::advance`](crate::time::advance()) moves it.
    /// - When no task can run and no event is ready, it moves to the deadline of the next
    ///   [`Sleep`](crate::time::Sleep). So sleeps take no time. If there are descriptors, it moves
    ///   after a millisecond of real time: the kernel may still deliver what a socket has sent.
    ///
    /// Timers that are made with the reactor's turn do not move it. One of them is the deadline of
    /// [`WorkersHandle::stop_within`](crate::WorkersHandle::stop_within). Other threads and
    /// processes are not waited for before it moves, and neither are closures of
    /// [`spawn_blocking`](crate::spawn_blocking()). The clock and the resolution of timers in the
    /// [`reactor`](Self::reactor)'s settings are replaced. It has no effect in a simulation, whose
    /// clock does the same.
    pub fn paused_clock(mut self, is_paused: bool) -> Self {
        self.limits.has_paused_clock = is_paused;
        self
    }

    /// Builds the executor and its reactor.
    ///
    /// # Errors
    /// That of [`windlass::Builder::build`].
    pub fn build(self) -> Result<Executor, BuildError> {
        Executor::from_builder(self)
    }
}
