//! Turns until a stop, with or without a [`TurnDriver`].
//!
//! The driver is called right before the wait, after everything else that may run user code before
//! it: destructors left by a panic, and hooks. So whatever other code has handed to the driver, the
//! loop does not wait without having asked it.
//!
//! - If only events, remote calls and timers can be due, the driver is asked between two short
//!   turns ([`Reactor::ask_and_run`]).
//! - Otherwise it is asked within the turn with all steps ([`Reactor::drive`]).
//!
//! Both put the latch to sleep later, right before the wait. A wake that comes while the driver
//! runs is not lost.

use core::{mem, ops::ControlFlow};
use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    NextTurn, Reactor, Turn, TurnDriver, kernel::pending_work, runtime::run_loop::TurnGuard,
};

/// A driver for the turn with all steps, which is compiled once.
pub(super) type DriverCall<'d> = &'d mut dyn FnMut(Turn<'_>) -> NextTurn;

/// While it lives, requests queued with a ring wait for the next wait. Its drop submits those of
/// the last turn, also after a panic.
struct RunGuard<'r>(&'r mut Reactor);

impl<'r> RunGuard<'r> {
    fn new(reactor: &'r mut Reactor) -> Self {
        reactor.kernel.set_keeps_queue(true);
        Self(reactor)
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        self.0.kernel.set_keeps_queue(false);
    }
}

impl Reactor {
    /// Runs turns until [`Stop`](crate::Stop) or [`Turn::stop`] is called.
    ///
    /// # Errors
    /// The errors of [`run_once`](Self::run_once).
    ///
    /// # Panics
    /// With the panic of a handler or destructor, as [`run_once`](Self::run_once) does.
    pub fn run(&mut self) -> io::Result<()> {
        let running = RunGuard::new(self);
        while !running.0.stop.take() {
            running.0.run_once(None)?;
        }
        Ok(())
    }

    /// Runs turns as [`run`](Self::run) does, and calls `driver` at the end of every turn, right
    /// before the wait. It is also called before the first wait.
    ///
    /// Returns when the driver answers [`NextTurn::Stop`], or after a stop of any other kind. A
    /// stop that was requested before makes it return at once, without a call of the driver.
    ///
    /// ```
    /// use windlass::{NextTurn, Reactor, Turn};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut left = 3;
    /// let mut reactor = Reactor::new()?;
    /// reactor.run_with(&mut |turn: Turn<'_>| {
    ///     println!("turn {}", turn.stats().turns);
    ///     left -= 1;
    ///     if left == 0 { NextTurn::Stop } else { NextTurn::Again }
    /// })?;
    /// assert_eq!(left, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`run_once`](Self::run_once).
    ///
    /// # Panics
    /// With the panic of a handler, destructor or the driver. The reactor stays usable, and what
    /// the driver did before its panic takes effect (rule 8).
    #[inline]
    pub fn run_with(&mut self, driver: &mut (impl TurnDriver + ?Sized)) -> io::Result<()> {
        let running = RunGuard::new(self);
        while !running.0.stop.take() {
            running.0.ask_and_run(None, driver)?;
        }
        Ok(())
    }

    /// Calls `driver`, then waits and runs one turn as [`run_once`](Self::run_once) does, for at
    /// most `timeout`. Returns the number of dispatched events.
    ///
    /// If the driver answers [`NextTurn::Stop`] or requests a stop, there is no turn, and
    /// [`stop_requested`](Self::stop_requested) is true afterwards.
    ///
    /// # Errors
    /// The errors of [`run_once`](Self::run_once).
    ///
    /// # Panics
    /// As [`run_with`](Self::run_with).
    #[inline(always)]
    pub fn run_once_with(
        &mut self,
        timeout: impl Into<Option<Duration>>,
        driver: &mut (impl TurnDriver + ?Sized),
    ) -> io::Result<usize> {
        self.ask_and_run(timeout.into(), driver)
    }

