//! Descriptors over Unix sockets by the functions for any code. `streams_fds` has those of streams.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::FdFlags,
    net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt},
    pipe::{PipeFlags, pipe_with},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use windlass::{
    Errno,
    fd_passing::{
        FDS_MAX, RecvFdsError, SendFdsError, recv_with_fds, send_all_with_fds, send_with_fds,
    },
};
use windlass_testkit::{own_process::is_own_process, panics::caught};

/// A pipe whose end to write to is given away. Its end to read from shows when that is closed.
pub(crate) struct Sent {
    reader: File,
    writer: Option<OwnedFd>,
}

impl Sent {
    pub(crate) fn new() -> Self {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        Self { reader: reader.into(), writer: Some(writer) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.writer.as_ref().unwrap().as_fd()
    }

    /// Whether somebody has the other end. Closes the test's own first.
    pub(crate) fn is_open(&mut self) -> bool {
        self.writer = None;
        self.reader.read(&mut [0]).is_err()
    }

    /// Whether nobody has the other end any longer. It waits: a process that another test starts
    /// has duplicates of all descriptors for a moment.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.writer = None;
        await_hang_up(&self.reader)
    }

    /// Whether this is the other end.
    pub(crate) fn is(&mut self, fd: OwnedFd) -> bool {
        File::from(fd).write_all(b"!").unwrap();
        let mut byte = [0];
        matches!(self.reader.read(&mut byte), Ok(1)) && byte == *b"!"
    }
}

/// Waits until all other ends of a pipe are closed. False if that takes too long.
fn await_hang_up(reader: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&reader, PollFlags::empty())];
    let longest = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut polled, Some(&longest)).unwrap() > 0 && polled[0].revents() == PollFlags::HUP
}

pub(crate) fn sent(count: usize) -> Vec<Sent> {
    (0..count).map(|_| Sent::new()).collect()
}

pub(crate) fn fds(sent: &[Sent]) -> Vec<BorrowedFd<'_>> {
    sent.iter().map(Sent::fd).collect()
}

pub(crate) fn all_closed(sent: &mut [Sent]) -> bool {
    sent.iter_mut().all(Sent::is_closed)
}

#[test]
fn descriptors_come_in_order_and_are_closed_on_execve() {
    let (here, there) = UnixStream::pair().unwrap();
    for (count, has_credentials) in [(0, false), (1, false), (FDS_MAX, false), (FDS_MAX, true)] {
        // The credentials of the sender come before the descriptors.
        sockopt::set_socket_passcred(&there, has_credentials).unwrap();
        // A few pipes, again and again: a process may have few descriptors open.
        let mut sent = sent(count.min(16));
        let given: Vec<_> = fds(&sent).into_iter().cycle().take(count).collect();
        send_all_with_fds(&here, b"with", &given).unwrap();
        let mut buffer = [0; 10];
        let (len, received) = recv_with_fds(&there, &mut buffer, count).unwrap();
        assert_eq!((&buffer[..len], received.len()), (&b"with"[..], count));
        for (at, fd) in received.into_iter().enumerate() {
            assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
            assert!(sent[at % 16].is(fd), "{at} of {count}");
        }
        assert!(all_closed(&mut sent), "received once");
    }
}

#[test]
fn a_read_brings_the_descriptors_of_one_message() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut sent = sent(2);
    send_all_with_fds(&here, b"before ", &[]).unwrap();
    send_all_with_fds(&here, b"one ", &[sent[0].fd()]).unwrap();
    send_all_with_fds(&here, b"two ", &[sent[1].fd()]).unwrap();
    send_all_with_fds(&here, b"behind", &[]).unwrap();
    let mut buffer = [0; 64];
    let mut receive = |expected: &[u8], fds: usize| {
        let (len, received) = recv_with_fds(&there, &mut buffer, 1).unwrap();
        assert_eq!((&buffer[..len], received.len()), (expected, fds));
        received.into_iter().next()
    };
    let one = receive(b"before one ", 1).unwrap();
    let (len, received) = recv_with_fds(&there, &mut [], 1).unwrap();
    assert!(len == 0 && received.is_empty(), "an empty buffer takes nothing");
    let two = receive(b"two ", 1).unwrap();
    receive(b"behind", 0);
    assert!(sent[0].is(one) && sent[1].is(two));
}

