//! Timers and deferred closures, as users name them.

use core::{fmt, marker::PhantomData};
use std::time::{Duration, Instant};

use crate::{
    Key, TimerError, TimerReason, Turn,
    api::{
        handler_fn::TimerFn,
        inline_call::{InlineClosure, InlineTimer, Once},
        listing::bounded_name,
        ops::{ReactorOps, Token},
        registrar::Registrar,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// One firing of a timer.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Reactor, Tick, Turn};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// reactor.every(Duration::from_millis(1), |tick: Tick, mut turn: Turn<'_>| {
///     println!("{} ticks were missed", tick.missed);
///     turn.cancel(tick.key).expect("it runs");
///     turn.stop();
/// })?;
/// reactor.run()
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The timer's key. Pass it to `cancel` or `reset`.
    pub key: Key,
    /// The time at which it was due. It does not fire earlier.
    pub deadline: Instant,
    /// How many deadlines of a periodic timer were skipped since it last fired, because the loop
    /// was late.
    pub missed: u64,
}

/// When a timer fires.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Key, MockReactor, Schedule, turn};
///
/// let mut mock = MockReactor::new();
/// mock.expect_start_timer().times(1).returning_st(|timer| {
///     assert_eq!(timer.schedule(), Schedule::After(Duration::from_secs(5)));
///     Ok(Key::from_bits(1))
/// });
/// assert!(turn!(mock).after(Duration::from_secs(5), || {}).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Once, this long after the turn's clock.
    After(Duration),
    /// Once, at this instant.
    At(Instant),
    /// Periodically. The first firing is one period after the turn's clock.
    Every(Duration),
}

impl Schedule {
    /// Sets the handler of a timer that is named before it is started. Without a name, call
    /// [`after`](Turn::after), [`at`](Turn::at) or [`every`](Turn::every).
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{Reactor, Schedule};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// let flush = Schedule::Every(Duration::from_secs(1)).with_handler(|| println!("flush"));
    /// println!("{flush:?}");
    /// flush.with_name("disk0 flush").register_into(&mut reactor)?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn with_handler<H>(self, handler: H) -> TimerRegistration<H> {
        TimerRegistration { schedule: self, handler: UnwindSafeDrop::new(handler), name: None }
    }
}

/// A timer that is not started yet: [`Schedule::with_handler`].
#[must_use]
pub struct TimerRegistration<H> {
    schedule: Schedule,
    handler: UnwindSafeDrop<H>,
    name: Option<Box<str>>,
}

impl<H> TimerRegistration<H> {
    /// Names the timer, as [`Turn::set_name`] does.
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = bounded_name(name);
        self
    }

    /// Starts the timer, as [`Turn::every`] and its siblings do.
    ///
    /// # Errors
    /// The handler is dropped.
    ///
    /// - [`LimitReached`](TimerReason::LimitReached): the reactor holds `timers_max` timers.
    /// - [`ZeroPeriod`](TimerReason::ZeroPeriod): the period is zero.
    pub fn register_into<G: Registrar, Args: 'static>(
        self,
        target: &mut G,
    ) -> Result<Key, TimerReason>
    where
        H: TimerFn<G::Ops, Args>,
    {
        let Self { schedule, handler, name } = self;
        target.with_ops(Token(()), |ops| {
            let timer = Timer::new(schedule, handler.into_inner());
            let key = ops.start_timer(timer).map_err(|e| e.reason)?;
            if let Some(name) = &name {
                ops.name_key(key, name, Token(())).expect("it was started just now");
            }
            Ok(key)
        })
    }
}

impl<H> fmt::Debug for TimerRegistration<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerRegistration")
            .field("schedule", &self.schedule)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a timer calls: a handler with its parameter list.
pub(crate) trait TimerCall<R: ReactorOps>: 'static {
    fn fire(&mut self, tick: Tick, turn: Turn<'_, R>);
}

/// A handler together with the type of its parameter list.
struct TimerHandler<H, Args>(UnwindSafeDrop<H>, PhantomData<fn(Args)>);

