//! The minimum that a server must do on an io_uring(7): `bench-server-floor` with multishot
//! receives, and sends that are submitted with the wait.
//!
//! 1. Each connection has one receive, which takes buffers from a provided-buffer ring.
//! 2. A single frame is answered from its receive buffer. All other output is copied to an arena.
//! 3. All completions of one wait are a batch. The answers to a batch are submitted with the next
//!    wait, and then its buffers are returned to the kernel.

#![deny(unsafe_code)]

mod ring;

use std::os::fd::{AsFd as _, AsRawFd};
use std::process::ExitCode;

use windlass::{Signal, SignalSet};
use windlass_bench_driver::server::{self, Settings, announce};
use windlass_bench_driver::{Error, work};
use windlass_bench_subject::floor::{
    self, BUFFER_BYTES,
    conn_table::{ConnTable, Connection, Role},
    frames::{self, Echoed, Output},
    handshake, send_now,
};

use ring::{Completion, Ring};

/// Longer answers are sent without the ring, while they are in the processor's cache.
const QUEUED_MAX: usize = 8 << 10;

fn main() -> ExitCode {
    server::run(serve)
}

struct Floor {
    settings: Settings,
    ring: Ring,
    table: ConnTable,
    /// The batch of the last send, by descriptor. Two sends in one batch would mix their bytes.
    sent_in: Vec<u64>,
    batch: u64,
    /// A frame that was received in pieces, and the bytes after it.
    whole: Vec<u8>,
    output: Output,
}

fn serve(settings: Settings) -> Result<(), Error> {
    // valgrind does not interrupt io_uring_enter(2) for a signal, so SIGTERM must be a completion.
    let terminate = SignalSet::new([Signal::TERM])?;
    let listener = floor::listen()?;
    let mut ring = Ring::new(terminate.as_fd())?;
    ring.accept(listener.as_raw_fd());
    announce(listener.local_addr()?, env!("CARGO_PKG_VERSION"));
    let mut floor = Floor {
        settings,
        ring,
        table: ConnTable::default(),
        sent_in: Vec::new(),
        batch: 1,
        whole: vec![0; BUFFER_BYTES],
        output: Output::new(BUFFER_BYTES),
    };
    loop {
        if floor.ring.is_awaiting_buffer() {
            // Submitting sends the answers, and then their buffers are free.
            floor.ring.submit()?;
            floor.end_batch()?;
        }
        floor.ring.wait()?;
        floor.end_batch()?;
        while let Some(completion) = floor.ring.next() {
            match completion {
                Completion::Accepted(fd) => floor.accept(fd)?,
                Completion::AcceptEnded => floor.ring.accept(listener.as_raw_fd()),
                Completion::Received { fd, buffer, len } => floor.receive(fd, buffer, len)?,
                Completion::NoBuffer(fd) => floor.ring.receive_later(fd),
                Completion::Closed(fd) => floor.table.remove(fd),
                Completion::Writable(fd) => floor.flush(fd)?,
                Completion::Terminate => return Ok(()),
            }
        }
    }
}

impl Floor {
    /// Ends the batch, after its sends have completed: keeps the output that was not sent, and
    /// returns the buffers.
    fn end_batch(&mut self) -> Result<(), Error> {
        self.batch += 1;
        while let Some((fd, bytes)) = self.ring.next_failed() {
            if let Some(connection) = self.table.get(fd) {
                connection.keep_unsent(&bytes);
                self.ring.poll_out(fd);
            }
        }
        self.ring.return_buffers();
        Ok(())
    }

    fn accept(&mut self, fd: usize) -> Result<(), Error> {
        let socket = ring::accepted_socket(fd);
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        self.table.put(fd, Connection::new(socket));
        if self.sent_in.len() <= fd {
            self.sent_in.resize(fd + 1, 0);
        }
        self.ring.receive(fd);
        Ok(())
    }

    fn receive(&mut self, fd: usize, buffer: u16, len: usize) -> Result<(), Error> {
        let Some(connection) = self.table.get(fd) else { return Ok(()) };
        let role = connection.role;
        let partial = connection.take_partial(&mut self.whole);
        if role == Role::Work {
            work(self.settings.work);
        }
        if partial == 0 && matches!(role, Role::Echo | Role::Work) {
            let bytes = self.ring.bytes(buffer, len);
            match frames::echo(bytes, &mut self.output) {
                Echoed::InPlace(range) if range.len() <= QUEUED_MAX && self.may_queue(fd) => {
                    self.ring.send_from(fd, buffer, range);
                    self.sent_in[fd] = self.batch;
                    return Ok(());
                }
                Echoed::InPlace(range) => {
                    let connection = self.table.get(fd).expect("it was there");
                    return send_without_ring(
                        &mut self.ring,
                        connection,
                        fd,
                        None,
                        (buffer, range),
                    );
                }
                Echoed::InOutput { used } => {
                    if used < len {
                        let rest = self.ring.bytes(buffer, len)[used..].to_vec();
                        self.table.get(fd).expect("it was there").keep_partial(&rest);
                    }
                }
            }
            return self.send_output(fd);
        }
        self.whole[partial..partial + len].copy_from_slice(self.ring.bytes(buffer, len));
        self.receive_whole(fd, role, partial + len)
    }

