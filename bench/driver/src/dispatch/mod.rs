//! The suite `dispatch`: events through a reactor, registering and deleting, and the memory of a
//! registration.

mod churn;
mod memory;
mod ready;
mod rounds;
mod subject;

use crate::measured::{Error, Measured};
use crate::protocol::Case;
use churn::RegisterDelete;
use memory::Memory;
use rounds::{Rounds, RoundsPlan};

use ready::Waiting;
pub(crate) use ready::{Ready, TakeTurn};
pub(crate) use subject::NoTurns;
pub use subject::Subject;

/// Sets up a case of this suite.
pub(crate) fn prepare<S: Subject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    if let Case::StaysReady { registered } = *case {
        return Ok(if idle {
            Box::new(Ready::<NoTurns, Waiting>::new(registered, backend, idle)?)
        } else {
            Box::new(Ready::<S, Waiting>::new(registered, backend, idle)?)
        });
    }
    if idle {
        return match RoundsPlan::of(case) {
            Some(plan) => Ok(Box::new(Rounds::<NoTurns>::new(plan, backend, true)?)),
            None => Err("only cases with turns can be idle".into()),
        };
    }
    Ok(match *case {
        Case::RegisterDelete { registered } => {
            Box::new(RegisterDelete::<S>::new(registered, backend)?)
        }
        Case::RegistrationMemory { registered } => Box::new(Memory::<S>::new(registered, backend)),
        _ => {
            let plan = RoundsPlan::of(case).ok_or("no case of the suite `dispatch`")?;
            Box::new(Rounds::<S>::new(plan, backend, false)?)
        }
    })
}
