//! [`WriteTimeout`]: how long a connection waits for a peer that does not read its output.
//! [`WriteState`]: whether it waits.
//!
//! 1. A write waits until the socket has room, a flush until the peer has taken the output.
//! 2. Room in a buffer is no progress while a flush waits: only the end of the flush is.
//! 3. The stream notes that it waits, and its connection's task measures the time. So a write that
//!    does not wait reads no clock, and starts no timer.

use core::{
    cell::Cell,
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    future::Future as _,
    io::{self, ErrorKind},
    rc::Rc,
    time::Duration,
};

use windlass_task::time::{Sleep, now, sleep_until};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Moves,
    WriteWaits,
    FlushWaits,
    /// It has waited for too long. All operations fail.
    Expired,
}

/// Whether the output of a connection waits. Its stream and its task share it.
#[derive(Debug, Default)]
pub(crate) struct WriteState {
    state: Cell<State>,
    /// Whether the task measures the current wait.
    is_timed: Cell<bool>,
}

impl WriteState {
    /// The error of a stream whose peer does not read.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.state.get() != State::Expired {
            return Ok(());
        }
        let text = "the peer has not read its responses within the time of `write_timeout`";
        Err(io::Error::new(ErrorKind::TimedOut, text))
    }

    /// Notes the outcome of a write.
    #[inline]
    pub(crate) fn wrote<T>(&self, outcome: Poll<T>) -> Poll<T> {
        match (outcome.is_pending(), self.state.get()) {
            (true, State::Moves) => self.wait(State::WriteWaits),
            (false, State::WriteWaits) => self.state.set(State::Moves),
            _ => {}
        }
        outcome
    }

    /// Notes the outcome of a flush, or of the end of the output.
    #[inline]
    pub(crate) fn flushed<T>(&self, outcome: Poll<T>) -> Poll<T> {
        match (outcome.is_pending(), self.state.get()) {
            (true, State::Moves | State::WriteWaits) => self.wait(State::FlushWaits),
            (false, State::WriteWaits | State::FlushWaits) => self.state.set(State::Moves),
            _ => {}
        }
        outcome
    }

    fn wait(&self, state: State) {
        self.state.set(state);
        self.is_timed.set(false);
    }

    fn waits(&self) -> bool {
        matches!(self.state.get(), State::WriteWaits | State::FlushWaits)
    }
}

/// The time limit of an output.
pub(crate) struct WriteTimeout {
    output: Rc<WriteState>,
    timeout: Duration,
    /// Made when a write waits for the first time. It is kept until its time comes.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(crate) const fn new(output: Rc<WriteState>, timeout: Duration) -> Self {
        Self { output, timeout, sleep: None }
    }

    /// All operations of the stream fail from now on.
    pub(crate) fn expire(&self) {
        self.output.state.set(State::Expired);
    }

    /// Ready when the output has waited for too long. Call it after each poll of the connection.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.output.waits() && !self.output.is_timed.replace(true) {
            let deadline = now() + self.timeout;
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().get_mut().reset(deadline),
                None => self.sleep = Some(Box::pin(sleep_until(deadline))),
            }
        }
        let Some(sleep) = &mut self.sleep else { return Poll::Pending };
        if sleep.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.sleep = None;
        if self.output.waits() { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Poll<()> = Poll::Ready(());
    const PENDING: Poll<()> = Poll::Pending;

    #[test]
    fn room_in_a_buffer_does_not_end_the_wait_of_a_flush() {
        let output = WriteState::default();
        let _ = output.wrote(PENDING);
        assert!(output.waits());
        let _ = output.wrote(READY);
        assert!(!output.waits());
        let _ = output.flushed(PENDING);
        output.is_timed.set(true);
        let (_, _) = (output.wrote(READY), output.wrote(PENDING));
        assert!(output.waits() && output.is_timed.get(), "the time goes on");
        let _ = output.flushed(READY);
        assert!(!output.waits());
    }

    #[test]
    fn each_wait_is_measured_from_its_begin() {
        let output = WriteState::default();
        for operation in [WriteState::wrote::<()>, WriteState::flushed::<()>] {
            let _ = operation(&output, PENDING);
            assert!(!output.is_timed.replace(true));
            let _ = operation(&output, PENDING);
            assert!(output.is_timed.get(), "it is the same wait");
            let _ = operation(&output, READY);
        }
    }

    #[test]
    fn an_output_that_has_expired_stays_so() {
        let output = WriteState::default();
        assert!(output.check().is_ok());
        output.state.set(State::Expired);
        let (_, _) = (output.wrote(READY), output.flushed(READY));
        assert_eq!(output.check().unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(!output.waits());
    }
}
