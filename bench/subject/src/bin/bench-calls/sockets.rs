//! 64 bytes through a pair of sockets, and reads that find none.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use windlass_bench_driver::calls::Price;
use windlass_bench_driver::{Error, Unsupported};

use crate::raw::{FAILS, Step, leaked, steps};

const BYTES: usize = 64;

/// Two connected sockets, which block. A call for which there is work takes the same way.
fn pair(call: &str) -> Result<[OwnedFd; 2], Error> {
    if call.ends_with("_unix") {
        let (one, other) = UnixStream::pair()?;
        return Ok([one.into(), other.into()]);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nonblocking(call.contains("_none"))?;
    Ok([one.into(), other.into()])
}

pub(crate) fn price(call: &str) -> Result<Price, Error> {
    let sockets = pair(call)?;
    let [from, to] = [0, 1].map(|end: usize| sockets[end].as_raw_fd() as usize);
    let (bytes, room) = (leaked([0_u8; BYTES]), leaked([0_u8; BYTES]));
    let vector = leaked([bytes, BYTES]);
    let expected = if call.contains("_none") { FAILS } else { BYTES as isize };
    let read = Step::new(libc::SYS_read, &[to, room, BYTES], expected);
    let recv = Step::new(libc::SYS_recvfrom, &[to, room, BYTES, 0, 0, 0], expected);
    let write = Step::new(libc::SYS_write, &[from, bytes, BYTES], expected);
    let flags = libc::MSG_NOSIGNAL as usize;
    let send = Step::new(libc::SYS_sendto, &[from, bytes, BYTES, flags, 0, 0], expected);
    let writev = Step::new(libc::SYS_writev, &[from, vector, 1], expected);
    // `struct msghdr`: a name and its length, the vector and its length, control data and its
    // length, flags (sendmsg(2)).
    let message = leaked([0, 0, vector, 1, 0, 0, 0]);
    let sendmsg = Step::new(libc::SYS_sendmsg, &[from, message, flags], expected);
    Ok(match call {
        "write_read_unix" | "write_read_tcp" => steps([write, read], sockets),
        "send_recv_unix" | "send_recv_tcp" => steps([send, recv], sockets),
        "write_recv_tcp" => steps([write, recv], sockets),
        "send_read_tcp" => steps([send, read], sockets),
        "writev_read_tcp" => steps([writev, read], sockets),
        "sendmsg_recv_tcp" => steps([sendmsg, recv], sockets),
        "read_none_tcp" => steps([read], sockets),
        "recv_none_tcp" => steps([recv], sockets),
        _ => return Err(Unsupported("no such call").into()),
    })
}
