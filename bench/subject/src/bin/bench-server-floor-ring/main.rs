//! The least that a server can do on an io_uring(7): the floor of the other directory, with
//! receives that repeat by themselves and sends that go out with the wait.
//!
//! One receive for each connection, which takes buffers from a row; a lone frame is answered from
//! where it was received, what else is sent from an arena. All that a wait has brought is answered
//! with the next one, and then the buffers go back.

#![deny(unsafe_code)]

#[path = "../bench-server-floor/frames.rs"]
mod frames;
#[path = "../bench-server-floor/handshake.rs"]
mod handshake;
mod ring;
#[path = "../bench-server-floor/table.rs"]
mod table;

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use windlass_bench_driver::Error;
use windlass_bench_driver::server::{ANY_PORT, Mode, Settings, announce};

use ring::{Came, Ring};
use table::{Connection, Role, Table};

/// Room for a frame that came in pieces, and for what is sent at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Longer answers are sent at once, while they are in the processor's cache.
const QUEUED_MAX: usize = 8 << 10;

fn main() -> ExitCode {
    match Settings::take().and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Floor {
    mode: Mode,
    ring: Ring,
    table: Table,
    /// By descriptor: in which batch it was sent to last. Two sends at a time would mix their
    /// bytes.
    sent_in: Vec<u64>,
    batch: u64,
    /// What came before the end of a frame, with the end.
    whole: Vec<u8>,
    out: frames::Out,
}

fn serve(settings: Settings) -> Result<(), Error> {
    let listener = std::net::TcpListener::bind(ANY_PORT)?;
    rustix::net::listen(&listener, 4096)?;
    let mut ring = Ring::new()?;
    ring.accept(listener.as_raw_fd());
    announce(listener.local_addr()?, env!("CARGO_PKG_VERSION"));
    let mut floor = Floor {
        mode: settings.mode,
        ring,
        table: Table::default(),
        sent_in: Vec::new(),
        batch: 1,
        whole: vec![0; BUFFER_BYTES],
        out: frames::Out::new(BUFFER_BYTES),
    };
    loop {
        if floor.ring.is_starved() {
            // Their buffers are free when the answers are out.
            floor.ring.submit()?;
            floor.end_batch()?;
        }
        floor.ring.wait()?;
        floor.end_batch()?;
        while let Some(came) = floor.ring.next() {
            match came {
                Came::Connection(fd) => floor.accept(fd)?,
                Came::AcceptOver => floor.ring.accept(listener.as_raw_fd()),
                Came::Bytes { fd, buffer, len } => floor.receive(fd, buffer, len)?,
                Came::NoBuffer(fd) => floor.ring.receive_later(fd),
                Came::End(fd) => floor.table.remove(fd),
                Came::Writable(fd) => floor.flush(fd)?,
            }
        }
    }
}

impl Floor {
    /// The sends of the batch before have been made: what failed is kept.
    fn end_batch(&mut self) -> Result<(), Error> {
        self.batch += 1;
        while let Some((fd, bytes)) = self.ring.next_failed() {
            if let Some(connection) = self.table.get(fd) {
                connection.keep_unsent(&bytes);
                self.ring.poll_out(fd);
            }
        }
        self.ring.recycle();
        Ok(())
    }

    fn accept(&mut self, fd: usize) -> Result<(), Error> {
        let socket = ring::owned(fd);
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
        let kept = connection.take_kept(&mut self.whole);
        if kept == 0 && role == Role::Echo {
            let bytes = self.ring.bytes(buffer, len);
            match frames::reply(bytes, &mut self.out) {
                frames::Reply::InPlace(range)
                    if range.len() <= QUEUED_MAX && self.may_queue(fd) =>
                {
                    self.ring.send_from(fd, buffer, range);
                    self.sent_in[fd] = self.batch;
                    return Ok(());
                }
                frames::Reply::InPlace(range) => {
                    let connection = self.table.get(fd).expect("it was there");
                    return send_now(&mut self.ring, connection, fd, None, (buffer, range));
                }
                frames::Reply::Out { used } => {
                    if used < len {
                        let rest = self.ring.bytes(buffer, len)[used..].to_vec();
                        self.table.get(fd).expect("it was there").keep(&rest);
                    }
                }
            }
            return self.send_out(fd);
        }
        self.whole[kept..kept + len].copy_from_slice(self.ring.bytes(buffer, len));
        self.receive_whole(fd, role, kept + len)
    }

    /// What is not a lone frame of one read.
    fn receive_whole(&mut self, fd: usize, role: Role, len: usize) -> Result<(), Error> {
        let received = &self.whole[..len];
        let used = match role {
            Role::Opening => {
                let connection = self.table.get(fd).expect("it was there");
                let used = handshake::answer(connection, self.mode, received, &mut self.out);
                self.table.note_role(fd);
                self.send_out(fd)?;
                used
            }
            Role::Echo => {
                let used = frames::publish(received, &mut self.out);
                self.send_out(fd)?;
                used
            }
            Role::Publisher => {
                let used = frames::publish(received, &mut self.out);
                self.send_out_to_all()?;
                used
            }
            Role::Receiver => len,
        };
        if used < len {
            let rest = self.whole[used..len].to_vec();
            self.table.get(fd).expect("it was there").keep(&rest);
        }
        Ok(())
    }

    fn may_queue(&mut self, fd: usize) -> bool {
        let batch = self.batch;
        self.sent_in[fd] != batch
            && self.table.get(fd).is_some_and(|connection| connection.unsent.is_none())
    }

    /// Sends `out`.
    fn send_out(&mut self, fd: usize) -> Result<(), Error> {
        let length = self.out.bytes().len();
        if length == 0 {
            return Ok(());
        }
        if length <= QUEUED_MAX
            && self.may_queue(fd)
            && let Some(copy) = self.ring.copy(self.out.bytes())
        {
            self.ring.send_copy(fd, copy);
            self.sent_in[fd] = self.batch;
            self.out.clear();
            return Ok(());
        }
        let connection = self.table.get(fd).expect("it was there");
        send_now(&mut self.ring, connection, fd, Some(self.out.bytes()), (0, 0..0))?;
        self.out.clear();
        Ok(())
    }

    fn send_out_to_all(&mut self) -> Result<(), Error> {
        if self.out.bytes().is_empty() {
            return Ok(());
        }
        let copy = self.ring.copy(self.out.bytes());
        for place in 0..self.table.receivers.len() {
            let fd = self.table.receivers[place];
            match copy {
                Some(copy) if self.may_queue(fd) => {
                    self.ring.send_copy(fd, copy);
                    self.sent_in[fd] = self.batch;
                }
                _ => {
                    let connection = self.table.get(fd).expect("receivers are connected");
                    send_now(&mut self.ring, connection, fd, Some(self.out.bytes()), (0, 0..0))?;
                }
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Sends what the kernel would not take before.
    fn flush(&mut self, fd: usize) -> Result<(), Error> {
        let Some(connection) = self.table.get(fd) else { return Ok(()) };
        let Some(mut unsent) = connection.unsent.take() else { return Ok(()) };
        let sent = transmit(&connection.socket, &unsent)?;
        if sent < unsent.len() {
            unsent.drain(..sent);
            connection.unsent = Some(unsent);
            self.ring.poll_out(fd);
        }
        Ok(())
    }
}

/// Sends bytes, or those of a buffer, without the ring; what is queued before them goes first.
fn send_now(
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
    let sent = transmit(&connection.socket, bytes)?;
    if sent < bytes.len() {
        connection.keep_unsent(&bytes[sent..]);
        ring.poll_out(fd);
    }
    Ok(())
}

fn transmit(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Error> {
    match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) => Ok(count),
        // One that is gone is noticed when it is read from.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
