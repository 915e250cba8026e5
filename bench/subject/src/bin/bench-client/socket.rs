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

/// The key of RFC 6455 section 1.3, and its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Longest time without a word of the server.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Room for what is received at once.
pub(crate) const RECEIVE_BYTES: usize = 128 * 1024;

/// The request for an upgrade.
pub(crate) fn request(address: SocketAddr, path: &str, deflate: bool) -> Vec<u8> {
    let extension = if deflate {
        "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n"
    } else {
        ""
    };
    format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n{extension}\r\n"
    )
    .into_bytes()
}

/// Whether these bytes are the whole answer to an upgrade; `None` if more must come.
///
/// # Errors
///
/// If it is a refusal.
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

/// An upgraded connection that does not block.
pub(crate) fn open(address: SocketAddr, path: &str, deflate: bool) -> Result<TcpStream, Error> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
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

/// What a call that does not block came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Bytes(usize),
    /// Not now.
    Later,
}

/// One read.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Taken, Error> {
    match recv(socket, buffer, RecvFlags::empty()) {
        Ok((0, _)) => Err("the server has closed a connection".into()),
        Ok((count, _)) => Ok(Taken::Bytes(count)),
        Err(Errno::AGAIN) => Ok(Taken::Later),
        Err(error) => Err(error.into()),
    }
}

/// One write.
pub(crate) fn transmit(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Error> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// When a socket can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Whenever it is: little is under way.
    Always,
    /// It may have to be waited for.
    WhereThereIsRoom,
}

/// The descriptors that are waited for.
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

    /// Watches a socket's edges: what is told of once is not looked at again in the next wait,
    /// which is what a client can do to be cheap. It must be read from until less has come than
    /// there was room for.
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

    /// Waits, and says how much is ready.
    pub(crate) fn wait(&mut self) -> Result<usize, Error> {
        self.events.clear();
        let timeout = Timespec::try_from(SILENCE_MAX)?;
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
                Ok(0) => return Err("the server is silent".into()),
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The number of one that is ready: something has come, or there is room again for what the
    /// kernel would not take.
    pub(crate) fn ready(&self, index: usize) -> usize {
        self.events[index].data.u64() as usize
    }
}
