//! The common part of the hand-written servers `bench-server-floor`, on epoll(7), and
//! `bench-server-floor-ring`, on io_uring(7): frames, the handshake, the connections by descriptor,
//! and sends that do not wait.

pub mod conn_table;
pub mod frames;
pub mod handshake;

use std::net::TcpListener;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use windlass_bench_driver::Error;
use windlass_bench_driver::server::ANY_PORT;

/// Size of the buffers for received bytes and for output: the longest message of the suites, behind
/// the beginning of a frame that came before, fits.
pub const BUFFER_BYTES: usize = 256 * 1024;

/// Length of the backlog: more connections than a case opens at the same time.
const BACKLOG_LEN: i32 = 4096;

/// Listens on a free port of 127.0.0.1.
///
/// # Errors
///
/// The errors of bind(2) and listen(2).
pub fn listen() -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(ANY_PORT)?;
    // The standard library has a shorter backlog. A second listen(2) changes its length.
    rustix::net::listen(&listener, BACKLOG_LEN)?;
    Ok(listener)
}

/// Sends as many bytes as the kernel takes without waiting, and returns their number. A closed
/// connection takes all of them: the server notices its end when it reads from it.
///
/// # Errors
///
/// The errors of send(2), except `EAGAIN`, `EPIPE` and `ECONNRESET`.
#[inline]
pub fn send_now(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Error> {
    match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) => Ok(count),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