#[test]
fn a_short_write_has_sent_the_descriptors_with_its_first_byte() {
    let (here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    let mut sent = sent(1);
    let bytes = vec![7; 4 << 20];
    let mut accepted = send_with_fds(&here, &bytes, &fds(&sent)).unwrap();
    assert!(accepted < bytes.len(), "the socket is full");
    assert_eq!(send_with_fds(&here, b"x", &fds(&sent)), Err(SendFdsError::Os(Errno::AGAIN)));
    let (mut received, mut descriptors) = (0, Vec::new());
    let mut buffer = vec![0; 64 << 10];
    while received < bytes.len() {
        match recv_with_fds(&there, &mut buffer, 1) {
            Ok((len, fds)) => {
                assert!(fds.is_empty() || received == 0, "they come with the first byte");
                received += len;
                descriptors.extend(fds);
            }
            Err(error) => assert_eq!(error, RecvFdsError::Os(Errno::AGAIN)),
        }
        if accepted < bytes.len() {
            accepted += send_with_fds(&here, &bytes[accepted..], &[]).unwrap_or(0);
        }
    }
    assert_eq!(descriptors.len(), 1);
    assert!(sent[0].is(descriptors.remove(0)) && all_closed(&mut sent));
}

#[test]
fn what_cannot_be_sent_is_an_error_and_sends_nothing() {
    let (here, there) = UnixStream::pair().unwrap();
    let sent = sent(1);
    let many = vec![sent[0].fd(); FDS_MAX + 1];
    assert_eq!(send_with_fds(&here, b"x", &many), Err(SendFdsError::TooMany));
    assert_eq!(send_with_fds(&here, b"", &fds(&sent)), Err(SendFdsError::NoBytes));
    let bad = send_with_fds(&here, b"x", &[rustix::fs::CWD]);
    assert_eq!(bad, Err(SendFdsError::Os(Errno::BADF)));
    there.set_nonblocking(true).unwrap();
    let nothing = recv_with_fds(&there, &mut [0; 8], 1).unwrap_err();
    assert_eq!(nothing, RecvFdsError::Os(Errno::AGAIN));
    // The kernel takes descriptors for TCP, and drops them.
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(send_with_fds(&tcp, b"x", &fds(&sent)), Err(SendFdsError::NotUnix));
    there.shutdown(Shutdown::Both).unwrap();
    assert_eq!(send_with_fds(&here, b"x", &fds(&sent)), Err(SendFdsError::Os(Errno::PIPE)));
}

#[test]
fn descriptors_that_nobody_expects_are_closed_and_reported() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut sent = sent(5);
    send_all_with_fds(&here, b"four", &fds(&sent[..4])).unwrap();
    send_all_with_fds(&here, b"one", &fds(&sent[4..])).unwrap();
    let mut buffer = [0; 8];
    let error = recv_with_fds(&there, &mut buffer, 3).unwrap_err();
    assert_eq!(error, RecvFdsError::TooMany { bytes: 4, fds: 4 });
    assert_eq!(&buffer[..4], b"four");
    assert!(all_closed(&mut sent[..4]));
    let (len, mut received) = recv_with_fds(&there, &mut buffer, 1).unwrap();
    assert_eq!(&buffer[..len], b"one", "the next message is as it was");
    assert!(sent[4].is(received.remove(0)));
}

#[test]
fn a_message_without_all_of_its_descriptors_is_an_error_and_leaves_none() {
    if !is_own_process(
        "fd_passing::a_message_without_all_of_its_descriptors_is_an_error_and_leaves_none",
    ) {
        return;
    }
    let (here, there) = UnixStream::pair().unwrap();
    let mut sent = sent(4);
    send_all_with_fds(&here, b"cut", &fds(&sent)).unwrap();
    // Room for two of the four. The numbers of the process are dense.
    let free = there.try_clone().unwrap();
    let number = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&free)).unwrap();
    drop(free);
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(number + 2), ..before }).unwrap();
    let mut buffer = [0; 8];
    let received = recv_with_fds(&there, &mut buffer, 4);
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(received.unwrap_err(), RecvFdsError::Truncated { bytes: 3 });
    assert!(all_closed(&mut sent));
}

#[test]
fn a_packet_that_is_cut_off_is_an_error_and_closes_its_descriptors() {
    let flags = SocketFlags::CLOEXEC;
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut sent = sent(1);
    send_all_with_fds(&here, b"too long", &fds(&sent)).unwrap();
    let received = recv_with_fds(&there, &mut [0; 3], 1);
    assert_eq!(received.unwrap_err(), RecvFdsError::Truncated { bytes: 3 });
    assert!(all_closed(&mut sent));
}

#[test]
fn a_peer_that_closes_leaves_what_it_has_sent() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut sent = sent(2);
    send_all_with_fds(&here, b"last", &fds(&sent[..1])).unwrap();
    drop(here);
    let (len, mut received) = recv_with_fds(&there, &mut [0; 8], 1).unwrap();
    assert!(len == 4 && sent[0].is(received.remove(0)));
    let (len, received) = recv_with_fds(&there, &mut [0; 8], 1).unwrap();
    assert!(len == 0 && received.is_empty(), "the end");
    // Descriptors that nobody has read end with the socket.
    let (here, there) = UnixStream::pair().unwrap();
    send_all_with_fds(&here, b"unread", &fds(&sent[1..])).unwrap();
    drop(there);
    assert!(all_closed(&mut sent));
}

#[test]
fn a_panic_behind_a_receive_leaves_none_open() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut sent = sent(1);
    send_all_with_fds(&here, b"x", &fds(&sent)).unwrap();
    let panic = caught(|| {
        let _received = recv_with_fds(&there, &mut [0; 8], 1).unwrap();
        panic!("a caller's");
    });
    assert!(panic.is_err());
    assert!(all_closed(&mut sent));
}