impl<R: ReactorOps, H: TimerFn<R, Args>, Args: 'static> TimerCall<R> for TimerHandler<H, Args> {
    fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        self.0.call(tick, turn);
    }
}

/// A type-erased timer, passed into a reactor or returned by it. A handler that captures at most
/// four words needs no heap allocation.
///
/// ```
/// use std::time::{Duration, Instant};
/// use windlass::{Key, MockReactor, Tick, Turn, turn};
///
/// let mut mock = MockReactor::new();
/// mock.expect_start_timer().times(1).returning_st(|mut timer| {
///     let key = Key::from_bits(1);
///     let mut later = MockReactor::new();
///     later.expect_stop().times(1).return_const(());
///     timer.fire(Tick { key, deadline: Instant::now(), missed: 0 }, turn!(later));
///     Ok(key)
/// });
/// assert!(turn!(mock).after_with(Duration::from_secs(5), |mut turn| turn.stop()).is_ok());
/// ```
#[doc(alias = "timerfd")]
pub struct Timer<R: ReactorOps> {
    pub(crate) schedule: Schedule,
    pub(crate) call: InlineTimer<R>,
}

impl<R: ReactorOps> Timer<R> {
    pub(crate) fn new<H: TimerFn<R, Args>, Args: 'static>(schedule: Schedule, handler: H) -> Self {
        Self::from_call(schedule, TimerHandler(UnwindSafeDrop::new(handler), PhantomData))
    }

    pub(crate) fn from_call<C: TimerCall<R>>(schedule: Schedule, call: C) -> Self {
        Self { schedule, call: InlineTimer::new(call) }
    }

    /// When the timer fires.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Fires the timer once, as a reactor would. For tests that got it from a mock.
    pub fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        self.call.fire(tick, turn);
    }
}

impl<R: ReactorOps> fmt::Debug for Timer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

/// The handler inside a timer that `start_timer` rejected.
pub(crate) fn typed_timer_error<R: ReactorOps, H: TimerFn<R, Args>, Args: 'static>(
    e: TimerError<Timer<R>>,
) -> TimerError<H> {
    let TimerError { reason, handler } = e;
    let Some(plain) = handler.call.into_inner::<TimerHandler<H, Args>>() else {
        panic!(
            "start_timer gave back another timer than it was given: a mock's expectation is wrong"
        );
    };
    TimerError { reason, handler: plain.0.into_inner() }
}

impl<R: ReactorOps, F: FnOnce(Turn<'_, R>) + 'static> Once<R> for UnwindSafeDrop<F> {
    fn once(self, turn: Turn<'_, R>) {
        self.into_inner()(turn);
    }
}

/// A type-erased closure to run at the end of a turn. A closure that captures at most four words
/// needs no heap allocation.
///
/// ```
/// use windlass::{MockReactor, turn};
///
/// let mut mock = MockReactor::new();
/// mock.expect_defer_boxed().times(1).returning_st(|closure| {
///     let mut later = MockReactor::new();
///     later.expect_stop().times(1).return_const(());
///     closure.run(turn!(later));
///     Ok(())
/// });
/// assert!(turn!(mock).defer(|mut turn| turn.stop()).is_ok());
/// ```
pub struct Deferred<R: ReactorOps>(InlineClosure<R>);

impl<R: ReactorOps> Deferred<R> {
    pub(crate) fn new<F: FnOnce(Turn<'_, R>) + 'static>(closure: F) -> Self {
        Self(InlineClosure::new(UnwindSafeDrop::new(closure)))
    }

    pub(crate) fn into_inner<F: FnOnce(Turn<'_, R>) + 'static>(self) -> F {
        match self.0.into_inner::<UnwindSafeDrop<F>>() {
            Some(closure) => closure.into_inner(),
            None => panic!(
                "defer_boxed returned another closure than it got: correct the mock's \
                 expectation"
            ),
        }
    }

    /// Runs the closure, as a reactor would at the end of the turn. For tests that got it from a
    /// mock.
    pub fn run(self, turn: Turn<'_, R>) {
        self.0.run(turn);
    }
}

impl<R: ReactorOps> fmt::Debug for Deferred<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}
