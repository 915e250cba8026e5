//! [`Unsent`]: output of a stream whose executor has ended.
//!
//! 1. The executor's end releases all streams, and gets back the output that their sockets have not
//!    accepted.
//! 2. It goes on sending for at most `drain_timeout`, by the system's clock. No code of the user
//!    runs meanwhile: the reactor has no turn. In a simulation, the end does not wait: a program of
//!    its own sends in virtual time.
//! 3. A stream without an owner that has output left is reset.
//! 4. One with an owner keeps its output. `detach` sends it first, by the executor that runs it. If
//!    the owner is dropped before that, the connection is reset.

use core::cell::Cell;
use std::{
    io,
    net::{Shutdown, TcpStream},
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::SendFlags,
};

#[cfg(feature = "sim")]
use crate::net::common::set_linger;
use crate::{Direction, io::Socket, net::buffered_tcp::BufferedTcp};

/// See the module. The memory of an empty one is freed.
#[derive(Default)]
pub(super) struct Unsent(Cell<Vec<u8>>);

impl Unsent {
    pub(super) fn set(&self, bytes: Vec<u8>) {
        self.0.set(bytes);
    }

    pub(super) fn len(&self) -> usize {
        let bytes = self.0.take();
        let len = bytes.len();
        self.0.set(bytes);
        len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends all of it. `AGAIN` if the socket accepts no more.
    fn send(&self, socket: &Socket<TcpStream>) -> Result<(), Errno> {
        let mut bytes = self.0.take();
        let mut sent = 0;
        let outcome = loop {
            if sent == bytes.len() {
                return Ok(());
            }
            match socket.send(&bytes[sent..], SendFlags::DONTWAIT) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(errno) => break errno,
            }
        };
        bytes.drain(..sent);
        self.0.set(bytes);
        Err(outcome)
    }
}

impl BufferedTcp {
    /// Sends what is left of the output. The end of the stream follows it, if that was asked for.
    fn send_unsent(&self) -> Result<(), Errno> {
        self.unsent.send(&self.socket)?;
        if self.is_finished.get() {
            // The peer may have reset the connection.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Protocol 4. The readiness of the socket is that of the running executor.
    pub(super) async fn unsent_sent(&self) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let send = || self.send_unsent().map_err(Into::into);
        let sent = match self.readiness() {
            Ok(source) => source.io(Direction::Write, send).await,
            Err(error) => Err(error),
        };
        sent.map_err(|error| {
            let text = format!(
                "{} bytes of output, which the executor of this socket had not sent when it was \
                 dropped, cannot be sent: {error}",
                self.unsent.len()
            );
            io::Error::new(error.kind(), text)
        })
    }
}

/// Protocol 2.
pub(super) fn drain(mut waiting: Vec<&Rc<BufferedTcp>>, longest: Duration) {
    waiting.retain(|socket| !socket.unsent.is_empty());
    if waiting.is_empty() || longest.is_zero() {
        return;
    }
    #[cfg(feature = "sim")]
    if let Some(Some(host)) = waiting[0].streams.host.get() {
        return drain_in_simulation(host, &waiting, longest);
    }
    // `None` if it is too far away.
    let deadline = Instant::now().checked_add(longest);
    loop {
        waiting.retain(|socket| socket.send_unsent() == Err(Errno::AGAIN));
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if waiting.is_empty() || left == Some(Duration::ZERO) {
            return;
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled: Vec<_> =
            waiting.iter().map(|socket| PollFd::new(&socket.socket, PollFlags::OUT)).collect();
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // There is no memory to wait.
            Err(_) => return,
        }
    }
}

/// Protocol 2.
#[cfg(feature = "sim")]
fn drain_in_simulation(
    host: &windlass::sim::Host,
    waiting: &[&Rc<BufferedTcp>],
    longest: Duration,
) {
    let objects = waiting.iter().filter_map(|socket| socket.socket.simulated());
    let mut waiting: Vec<_> = waiting.iter().map(|socket| Rc::clone(socket)).collect();
    host.send_rest(objects, longest, move || {
        waiting.retain(|socket| {
            let outcome = socket.send_unsent();
            let is_whole = outcome.is_ok() && socket.read_buffer.borrow().is_empty();
            if is_whole && !socket.has_owner.get() {
                // The executor has ended, and a reset was to follow for what was left then.
                let _ = set_linger(&socket.socket, None);
            }
            outcome == Err(Errno::AGAIN)
        });
        !waiting.is_empty()
    });
}
