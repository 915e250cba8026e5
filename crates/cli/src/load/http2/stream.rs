//! A stream: its messages, the faults that end it, and what both kinds of it share.

use std::{rc::Rc, time::Duration};

use super::{Shared, late};
use crate::load::{
    exchange::Exchange,
    fan_out::Role,
    fault::{self, Fault, FaultKind},
    plan::nanos,
    schedule::{MessageSequence, Nanos},
};

/// A stream of a connection.
pub(super) struct LoadStream {
    pub(super) shared: Rc<Shared>,
    pub(super) sequence: MessageSequence,
    role: Role,
    target: usize,
    /// Time of the last progress, from which timeouts count.
    pub(super) since: Nanos,
    /// It sends nothing more, because the measured time has ended.
    is_stopped: bool,
    /// It has ended, well or not.
    is_over: bool,
}

impl LoadStream {
    pub(super) fn new(shared: &Rc<Shared>, number: u32, target: usize) -> Self {
        let plan = &shared.plan;
        let depth = plan.args.depth_of_stream().into();
        Self {
            sequence: MessageSequence::new(number.into(), depth, plan.quota(number)),
            role: Role::Echo,
            shared: Rc::clone(shared),
            target,
            since: 0,
            is_stopped: false,
            is_over: false,
        }
    }

    /// Calls a function with the exchange at this moment.
    pub(super) fn exchange<T>(
        &mut self,
        now: Nanos,
        act: impl FnOnce(&mut Exchange<'_>) -> T,
    ) -> T {
        let mut state = self.shared.exchanges[self.target].borrow_mut();
        act(&mut Exchange::new(&mut self.sequence, &mut self.role, &mut state, now))
    }

    /// Returns the number of a message to send now, if there is one, and counts it as sent.
    pub(super) fn next(&mut self, now: Nanos) -> Option<u64> {
        let number = self.sequence.sent();
        self.exchange(now, |exchange| exchange.next_is_due()).then_some(number)
    }

    /// Returns whether nothing more will be sent. Call it when nothing is due.
    pub(super) fn is_at_end(&mut self, now: Nanos) -> bool {
        let mut state = self.shared.exchanges[self.target].borrow_mut();
        if self.shared.ended.get().is_some() && !self.is_stopped {
            self.is_stopped = true;
            if let Some(unsent) = self.sequence.stop(&state.schedule) {
                state.results.unsent(unsent);
            }
        }
        self.sequence.is_over(&state.schedule, now)
    }

    /// Returns when the next message is due, if a fixed rate says so and there is room for it.
    pub(super) fn next_moment(&self) -> Option<Nanos> {
        self.sequence.next_moment(&self.shared.exchanges[self.target].borrow().schedule)
    }

    /// Returns the latest moment at which the next answer, or the last one, must have come.
    pub(super) fn deadline(&self) -> Nanos {
        let args = &self.shared.plan.args;
        let last = self.shared.ended.get().map(|ended| ended + nanos(args.answer_timeout()));
        (self.since + nanos(args.timeout)).min(last.unwrap_or(Nanos::MAX))
    }

    /// Checks the time limits of answers.
    pub(super) fn check_timeout(&self, now: Nanos) -> Result<(), Fault> {
        if self.sequence.outstanding() == 0 || now < self.deadline() {
            return Ok(());
        }
        let args = &self.shared.plan.args;
        if now >= self.since + nanos(args.timeout) {
            return Err(self.lost(args.timeout));
        }
        let missing = fault::counted(self.sequence.outstanding() as usize, "answer");
        let seconds = args.answer_timeout().as_secs_f64();
        let text = format!(
            "{missing} did not come within {seconds} s of the end of the run; --answer-timeout \
             sets the limit"
        );
        Err(Fault::new(FaultKind::Lost, text))
    }

    pub(super) fn lost(&self, limit: Duration) -> Fault {
        let due = self.sequence.answered() + 1;
        late(FaultKind::Lost, &format!("answer to message {due}"), limit)
    }

    /// Ends it.
    pub(super) fn end(mut self, ended: Result<(), Fault>) {
        self.is_over = true;
        let Err(fault) = ended else { return };
        // A server that does not echo affects all connections, and is reported once.
        if fault.kind == FaultKind::NotAnEcho && self.shared.run_state.give_up() {
            return;
        }
        let (number, unanswered) = (self.sequence.connection(), self.sequence.outstanding());
        self.shared.exchanges[self.target].borrow_mut().results.fault(number, fault, unanswered);
    }

    /// Ends it before it was open.
    pub(super) fn fail_to_open(self, fault: Fault) {
        self.shared.run_state.open_failed();
        self.end(Err(fault));
    }
}

impl Drop for LoadStream {
    fn drop(&mut self) {
        if !self.is_over {
            let unanswered = self.sequence.outstanding();
            self.shared.exchanges[self.target].borrow_mut().results.unanswered += unanswered;
        }
    }
}
