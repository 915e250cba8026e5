//! The processors on which threads run.
//!
//! The program's main thread runs on the requested processor. Its other threads run on the others,
//! so two threads never share a processor by accident. Without a request the scheduler decides.
#![allow(
    unsafe_code,
    reason = "sched_getaffinity, sched_setaffinity, sched_setscheduler and gettid"
)]

use std::sync::OnceLock;

/// The processors, known once the main thread is pinned.
struct Processors {
    main: usize,
    /// The allowed processors other than that of the main thread.
    others: Vec<usize>,
}

static PROCESSORS: OnceLock<Processors> = OnceLock::new();

/// Pins the main thread, and keeps the other processors for other threads. Returns false if pinning
/// is not allowed.
pub(crate) fn pin_main(cpu: usize) -> bool {
    // Read before the set of allowed processors shrinks to one.
    let others = allowed().into_iter().filter(|&other| other != cpu).collect();
    pin(cpu) && PROCESSORS.set(Processors { main: cpu, others }).is_ok()
}

/// Returns whether two threads can have a processor each, or are not pinned at all.
pub(crate) fn has_two_processors() -> bool {
    PROCESSORS.get().is_none_or(|processors| !processors.others.is_empty())
}

/// Pins the calling thread to the main thread's processor.
pub(crate) fn pin_with_main() {
    PROCESSORS.get().inspect(|processors| _ = pin(processors.main));
}

/// Pins the calling thread to another processor, always the same.
pub(crate) fn pin_opposite() {
    PROCESSORS
        .get()
        .inspect(|processors| _ = pin_to(&processors.others[..1.min(processors.others.len())]));
}

/// Calls the closure on the main thread while it may run on all processors, so that a library
/// counts all of them.
pub fn on_all_processors<T>(closure: impl FnOnce() -> T) -> T {
    PROCESSORS.get().inspect(|processors| {
        let all: Vec<usize> = processors.others.iter().copied().chain([processors.main]).collect();
        _ = pin_to(&all);
    });
    let value = closure();
    pin_with_main();
    value
}

/// Keeps the calling thread off the processor of a client that has one to itself.
pub fn pin_off_opposite() {
    PROCESSORS.get().inspect(|processors| {
        let rest = processors.others.iter().skip(1).copied();
        let all: Vec<usize> = rest.chain([processors.main]).collect();
        _ = pin_to(&all);
    });
}

/// Keeps the calling thread off the main thread's processor.
pub(crate) fn pin_away() {
    PROCESSORS.get().inspect(|processors| _ = pin_to(&processors.others));
}

/// Returns the kernel's number of the calling thread.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: gettid(2) takes nothing and cannot fail.
    unsafe { libc::gettid() as u32 }
}

fn allowed() -> Vec<usize> {
    let mut set = empty();
    // SAFETY: the set is writable for its size, and 0 means the calling thread
    // (sched_getaffinity(2)).
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the numbers are below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Pins the calling thread to one processor. Returns false if that is not allowed.
pub fn pin(cpu: usize) -> bool {
    pin_to(&[cpu])
}

/// Pins the calling thread to some processors. Returns false if that is not allowed, or if there
/// are none.
fn pin_to(cpus: &[usize]) -> bool {
    let mut set = empty();
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return false;
        }
        // SAFETY: the number is below the size of the set, checked above.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is readable for its size, and 0 means the calling thread
    // (sched_setaffinity(2)).
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0 }
}

/// The real-time priorities, from 1 to 99, of measured processes. A process gets the first and then
/// the second one to have its clock updated. No other process has either.
pub const PRIORITIES: [i32; 2] = [11, 10];

/// Gives the calling process a real-time priority (SCHED_FIFO in sched(7)), so that it runs before
/// all others on its processor. Returns false if that is not allowed.
pub fn raise_priority() -> bool {
    let parameters = libc::sched_param { sched_priority: PRIORITIES[1] };
    // SAFETY: the parameters are readable for the length of the call, and 0 means the calling
    // thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set of processors is an array of integers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_to_what_it_is_allowed_and_to_nothing_else() {
        let allowed = allowed();
        assert!(!allowed.is_empty());
        // A separate thread, because pinning applies to the thread.
        let pinned =
            std::thread::spawn(move || (pin(allowed[0]), super::allowed() == allowed[..1]));
        assert_eq!(pinned.join().unwrap(), (true, true));
        assert!(!pin_to(&[]));
        assert!(!pin(libc::CPU_SETSIZE as usize));
    }
}
