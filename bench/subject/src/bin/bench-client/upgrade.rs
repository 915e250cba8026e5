//! Connections that are opened, upgraded and closed by the client.
#![allow(unsafe_code, reason = "setsockopt of an option that rustix does not have")]

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use windlass_bench_driver::client::{ServerClock, Window};
use windlass_bench_driver::protocol::{Outcome, ServerInfo};
use windlass_bench_driver::{Error, Measured};

use crate::socket::{self, Poll, ReadResult, Writes, is_upgraded};

/// Number of connections of the warm-up, or that of the measurement if it is less: a slice that is
/// counted in steps is short.
const WARM: u64 = 200;

pub(crate) struct UpgradeClient {
    poll: Poll,
    address: SocketAddr,
    request: Vec<u8>,
    /// The connections in flight, each with the received part of its response.
    slots: Vec<Option<(TcpStream, Vec<u8>)>>,
    /// Number of connections begun.
    begun: u32,
    /// A checked response. Another one with the same bytes is not parsed again.
    known: Vec<u8>,
    clock: ServerClock,
}

impl UpgradeClient {
    pub(crate) fn new(server: &ServerInfo, parallel: usize) -> Result<Self, Error> {
        let request = socket::request(server.address, "/", false);
        let slots = std::iter::repeat_with(|| None).take(parallel).collect();
        let clock = ServerClock::of(server.process)?;
        Ok(Self {
            poll: Poll::new()?,
            address: server.address,
            request,
            slots,
            begun: 0,
            known: Vec::new(),
            clock,
        })
    }

    fn begin(&mut self, number: usize) -> Result<(), Error> {
        self.begun = self.begun.wrapping_add(1);
        let stream = connect(self.address, self.begun)?;
        if socket::transmit(&stream, &self.request)? != self.request.len() {
            return Err("a request does not fit into a new socket".into());
        }
        self.poll.add(&stream, number, Writes::Always)?;
        self.slots[number] = Some((stream, Vec::new()));
        Ok(())
    }

    /// Reads the response. Returns true when it is complete.
    fn receive(&mut self, number: usize) -> Result<bool, Error> {
        let Some((socket, answer)) = &mut self.slots[number] else {
            return Err("nobody was asked".into());
        };
        let mut buffer = [0; 1024];
        let ReadResult::Bytes(count) = socket::receive(&*socket, &mut buffer)? else {
            return Ok(false);
        };
        let came = &buffer[..count];
        if answer.is_empty() && came == self.known {
            return Ok(true);
        }
        answer.extend_from_slice(came);
        if is_upgraded(answer, false)?.is_none() {
            return Ok(false);
        }
        self.known.clone_from(answer);
        Ok(true)
    }
}

/// Begins a connection. On loopback it is established at once, before the server accepts it.
pub(crate) fn connect(address: SocketAddr, number: u32) -> Result<TcpStream, Error> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    leave_port_to_connect(&socket)?;
    bind(&socket, &SocketAddr::from((source(number), 0)))?;
    while let Err(error) = rustix::net::connect(&socket, &address) {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(TcpStream::from(socket))
}

/// Returns the local address, a different one of this host each time. The side that closes first
/// keeps the port for a minute. With one address the client would soon spend its time with the
/// search for a free port.
fn source(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = (1 + number % 50_000).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Makes connect(2) choose the port, which knows both addresses, instead of bind(2) (ip(7),
/// IP_BIND_ADDRESS_NO_PORT).
fn leave_port_to_connect(socket: &OwnedFd) -> std::io::Result<()> {
    let on: libc::c_int = 1;
    let (level, option) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the value is an integer that is readable for the length of the call.
    match unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length)
    } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Measured for UpgradeClient {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let mut window = Window::new(self.clock, WARM.min(rounds), rounds);
        let mut under_way = self.slots.len();
        (0..under_way).try_for_each(|number| self.begin(number))?;
        while under_way > 0 {
            for index in 0..self.poll.wait()? {
                let number = self.poll.ready(index);
                if !self.receive(number)? {
                    continue;
                }
                // Closing the socket removes it from the poll.
                self.slots[number] = None;
                if window.count(1) { self.begin(number)? } else { under_way -= 1 }
            }
        }
        Ok(window.outcome())
    }
}
