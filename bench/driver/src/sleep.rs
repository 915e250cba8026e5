//! The part `sleep` of the suite `timers`: a loop that sleeps for a single timer.
#![allow(unsafe_code, reason = "prctl(2) has no safe form in libc")]

use std::time::{Duration, Instant};

use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome};

/// A library that can sleep.
pub trait SleepSubject: Sized + 'static {
    /// Creates one on the named backend.
    ///
    /// # Errors
    ///
    /// If it does not have this backend, or if the kernel returns an error.
    fn new(backend: &str) -> Result<Self, Error>;

    /// Starts a timer and waits until it has fired.
    ///
    /// # Errors
    ///
    /// If the wait fails.
    fn sleep(&mut self, span: Duration) -> Result<(), Error>;
}

/// Sets up a case of this part.
pub(crate) fn prepare<S: SleepSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    let Case::LoneSleep { us, slack_ns } = *case else {
        return Err("no case of the part `timers/sleep`".into());
    };
    if idle {
        return Err("a sleep cannot be idle".into());
    }
    let subject = S::new(backend)?;
    Ok(Box::new(Sleeps { subject, span: Duration::from_micros(us), slack_ns }))
}

struct Sleeps<S> {
    subject: S,
    span: Duration,
    slack_ns: u64,
}

impl<S: SleepSubject> Measured for Sleeps<S> {
    /// The time of a slice is that after the deadlines.
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        set_slack(self.slack_ns)?;
        let mut ns = 0;
        let mut result = Ok(());
        counted(&mut || {
            for _ in 0..rounds {
                let started = Instant::now();
                if result.is_ok() {
                    result = self.subject.sleep(self.span);
                }
                match started.elapsed().checked_sub(self.span) {
                    Some(late) => ns += late.as_nanos() as u64,
                    None if result.is_ok() => result = Err("it woke up early".into()),
                    None => {}
                }
            }
        });
        // Zero stands for the slack that the thread began with.
        set_slack(0)?;
        result?;
        Ok(Outcome { ns, units: rounds, turns: rounds, ..Outcome::default() })
    }
}

/// Sets the timer slack of the calling thread. Zero stands for that which it began with.
pub(crate) fn set_slack(ns: u64) -> Result<(), Error> {
    // SAFETY: this operation takes a number and changes nothing but the thread's slack.
    let outcome = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns) };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}
