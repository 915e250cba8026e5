//! The messages between the two servers.

use std::{
    io::{self, ErrorKind},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustix::{
    net::sockopt,
    process::{Pid, geteuid},
};
use serde::{Deserialize, Serialize};
use windlass::fd_passing::{recv_with_fds, send_with_fds};

/// Maximum number of sockets in a message.
pub(super) const SOCKETS_MAX: usize = 64;

/// Maximum length of a message. A name is at most as long as a path of a Unix socket and its role.
const MESSAGE_MAX: usize = 128 << 10;

/// A message, as JSON.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Packet {
    /// The old server, of this process, passes sockets of these names.
    Sockets { process: i32, names: Vec<String>, is_last: bool },
    /// The new server serves these.
    Ready { taken: Vec<String> },
    /// The old server accepts no longer.
    Granted,
}

/// Sends a message with descriptors.
pub(super) fn send(
    socket: impl AsFd,
    packet: &Packet,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(packet).map_err(io::Error::other)?;
    if descriptors.len() > SOCKETS_MAX {
        return Err(ErrorKind::InvalidInput.into());
    }
    let sent = send_with_fds(socket, &text, descriptors)?;
    if sent == text.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// Receives a message with its descriptors, which are closed on execve(2).
pub(super) fn receive(socket: impl AsFd) -> io::Result<(Packet, Vec<OwnedFd>)> {
    let mut text = vec![0; MESSAGE_MAX];
    let (len, descriptors) = recv_with_fds(socket, &mut text, SOCKETS_MAX)?;
    if len == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let packet = serde_json::from_slice(&text[..len]);
    Ok((packet.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?, descriptors))
}

/// Checks that the other process has the user of this one. Returns its ID. On the socket of a
/// client it is that of the process that has called listen(2), which may have handed the socket
/// over since.
pub(super) fn check_peer(socket: &OwnedFd) -> anyhow::Result<Pid> {
    let peer = sockopt::socket_peercred(socket).context("cannot ask for the other process")?;
    let (other, own) = (peer.uid.as_raw(), geteuid().as_raw());
    ensure!(
        other == own,
        "the other process has user {other}, and this one has user {own}; they must be the same"
    );
    Ok(peer.pid)
}

/// Limits each wait for the other process.
pub(super) fn set_timeout(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(limit))?;
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(limit))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    };

    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("there are descriptors");
        set_timeout(&b, Duration::from_secs(20)).expect("a timeout can be set");
        (a, b)
    }

    #[test]
    fn a_message_comes_with_its_descriptors_in_order() {
        let (a, b) = pair();
        let files: Vec<OwnedFd> = (0..SOCKETS_MAX)
            .map(|at| {
                let file = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC);
                let file = File::from(file.expect("there is memory"));
                file.write_all_at(&[u8::try_from(at).expect("a small number")], 0).expect("it can");
                file.into()
            })
            .collect();
        let names = (0..SOCKETS_MAX).map(|at| format!("socket {at}")).collect();
        let sent = Packet::Sockets { process: 7, names, is_last: true };
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&a, &sent, &borrowed).expect("there is room");
        let (packet, received) = receive(&b).expect("it comes");
        assert_eq!((packet, received.len()), (sent, SOCKETS_MAX));
        for (at, file) in received.into_iter().enumerate() {
            let flags = rustix::io::fcntl_getfd(&file).expect("it is open");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{}", file.as_raw_fd());
            let mut byte = [0];
            File::from(file).read_exact_at(&mut byte, 0).expect("it has one");
            assert_eq!(usize::from(byte[0]), at);
        }
        let more: Vec<_> = (0..=SOCKETS_MAX).map(|_| files[0].as_fd()).collect();
        assert_eq!(send(&a, &Packet::Granted, &more).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn an_end_and_nonsense_are_errors() {
        let (a, b) = pair();
        rustix::net::send(&a, b"{}", SendFlags::empty()).expect("there is room");
        assert_eq!(receive(&b).unwrap_err().kind(), ErrorKind::InvalidData);
        rustix::net::send(&a, &vec![b' '; MESSAGE_MAX + 1], SendFlags::empty()).expect("room");
        assert_eq!(receive(&b).unwrap_err().kind(), ErrorKind::InvalidData, "it was cut off");
        drop(a);
        assert_eq!(receive(&b).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (a, _b) = pair();
        assert_eq!(check_peer(&a).expect("the same user"), rustix::process::getpid());
    }
}
