//! The suite `wakeup`: other threads wake a loop, run closures on it, and send items to it.

mod call;
mod channel;
mod post;
mod round_trip;
mod running;
mod sleeping;
mod subject;

use std::time::Duration;

use crate::measured::{Error, Measured};
use crate::protocol::Case;
use crate::threads;

pub use call::{CallSubject, Caller, answer};
pub use post::{Item, QueueSender, QueueSubject, Sink};
pub(crate) use round_trip::RoundTrip;
pub use subject::{LoopSubject, Waker};

/// Sets up a case that wakes loops.
pub(crate) fn prepare_wake<L: LoopSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    check(idle)?;
    let spin = match *case {
        Case::RoundTrip { spin_us } => Duration::from_micros(spin_us),
        _ => Duration::ZERO,
    };
    // An error should occur now, and not on a thread during a slice.
    drop(L::new(backend, spin)?);
    Ok(match *case {
        Case::WakeRunning { awake } => Box::new(running::WakeRunning::<L>::new(awake, backend)),
        Case::WakeSleeping => Box::new(sleeping::WakeSleeping::<L>::new(backend)),
        Case::RoundTrip { .. } => Box::new(RoundTrip::<L>::new(spin, backend)),
        _ => return Err("no case of `wakeup/wake`".into()),
    })
}

/// Sets up a case that runs closures on a loop.
pub(crate) fn prepare_call<C: CallSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    check(idle)?;
    match *case {
        Case::Call { bound, spin_us } => {
            Ok(Box::new(call::Call::<C>::new(bound, Duration::from_micros(spin_us), backend)?))
        }
        _ => Err("no case of `wakeup/call`".into()),
    }
}

/// Sets up a case that sends items.
pub(crate) fn prepare_post<Q: QueueSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    check(idle)?;
    match *case {
        Case::Post { senders, bound } => {
            Ok(Box::new(post::Post::<Q>::new(senders, bound, backend)?))
        }
        _ => Err("no case of `wakeup/post`".into()),
    }
}

fn check(idle: bool) -> Result<(), Error> {
    if idle {
        return Err("no case of the suite `wakeup` can be idle".into());
    }
    threads::check_processors()
}
