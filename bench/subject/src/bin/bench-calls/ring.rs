//! io_uring_enter(2), on a ring with the flags of windlass.
#![allow(unsafe_code, reason = "an entry for the ring, which names no memory")]

use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, opcode, types};
use windlass_bench_driver::calls::{Price, repeated};
use windlass_bench_driver::{Error, Unsupported};

use crate::raw::{Step, leaked, steps};

// Of io_uring_enter(2) and io_uring_register(2).
const GETEVENTS: usize = 1;
const EXT_ARG: usize = 1 << 3;
const REGISTERED_RING: usize = 1 << 4;
const REGISTER_RING_FDS: usize = 20;

/// The size of `struct io_uring_getevents_arg`, and of the signal set that is given otherwise.
const ARG_BYTES: usize = 24;
const SIGSET_BYTES: usize = 8;

pub(crate) fn price(call: &str) -> Result<Price, Error> {
    let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8);
    let mut ring = ring.map_err(|_| Unsupported("there are no rings here"))?;
    let fd = ring.as_raw_fd() as usize;
    if call.starts_with("io_uring_enter_nop") {
        return nop(call, ring);
    }
    // A completion that is never taken: the call returns at once, as with one that has just come.
    if call.ends_with("_ready") {
        push_nop(&mut ring)?;
        ring.submit_and_wait(1)?;
    }
    let arguments = match call {
        "io_uring_enter_ready" => [fd, 0, 1, GETEVENTS, 0, SIGSET_BYTES],
        "io_uring_enter_registered_ready" => {
            // `struct io_uring_rsrc_update`: any place, no tags, the descriptor.
            let update = leaked([u64::from(u32::MAX), fd as u64]);
            let arguments = [fd, REGISTER_RING_FDS, update, 1];
            Step::new(libc::SYS_io_uring_register, &arguments, 1).make()?;
            [0, 0, 1, GETEVENTS | REGISTERED_RING, 0, SIGSET_BYTES]
        }
        "io_uring_enter_unlimited_ready" => [fd, 0, 1, GETEVENTS | EXT_ARG, limit(None), ARG_BYTES],
        "io_uring_enter_200us_ready" => {
            [fd, 0, 1, GETEVENTS | EXT_ARG, limit(Some([0, 200_000])), ARG_BYTES]
        }
        "io_uring_enter_60s_ready" => {
            [fd, 0, 1, GETEVENTS | EXT_ARG, limit(Some([60, 0])), ARG_BYTES]
        }
        "io_uring_enter_zero_none" => [fd, 0, 0, GETEVENTS, 0, SIGSET_BYTES],
        _ => return Err(Unsupported("no such call").into()),
    };
    Ok(steps([Step::new(libc::SYS_io_uring_enter, &arguments, 0)], ring))
}

/// `struct io_uring_getevents_arg`: a signal set, its size, and the address of the limit.
fn limit(time: Option<[i64; 2]>) -> usize {
    leaked([0, SIGSET_BYTES, time.map_or(0, leaked)])
}

fn push_nop(ring: &mut IoUring) -> Result<(), Error> {
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }
        .map_err(|_| "the ring is full".into())
}

/// Submits an entry that does nothing, waits for its completion, and takes it.
fn nop(call: &str, mut ring: IoUring) -> Result<Price, Error> {
    let time = types::Timespec::new().sec(60);
    let wait: fn(&IoUring, &types::Timespec) -> std::io::Result<usize> = match call {
        "io_uring_enter_nop" => |ring, _| ring.submit_and_wait(1),
        "io_uring_enter_nop_unlimited" => {
            |ring, _| ring.submitter().submit_with_args(1, &types::SubmitArgs::new())
        }
        "io_uring_enter_nop_60s" => |ring, time| {
            ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(time))
        },
        _ => return Err(Unsupported("no such call").into()),
    };
    Ok(repeated(move || {
        push_nop(&mut ring).map_err(|error| std::io::Error::other(error.to_string()))?;
        wait(&ring, &time)?;
        match ring.completion().next() {
            Some(_) => Ok(()),
            None => Err(std::io::Error::other("there is no completion")),
        }
    }))
}
