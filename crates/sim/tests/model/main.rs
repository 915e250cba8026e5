//! The model: the same random programs on the real kernel and on the simulated one, without faults.
//! The outcomes of the simulation include those of the kernel.

mod epoll;
mod ring;

use std::fmt::Debug;

use rustix::io::Errno;

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
