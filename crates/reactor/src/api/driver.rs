//! [`TurnDriver`]: what runs at the end of every turn.

use std::time::Instant;

use crate::Turn;

/// What runs at the end of every turn, right before the wait: for run queues, async executors, and
/// queues of the program's own.
///
/// [`Reactor::run_with`](crate::Reactor::run_with) calls it. Its [`Turn`] does what a handler's
/// does: start timers, write to streams, defer closures, change and delete registrations, stop. All
/// of that takes effect before the wait. [`Turn::now`] reads the clock anew.
///
/// The driver is borrowed while the loop runs, so it need not be `'static`. A closure is a driver
/// if it names the type of its parameter: `|turn: Turn<'_>| NextTurn::Wait`.
///
/// ```
/// use std::{cell::RefCell, collections::VecDeque, rc::Rc, time::Duration};
/// use windlass::{NextTurn, Reactor, Turn, TurnDriver};
///
/// /// Jobs, of which each turn runs one.
/// #[derive(Clone, Default)]
/// struct Jobs(Rc<RefCell<VecDeque<&'static str>>>);
///
/// impl TurnDriver for Jobs {
///     fn end_of_turn(&mut self, mut turn: Turn<'_>) -> NextTurn {
///         match self.0.borrow_mut().pop_front() {
///             Some("stop") => NextTurn::Stop,
///             Some(job) => {
///                 println!("{job}");
///                 NextTurn::Again
///             }
///             None => NextTurn::Wait,
///         }
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let mut jobs = Jobs::default();
/// let queue = jobs.clone();
/// let mut reactor = Reactor::new()?;
/// reactor.after_with(Duration::from_millis(1), move |_| {
///     queue.0.borrow_mut().extend(["one job", "another job", "stop"]);
/// })?;
/// reactor.run_with(&mut jobs)
/// # }
/// ```
pub trait TurnDriver {
    /// Called at the end of every turn, and before the first wait. Says what comes next.
    fn end_of_turn(&mut self, turn: Turn<'_>) -> NextTurn;
}

impl<F: FnMut(Turn<'_>) -> NextTurn + ?Sized> TurnDriver for F {
    #[inline]
    fn end_of_turn(&mut self, turn: Turn<'_>) -> NextTurn {
        self(turn)
    }
}

/// The answer of a [`TurnDriver`]: how the loop waits for the next turn.
///
/// The wait also ends for events, timers, wakes and a stop. It does not begin if the driver has
/// deferred a closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextTurn {
    /// Wait without a limit.
    Wait,
    /// Wait until this time at the latest. The wait does not end before it without another reason.
    /// The time is that of the reactor's [`Clock`](crate::Clock), as for [`Turn::at`].
    Until(Instant),
    /// Do not wait. The next turn handles what is ready, and then calls the driver again.
    Again,
    /// End the loop, as [`Turn::stop`] does. There is no further turn.
    Stop,
}
