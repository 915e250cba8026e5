//! The monotonic clock, and the clock of a thread's processor time.
#![allow(unsafe_code, reason = "clock_gettime")]

use std::time::{Duration, Instant};

/// Returns the monotonic time in nanoseconds, the same for all threads.
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the processor time that the calling thread has used, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the processor time that all threads of the process have used, in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Keeps the processor busy for a time.
pub fn work(span: Duration) {
    let started = Instant::now();
    while started.elapsed() < span {}
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable for the length of the call (clock_gettime(2)).
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "these clocks exist on every Linux");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_uses_the_processor_and_waiting_does_not() {
        let (time, cpu) = (now_ns(), thread_cpu_ns());
        work(Duration::from_millis(2));
        assert!(now_ns() - time >= 2_000_000);
        let used = thread_cpu_ns() - cpu;
        // The kernel slews one of the two clocks.
        assert!(used > 0 && used <= (now_ns() - time) * 101 / 100);
    }
}
