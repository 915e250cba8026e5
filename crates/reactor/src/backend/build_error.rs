//! Why a reactor could not be built.

use core::fmt;
use std::io;

use crate::{Errno, NapiError, RingError, error::plain_error};

/// The builder setting that a [`BuildError`] refers to.
///
/// ```
/// use windlass::{BuildError, Capacity, Reactor};
///
/// if let Err(BuildError::ZeroCapacity(setting)) = Reactor::builder().remote_max(0).build() {
///     assert_eq!(setting, Capacity::RemoteMax);
///     println!("{setting} must be at least 1");
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capacity {
    /// `events_per_turn`.
    EventsPerTurn,
    /// `timers_per_turn`.
    TimersPerTurn,
    /// `deferred_per_turn`.
    DeferredPerTurn,
    /// `calls_per_turn`.
    CallsPerTurn,
    /// `remote_max`.
    RemoteMax,
    /// `subscribers_max`.
    SubscribersMax,
    /// `timers_max`.
    TimersMax,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventsPerTurn => "events_per_turn",
            Self::TimersPerTurn => "timers_per_turn",
            Self::DeferredPerTurn => "deferred_per_turn",
            Self::CallsPerTurn => "calls_per_turn",
            Self::RemoteMax => "remote_max",
            Self::SubscribersMax => "subscribers_max",
            Self::TimersMax => "timers_max",
        })
    }
}

/// Why a reactor could not be built.
///
/// ```
/// use windlass::{BuildError, Capacity, Reactor};
///
/// let error = Reactor::builder().events_per_turn(0).build().unwrap_err();
/// assert_eq!(error, BuildError::ZeroCapacity(Capacity::EventsPerTurn));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting is zero that must be at least one.
    ZeroCapacity(Capacity),
    /// A setting is larger than the kernel or an index can represent.
    CapacityTooLarge(Capacity),
    /// An error of the kernel, for example `EMFILE` if the process has no descriptor left.
    Os(Errno),
    /// The requested ring ([`Backend::Uring`](crate::Backend::Uring)) is not available.
    Ring(RingError),
    /// The kernel does not poll network cards as [`Builder::napi`](crate::Builder::napi) asks.
    Napi(NapiError),
    /// The backend is [`Backend::Sim`](crate::Backend::Sim), no host was chosen (`Builder::sim`),
    /// and the thread has no simulation.
    #[cfg(feature = "sim")]
    NoSimulation,
}

impl BuildError {
    /// Converts the error of a ring that the builder requested. If the kernel can create no
    /// descriptor, the error is the same for every backend.
    pub(super) fn of_ring(why: RingError) -> Self {
        match why {
            RingError::Os(errno @ (Errno::MFILE | Errno::NFILE)) => Self::Os(errno),
            why => Self::Ring(why),
        }
    }
}

plain_error!(
    BuildError,
    |e| match e {
        Self::ZeroCapacity(_) => "a capacity of the reactor is zero",
        Self::CapacityTooLarge(_) => "a capacity of the reactor is too large",
        Self::Os(_) => "the kernel refused a descriptor of the reactor",
        Self::Ring(_) => "the reactor cannot have a ring",
        Self::Napi(_) => "the reactor cannot poll network cards",
        #[cfg(feature = "sim")]
        Self::NoSimulation => "no simulation for the backend sim: choose a host by Builder::sim",
    },
    match e {
        BuildError::ZeroCapacity(_) | BuildError::CapacityTooLarge(_) =>
            Err(io::ErrorKind::InvalidInput),
        BuildError::Os(errno) => Ok(*errno),
        // With the message, which names the missing feature.
        BuildError::Ring(why) => Err(io::Error::from(why.errno()).kind()),
        BuildError::Napi(why) => Err(io::Error::from(*why).kind()),
        #[cfg(feature = "sim")]
        BuildError::NoSimulation => Err(io::ErrorKind::InvalidInput),
    },
    match e {
        BuildError::ZeroCapacity(capacity) | BuildError::CapacityTooLarge(capacity) =>
            Some(capacity.to_string()),
        BuildError::Os(errno) => Some(errno.to_string()),
        BuildError::Ring(why) => Some(why.to_string()),
        BuildError::Napi(why) => Some(why.to_string()),
        #[cfg(feature = "sim")]
        BuildError::NoSimulation => None::<String>,
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_error_names_the_setting() {
        let zero = BuildError::ZeroCapacity(Capacity::TimersPerTurn);
        assert_eq!(zero.to_string(), "a capacity of the reactor is zero: timers_per_turn");
    }
}
