//! The minimum that a server must do: it waits, reads, unmasks and writes back. It has no
//! validation, no limits, no timers and no Close frames, and it trusts its client. Everything that
//! a real server costs above this is that server's own.
//!
//! Frames of one read are answered in one write, a single frame from the receive buffer. A
//! publication is encoded once per read and written to each receiver in one call.

#![deny(unsafe_code)]

mod wait;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use windlass_bench_driver::server::{self, Settings, announce};
use windlass_bench_driver::{Error, work};
use windlass_bench_subject::floor::{
    self, BUFFER_BYTES,
    conn_table::{ConnTable, Connection, Role},
    frames::{self, Echoed, Output},
    handshake, send_now,
};

fn main() -> ExitCode {
    server::run(serve)
}

struct Floor {
    settings: Settings,
    epoll: OwnedFd,
    table: ConnTable,
    /// The received bytes.
    buffer: Vec<u8>,
    output: Output,
}

fn serve(settings: Settings) -> Result<(), Error> {
    let listener = floor::listen()?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let listening = listener.as_raw_fd() as usize;
    epoll::add(&epoll, &listener, event_data(listening), epoll::EventFlags::IN)?;
    announce(listener.local_addr()?, env!("CARGO_PKG_VERSION"));
    let mut floor = Floor {
        settings,
        epoll,
        table: ConnTable::default(),
        buffer: vec![0; BUFFER_BYTES],
        output: Output::new(BUFFER_BYTES),
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

fn event_data(fd: usize) -> epoll::EventData {
    epoll::EventData::new_u64(fd as u64)
}

impl Floor {
    fn accept(&mut self, listener: impl AsFd) -> Result<(), Error> {
        loop {
            match accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
                    let fd = socket.as_raw_fd() as usize;
                    epoll::add(&self.epoll, &socket, event_data(fd), epoll::EventFlags::IN)?;
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
        let partial = connection.take_partial(&mut self.buffer);
        let count = match recv(&connection.socket, &mut self.buffer[partial..], RecvFlags::empty())
        {
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                self.table.remove(fd);
                return Ok(());
            }
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut received = 0..partial + count;
        match connection.role {
            Role::Opening => {
                received.start = handshake::respond(
                    connection,
                    &self.settings,
                    &self.buffer[received.clone()],
                    &mut self.output,
                );
                self.table.upgraded(fd);
                self.send_output(fd)?;
            }
            Role::Echo | Role::Work => {
                if connection.role == Role::Work {
                    work(self.settings.work * frames::count(&self.buffer[received.clone()]));
                }
                let connection = self.table.get(fd).expect("it was there");
                match frames::echo(&mut self.buffer[received.clone()], &mut self.output) {
                    Echoed::InPlace(range) => {
                        return send_to(&self.epoll, connection, fd, &self.buffer[range]);
                    }
                    Echoed::InOutput { used } => received.start += used,
                }
                self.send_output(fd)?;
            }
            Role::Publisher => {
                received.start += frames::append(&self.buffer[received.clone()], &mut self.output);
                self.send_output_to_all()?;
            }
            Role::Receiver => received.start = received.end,
        }
        if !received.is_empty() {
            self.table.get(fd).expect("it was there").keep_partial(&self.buffer[received]);
        }
        Ok(())
    }

    fn send_output(&mut self, fd: usize) -> Result<(), Error> {
        if !self.output.bytes().is_empty() {
            let connection = self.table.get(fd).expect("it was there");
            send_to(&self.epoll, connection, fd, self.output.bytes())?;
            self.output.clear();
        }
        Ok(())
    }

    fn send_output_to_all(&mut self) -> Result<(), Error> {
        if !self.output.bytes().is_empty() {
            for &fd in &self.table.receivers {
                let connection =
                    self.table.connections[fd].as_mut().expect("receivers are connected");
                send_to(&self.epoll, connection, fd, self.output.bytes())?;
            }
            self.output.clear();
        }
        Ok(())
    }

    /// Sends the output that the kernel did not take before.
    fn flush(&mut self, fd: usize) -> Result<(), Error> {
        let Some(connection) = self.table.get(fd) else { return Ok(()) };
        let Some(mut unsent) = connection.unsent.take() else { return Ok(()) };
        let sent = send_now(&connection.socket, &unsent)?;
        if sent == unsent.len() {
            return set_writable_interest(&self.epoll, connection, fd, false);
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
        let sent = send_now(&connection.socket, bytes)?;
        if sent == bytes.len() {
            return Ok(());
        }
        connection.keep_unsent(&bytes[sent..]);
        return set_writable_interest(epoll, connection, fd, true);
    }
    connection.keep_unsent(bytes);
    Ok(())
}

fn set_writable_interest(
    epoll: &OwnedFd,
    connection: &Connection,
    fd: usize,
    is_wanted: bool,
) -> Result<(), Error> {
    let out = if is_wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
    Ok(epoll::modify(epoll, &connection.socket, event_data(fd), epoll::EventFlags::IN | out)?)
}
