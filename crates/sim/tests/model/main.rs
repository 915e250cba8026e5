//! The model: the same random programs on the real kernel and on the simulated one, without faults.
//! The outcomes of the simulation include those of the kernel.

mod epoll;
mod ring;
mod tcp;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Whether the kernel has had enough time to do what the simulation has done. After the first
/// failure it has less: those by which a program is shrunk would take minutes.
fn is_late(begun: Instant) -> bool {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    let millis = if HAS_FAILED.load(Ordering::Relaxed) { 100 } else { 5_000 };
    let is_late = begun.elapsed() > Duration::from_millis(millis);
    HAS_FAILED.fetch_or(is_late, Ordering::Relaxed);
    is_late
}

/// The result of a call in both worlds, which must agree.
fn same<T: Debug + PartialEq>(
    what: &str,
    real: rustix::io::Result<T>,
    sim: std::io::Result<T>,
) -> Result<T, Errno> {
    assert_eq!(real, simulated(sim), "{what}: the kernel and the simulation");
    real
}

/// The number of an error of the simulation.
fn simulated<T>(result: std::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| Errno::from_io_error(&error).expect("an errno"))
}
