//! The least that a server can do: it waits, reads, unmasks and writes back. It validates nothing,
//! knows no limits, closes nobody with a reason, and takes for granted that its client is
//! well-behaved. What is above it in a real server is the server's own.
//!
//! Frames of one read are answered in one write. A lone one is answered from where it was received.
//! What is published is encoded once a read and written to each receiver in one call.

#![deny(unsafe_code)]

mod frames;
mod handshake;
mod table;
mod wait;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use windlass_bench_driver::Error;
use windlass_bench_driver::server::{ANY_PORT, Mode, Settings, announce};

use table::{Connection, Role, Table};

/// Room for what is received at once, behind the beginning of a frame that came before.
const BUFFER_BYTES: usize = 256 * 1024;

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
    epoll: OwnedFd,
    table: Table,
    /// What was received, and what is sent.
    buffer: Vec<u8>,
    out: frames::Out,
}

fn serve(settings: Settings) -> Result<(), Error> {
    let listener = std::net::TcpListener::bind(ANY_PORT)?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, 4096)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let listening = listener.as_raw_fd() as usize;
    epoll::add(&epoll, &listener, number(listening), epoll::EventFlags::IN)?;
    announce(listener.local_addr()?, env!("CARGO_PKG_VERSION"));
    let table = Table::default();
    let mut floor = Floor {
        mode: settings.mode,
        epoll,
        table,
        buffer: vec![0; BUFFER_BYTES],
        out: frames::Out::new(BUFFER_BYTES),
    };
    let mut events = Vec::with_capacity(1024);
    loop {
        wait::wait(&floor.epoll, &mut events)?;
        for &epoll::Event { flags, data } in &events {
            let fd = data.u64() as usize;
            if fd == listening {
                floor.accept(&listener)?;
                continue;
            }
            if flags.contains(epoll::EventFlags::OUT) {
                floor.flush(fd)?;
            }
            if flags
                .intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            {
                floor.receive(fd)?;
            }
        }
    }
}

fn number(fd: usize) -> epoll::EventData {
    epoll::EventData::new_u64(fd as u64)
}

impl Floor {
    fn accept(&mut self, listener: impl AsFd) -> Result<(), Error> {
        loop {
            match accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
                    let fd = socket.as_raw_fd() as usize;
                    epoll::add(&self.epoll, &socket, number(fd), epoll::EventFlags::IN)?;
                    self.table.put(fd, Connection::new(socket));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&mut self, fd: usize) -> Result<(), Error> {
        let Some(connection) = self.table.get(fd) else { return Ok(()) };
        let kept = connection.take_kept(&mut self.buffer);
        let count = match recv(&connection.socket, &mut self.buffer[kept..], RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                self.table.remove(fd);
                return Ok(());
            }
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut received = 0..kept + count;
        match connection.role {
            Role::Opening => {
                received.start = handshake::answer(
                    connection,
                    self.mode,
                    &self.buffer[received.clone()],
                    &mut self.out,
                );
                self.table.note_role(fd);
                self.send_out(fd)?;
            }
            Role::Echo => {
                let connection = self.table.get(fd).expect("it was there");
                match frames::reply(&mut self.buffer[received.clone()], &mut self.out) {
                    frames::Reply::InPlace(range) => {
                        return send_to(&self.epoll, connection, fd, &self.buffer[range]);
                    }
                    frames::Reply::Out { used } => received.start += used,
                }
                self.send_out(fd)?;
            }
            Role::Publisher => {
                received.start += frames::publish(&self.buffer[received.clone()], &mut self.out);
                self.send_out_to_all()?;
            }
            Role::Receiver => received.start = received.end,
        }
        if !received.is_empty() {
            self.table.get(fd).expect("it was there").keep(&self.buffer[received]);
        }
        Ok(())
    }

    /// Sends `out`.
    fn send_out(&mut self, fd: usize) -> Result<(), Error> {
        if !self.out.bytes().is_empty() {
            let connection = self.table.get(fd).expect("it was there");
            send_to(&self.epoll, connection, fd, self.out.bytes())?;
            self.out.clear();
        }
        Ok(())
    }

    fn send_out_to_all(&mut self) -> Result<(), Error> {
        if !self.out.bytes().is_empty() {
            for &fd in &self.table.receivers {
                let connection =
                    self.table.connections[fd].as_mut().expect("receivers are connected");
                send_to(&self.epoll, connection, fd, self.out.bytes())?;
            }
            self.out.clear();
        }
        Ok(())
    }

    /// Sends what the kernel would not take before.
    fn flush(&mut self, fd: usize) -> Result<(), Error> {
        let Some(connection) = self.table.get(fd) else { return Ok(()) };
        let Some(mut unsent) = connection.unsent.take() else { return Ok(()) };
        let sent = transmit(&connection.socket, &unsent)?;
        if sent == unsent.len() {
            return writable(&self.epoll, connection, fd, false);
        }
        unsent.drain(..sent);
        connection.unsent = Some(unsent);
        Ok(())
    }
}

fn send_to(
    epoll: &OwnedFd,
    connection: &mut Connection,
    fd: usize,
    bytes: &[u8],
) -> Result<(), Error> {
    if connection.unsent.is_none() {
        let sent = transmit(&connection.socket, bytes)?;
        if sent == bytes.len() {
            return Ok(());
        }
        connection.keep_unsent(&bytes[sent..]);
        return writable(epoll, connection, fd, true);
    }
    connection.keep_unsent(bytes);
    Ok(())
}

fn transmit(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Error> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(count) => Ok(count),
        // One that is gone is noticed when it is read from.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn writable(
    epoll: &OwnedFd,
    connection: &Connection,
    fd: usize,
    wanted: bool,
) -> Result<(), Error> {
    let out = if wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
    Ok(epoll::modify(epoll, &connection.socket, number(fd), epoll::EventFlags::IN | out)?)
}
