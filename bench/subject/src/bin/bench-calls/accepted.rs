//! Accepting connections that already wait in the backlog. Only this is timed.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{SocketFlags, accept_with, acceptfrom_with};
use windlass_bench_driver::calls::{Price, repeated};
use windlass_bench_driver::tasks::forget_on_close;
use windlass_bench_driver::{Error, Unsupported};

/// Connections in the backlog, which has room for 128 (listen(2) as std calls it).
const BATCH: u64 = 64;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

type Accept = fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno>;

pub(crate) fn price(call: &str) -> Result<Price, Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let accept: Accept = match call {
        "accept4" => |fd| accept_with(fd, FLAGS),
        "accept4_address" => |fd| Ok(acceptfrom_with(fd, FLAGS)?.0),
        "fcntl_getfl_accept4_address" => |fd| {
            if !fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
                fcntl_setfl(fd, OFlags::NONBLOCK)?;
            }
            Ok(acceptfrom_with(fd, FLAGS)?.0)
        },
        "accept4_plain_fcntl" => |fd| {
            let accepted = accept_with(fd, SocketFlags::empty())?;
            fcntl_setfd(&accepted, FdFlags::CLOEXEC)?;
            let flags = fcntl_getfl(&accepted)?;
            fcntl_setfl(&accepted, flags | OFlags::NONBLOCK)?;
            Ok(accepted)
        },
        "accept4_none" => {
            return Ok(repeated(move || match accept_with(&listener, FLAGS) {
                Err(Errno::AGAIN) => Ok(()),
                Err(error) => Err(error.into()),
                Ok(_) => Err(std::io::Error::other("a connection came")),
            }));
        }
        _ => return Err(Unsupported("no such call").into()),
    };
    Ok(Box::new(move |rounds| batches(&listener, accept, rounds)))
}

fn batches(listener: &TcpListener, accept: Accept, rounds: u64) -> Result<Duration, Error> {
    let fd = rustix::fd::AsFd::as_fd(listener);
    let mut took = Duration::ZERO;
    let mut left = rounds;
    while left > 0 {
        let batch = left.min(BATCH);
        let mut clients = Vec::new();
        for _ in 0..batch {
            let client = TcpStream::connect(listener.local_addr()?)?;
            forget_on_close(client.as_raw_fd())?;
            clients.push(client);
        }
        let mut accepted = Vec::with_capacity(BATCH as usize);
        let started = Instant::now();
        for _ in 0..batch {
            accepted.push(accept(fd)?);
        }
        took += started.elapsed();
        // The clients reset the connections, so no port stays in use.
        drop(clients);
        left -= batch;
    }
    Ok(took)
}
