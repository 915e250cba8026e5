//! Tells whether the loopback of vsock can be used. `/dev/vsock` may exist, and a connection not
//! succeed nevertheless. A test that needs one is skipped there, with the reason.

use std::{
    io::{self, Write as _},
    sync::OnceLock,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
        sockopt,
    },
};
use windlass::{Errno, vsock::VsockAddr};

/// The longest wait for a connection.
const LONGEST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn attempt() -> io::Result<()> {
    let socket = || socket_with(AddressFamily::VSOCK, SocketType::STREAM, FLAGS, None);
    let listener = socket()?;
    bind(&listener, &VsockAddr { cid: VsockAddr::CID_ANY, port: VsockAddr::PORT_ANY })?;
    listen(&listener, 1)?;
    let VsockAddr { port, .. } = getsockname(&listener)?.try_into()?;
    let client = socket()?;
    match connect(&client, &VsockAddr { cid: VsockAddr::CID_LOCAL, port }) {
        Err(Errno::INPROGRESS) => {}
        done => return Ok(done?),
    }
    if poll(&mut [PollFd::new(&client, PollFlags::OUT)], Some(&LONGEST))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(sockopt::socket_error(&client)??)
}

/// True if the test can use the loopback. If not, it writes a line, as
/// [`rings::are_to_be_had`](crate::rings::are_to_be_had) does.
pub fn has_loopback(test: &str) -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| attempt().err().map(|error| error.to_string()));
    let Some(why) = refusal else { return true };
    let line = format!("skipped here: {test}: no connection by the loopback of vsock: {why}\n");
    io::stderr().write_all(line.as_bytes()).expect("there is a standard error");
    false
}
