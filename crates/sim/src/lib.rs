#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod check;
mod choices;
mod faults;
mod ids;
mod kernel;
mod object;
mod poll;
mod schedule;
mod slab;
mod threads;
mod trace;

pub use check::{Check, CheckOutcome, Failure, check};
pub use choices::{Case, CaseError};
pub use faults::{Fault, Faults, Link};
pub use ids::{ActorId, Fd, HostId, SimAddr, SocketKind, mask};
pub use kernel::{Kernel, PollEvent, PollSet, Ring, Step};
pub use poll::queue::{Completion, RingRequest};
pub use schedule::WakeHandle;
pub use threads::{ThreadNext, Threads};
pub use trace::{Trace, TraceEntry, What};
