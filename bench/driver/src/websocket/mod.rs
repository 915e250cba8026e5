//! The suite `engine`: a server's end of a WebSocket connection that echoes, in memory.

mod echo;
mod frames;
mod idle;
mod subject;
mod wire;

pub use subject::{Copying, EngineSubject, READ_MAX, ReadBuffer};
pub use wire::Wire;

use crate::measured::{Error, Measured};
use crate::protocol::Case;
use echo::EchoRounds;
use idle::IdleEngines;

/// Sets up a case of this suite.
pub(crate) fn prepare<S: EngineSubject>(
    case: &Case,
    _backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    Ok(match *case {
        Case::Echo { .. } if idle => Box::new(EchoRounds::<Copying>::new(case, false)?),
        Case::Echo { .. } => Box::new(EchoRounds::<S>::new(case, true)?),
        Case::IdleEngine { engines } => Box::new(IdleEngines::<S>::new(engines)),
        _ => return Err("no case of the suite `engine`".into()),
    })
}

/// Sets up a case for a program that only copies.
pub(crate) fn prepare_copying(
    case: &Case,
    _backend: &str,
    _idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    match case {
        Case::Echo { .. } => Ok(Box::new(EchoRounds::<Copying>::new(case, false)?)),
        _ => Err(crate::measured::Unsupported("a copy has no engine").into()),
    }
}
