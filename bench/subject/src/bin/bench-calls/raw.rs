//! System calls by their numbers.
#![allow(unsafe_code, reason = "system calls by their numbers have no safe form")]

use std::io;

use windlass_bench_driver::calls::{Price, repeated};

/// The result of a call that must fail with `EAGAIN`.
pub(crate) const FAILS: isize = -1;

/// A call with its arguments, and the result that it must have.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    number: libc::c_long,
    arguments: [usize; 6],
    expected: isize,
}

impl Step {
    /// The addresses among the arguments are those of [`leaked`] values of the size that the call
    /// reads and writes.
    pub(crate) fn new(number: libc::c_long, given: &[usize], expected: isize) -> Self {
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(given);
        Self { number, arguments, expected }
    }

    #[inline(always)]
    pub(crate) fn make(&self) -> io::Result<()> {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: as `new` demands, the addresses are those of memory that lives as long as the
        // process, and no reference to it exists. The other arguments are numbers.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        if result as isize == self.expected { Ok(()) } else { Err(self.unexpected(result)) }
    }

    #[cold]
    fn unexpected(&self, result: libc::c_long) -> io::Error {
        let error = io::Error::last_os_error();
        let (number, expected) = (self.number, self.expected);
        io::Error::other(format!("call {number} returned {result} ({error}), not {expected}"))
    }
}

/// Makes a price of these calls, one after the other. What they use is kept open.
pub(crate) fn steps<const N: usize>(steps: [Step; N], used: impl Sized + 'static) -> Price {
    repeated(move || {
        let _used = &used;
        steps.iter().try_for_each(Step::make)
    })
}

/// Moves a value to memory that lives as long as the process, and returns its address.
pub(crate) fn leaked<T: 'static>(value: T) -> usize {
    Box::into_raw(Box::new(value)).expose_provenance()
}

/// clock_gettime(3) as libc makes it: by the vDSO.
#[inline(always)]
pub(crate) fn clock(clock: libc::clockid_t) -> io::Result<()> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable for the length of the call (clock_gettime(2)).
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    std::hint::black_box(time);
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