    /// Asks the driver, then runs a turn.
    #[inline(always)]
    fn ask_and_run<D: TurnDriver + ?Sized>(
        &mut self,
        timeout: Option<Duration>,
        driver: &mut D,
    ) -> io::Result<usize> {
        #[cfg(feature = "sim")]
        let _host = self.at_host();
        if self.kernel.has(!pending_work::SHORT) {
            return self.run_driven_turn(timeout, Some(&mut |turn| driver.end_of_turn(turn)));
        }
        let mut next = self.ask(driver);
        if self.kernel.has(!pending_work::SHORT) {
            next = self.settle_driver(next);
        }
        match next {
            NextTurn::Wait => self.run_once(timeout),
            NextTurn::Again => self.run_once(Duration::ZERO),
            NextTurn::Until(deadline) => {
                let timeout = self.at_most_until(timeout, deadline);
                self.run_once(timeout)
            }
            NextTurn::Stop => {
                self.stop.ask();
                Ok(self.end_driven())
            }
        }
    }

    /// Calls the driver, between two turns.
    #[inline(always)]
    fn ask<D: TurnDriver + ?Sized>(&mut self, driver: &mut D) -> NextTurn {
        self.kernel.submit_if_due();
        self.kernel.set_calling(true);
        // For a panic of the driver.
        let guard = TurnGuard { reactor: self, counted: false };
        let next = driver.end_of_turn(Turn::new(guard.reactor));
        guard.reactor.kernel.set_calling(false);
        mem::forget(guard);
        next
    }

    /// Calls the driver of an [`Embedded`](crate::Embedded), after a turn. What it queues with a
    /// ring is submitted when the descriptors are updated.
    pub(super) fn ask_after_turn(&mut self, driver: &mut (impl TurnDriver + ?Sized)) -> NextTurn {
        let next = self.ask(driver);
        let next = self.settle_driver(next);
        if next == NextTurn::Stop {
            self.stop.ask();
        }
        next
    }

    /// Does what the driver has asked for and what must be done before a wait. Runs no user code.
    #[cold]
    #[inline(never)]
    fn settle_driver(&mut self, next: NextTurn) -> NextTurn {
        // Nothing would wake the wait. A stop by another handle wakes it.
        let next = match self.kernel.pending() & pending_work::STOP {
            0 => next,
            _ => NextTurn::Stop,
        };
        self.timing.end_turn();
        // Sends are queued with a ring only within a turn.
        self.kernel.set_calling(true);
        if self.kernel.has(pending_work::STREAMS) {
            self.streams.service(&mut self.kernel);
        }
        self.kernel.flush();
        self.kernel.set_calling(false);
        self.kernel.free_dead();
        self.recompute_pending();
        self.unless_destructors_wait(next)
    }

    /// Destructors wait if the driver has caught a panic. They run in the next turn, and may hand
    /// something to the driver, which then must be asked again before the loop waits.
    fn unless_destructors_wait(&self, next: NextTurn) -> NextTurn {
        if self.kernel.has_waiting() && next != NextTurn::Stop { NextTurn::Again } else { next }
    }

    /// No wait follows: submits what it would have submitted.
    #[cold]
    fn end_driven(&mut self) -> usize {
        self.kernel.submit_now();
        0
    }

    /// Calls the driver within a turn with all steps. Returns how long the wait may take. `Break`
    /// if the loop ends.
    pub(super) fn drive(
        &mut self,
        timeout: Option<Duration>,
        driver: DriverCall<'_>,
    ) -> ControlFlow<(), Option<Duration>> {
        let next = driver(Turn::new(self));
        self.timing.end_turn();
        match self.unless_destructors_wait(next) {
            NextTurn::Wait => ControlFlow::Continue(timeout),
            NextTurn::Again => ControlFlow::Continue(Some(Duration::ZERO)),
            NextTurn::Until(deadline) => {
                ControlFlow::Continue(self.at_most_until(timeout, deadline))
            }
            NextTurn::Stop => {
                self.stop.ask();
                ControlFlow::Break(())
            }
        }
    }

    /// The time until `deadline` by the reactor's clock, at most `timeout`.
    fn at_most_until(&mut self, timeout: Option<Duration>, deadline: Instant) -> Option<Duration> {
        let left = self.timing.until(deadline);
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }
}