    /// Handles received bytes other than echoed frames that arrive complete.
    fn receive_whole(&mut self, fd: usize, role: Role, len: usize) -> Result<(), Error> {
        let received = &self.whole[..len];
        let used = match role {
            Role::Opening => {
                let connection = self.table.get(fd).expect("it was there");
                let used =
                    handshake::respond(connection, &self.settings, received, &mut self.output);
                self.table.upgraded(fd);
                self.send_output(fd)?;
                used
            }
            Role::Echo | Role::Work => {
                let used = frames::append(received, &mut self.output);
                self.send_output(fd)?;
                used
            }
            Role::Publisher => {
                let used = frames::append(received, &mut self.output);
                self.send_output_to_all()?;
                used
            }
            Role::Receiver => len,
        };
        if used < len {
            let rest = self.whole[used..len].to_vec();
            self.table.get(fd).expect("it was there").keep_partial(&rest);
        }
        Ok(())
    }

    fn may_queue(&mut self, fd: usize) -> bool {
        let batch = self.batch;
        self.sent_in[fd] != batch
            && self.table.get(fd).is_some_and(|connection| connection.unsent.is_none())
    }

    fn send_output(&mut self, fd: usize) -> Result<(), Error> {
        let length = self.output.bytes().len();
        if length == 0 {
            return Ok(());
        }
        if length <= QUEUED_MAX
            && self.may_queue(fd)
            && let Some(copy) = self.ring.copy(self.output.bytes())
        {
            self.ring.send_copy(fd, copy);
            self.sent_in[fd] = self.batch;
            self.output.clear();
            return Ok(());
        }
        let connection = self.table.get(fd).expect("it was there");
        send_without_ring(&mut self.ring, connection, fd, Some(self.output.bytes()), (0, 0..0))?;
        self.output.clear();
        Ok(())
    }

    fn send_output_to_all(&mut self) -> Result<(), Error> {
        if self.output.bytes().is_empty() {
            return Ok(());
        }
        let copy = self.ring.copy(self.output.bytes());
        for index in 0..self.table.receivers.len() {
            let fd = self.table.receivers[index];
            match copy {
                Some(copy) if self.may_queue(fd) => {
                    self.ring.send_copy(fd, copy);
                    self.sent_in[fd] = self.batch;
                }
                _ => {
                    let connection = self.table.get(fd).expect("receivers are connected");
                    let bytes = Some(self.output.bytes());
                    send_without_ring(&mut self.ring, connection, fd, bytes, (0, 0..0))?;
                }
            }
        }
        self.output.clear();
        Ok(())
    }

    /// Sends the output that the kernel did not take before.
    fn flush(&mut self, fd: usize) -> Result<(), Error> {
        let Some(connection) = self.table.get(fd) else { return Ok(()) };
        let Some(mut unsent) = connection.unsent.take() else { return Ok(()) };
        let sent = send_now(&connection.socket, &unsent)?;
        if sent < unsent.len() {
            unsent.drain(..sent);
            connection.unsent = Some(unsent);
            self.ring.poll_out(fd);
        }
        Ok(())
    }
}

/// Sends these bytes, or a range of a receive buffer, without the ring. Queued sends are submitted
/// first.
fn send_without_ring(
    ring: &mut Ring,
    connection: &mut Connection,
    fd: usize,
    bytes: Option<&[u8]>,
    (buffer, range): (u16, std::ops::Range<usize>),
) -> Result<(), Error> {
    ring.submit()?;
    if let Some(unsent) = ring.take_failed(fd) {
        connection.keep_unsent(&unsent);
        ring.poll_out(fd);
    }
    let bytes = match bytes {
        Some(bytes) => bytes,
        None => &ring.bytes(buffer, range.end)[range],
    };
    if connection.unsent.is_some() {
        connection.keep_unsent(bytes);
        return Ok(());
    }
    let sent = send_now(&connection.socket, bytes)?;
    if sent < bytes.len() {
        connection.keep_unsent(&bytes[sent..]);
        ring.poll_out(fd);
    }
    Ok(())
}
