//! Connections to a server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use windlass_bench_driver::Error;

/// The key of RFC 6455 section 1.3, and the accept value for it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Maximum time without a byte from the server.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Size of the receive buffer.
pub(crate) const RECEIVE_BYTES: usize = 128 * 1024;

/// The request for an upgrade.
pub(crate) fn request(address: SocketAddr, path: &str, deflate: bool) -> Vec<u8> {
    let extension = if deflate {
        "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
         client_no_context_takeover\r\n"
    } else {
        ""
    };
    format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n{extension}\r\n"
    )
    .into_bytes()
}

/// Returns whether these bytes are the complete response to an upgrade; `None` if it is incomplete.
///
/// # Errors
///
/// If the server rejects the upgrade.
pub(crate) fn is_upgraded(answer: &[u8], deflate: bool) -> Result<Option<()>, Error> {
    if !answer.ends_with(b"\r\n\r\n") {
        return Ok(None);
    }
    let text = std::str::from_utf8(answer)?;
    let has = |name: &str, wanted: &dyn Fn(&str) -> bool| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields
            .into_iter()
            .any(|(field, value)| field.eq_ignore_ascii_case(name) && wanted(value.trim()))
    };
    let without_takeover = |value: &str| value.contains("server_no_context_takeover");
    let agreed = has("sec-websocket-extensions", &without_takeover);
    if text.starts_with("HTTP/1.1 101 ")
        && has("sec-websocket-accept", &|value| value == ACCEPT)
        && agreed == deflate
    {
        Ok(Some(()))
    } else {
        Err(format!("no upgrade as asked for: {text}").into())
    }
}

/// Opens an upgraded, non-blocking connection.
pub(crate) fn open(address: SocketAddr, path: &str, deflate: bool) -> Result<TcpStream, Error> {
    let mut socket = connect(address)?;
    socket.write_all(&request(address, path, deflate))?;
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while is_upgraded(&answer, deflate)?.is_none() {
        match socket.read(&mut piece)? {
            0 => return Err("closed in the middle of the upgrade".into()),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Opens a connection that blocks.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream, Error> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    Ok(socket)
}

/// The result of a non-blocking call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    Bytes(usize),
    /// It would block.
    Later,
}

/// Reads once.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<ReadResult, Error> {
    match recv(socket, buffer, RecvFlags::empty()) {
        Ok((0, _)) => Err("the server has closed a connection".into()),
        Ok((count, _)) => Ok(ReadResult::Bytes(count)),
        Err(Errno::AGAIN) => Ok(ReadResult::Later),
        Err(error) => Err(error.into()),
    }
}

/// Writes once.
pub(crate) fn transmit(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Error> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The interest in writability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// None: few bytes are in flight, so the socket is always writable.
    Always,
    /// A write may have to wait.
    WhereThereIsRoom,
}

/// The watched descriptors.
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(512),
        })
    }

    /// Watches a socket edge-triggered, which makes the client cheap, because a reported event is
    /// not checked again by the next wait. The socket must be read until a read returns less than
    /// the buffer's size.
    pub(crate) fn add(
        &self,
        socket: impl AsFd,
        number: usize,
        writes: Writes,
    ) -> Result<(), Error> {
        let out = match writes {
            Writes::Always => epoll::EventFlags::empty(),
            Writes::WhereThereIsRoom => epoll::EventFlags::OUT,
        };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET | out;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(number as u64), flags)?)
    }

    /// Waits, and returns the number of ready sockets.
    pub(crate) fn wait(&mut self) -> Result<usize, Error> {
        match self.wait_within(SILENCE_MAX)? {
            0 => Err("the server is silent".into()),
            count => Ok(count),
        }
    }

    /// Waits for at most this time, and returns the number of ready sockets.
    pub(crate) fn wait_within(&mut self, limit: Duration) -> Result<usize, Error> {
        self.events.clear();
        let timeout = Timespec::try_from(limit)?;
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the number of a ready socket, which is readable or writable again.
    pub(crate) fn ready(&self, index: usize) -> usize {
        self.events[index].data.u64() as usize
    }
}
