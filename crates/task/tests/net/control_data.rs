//! Control data of Unix streams. It ends a read early, so a read is short while more waits.

use std::{
    fs::File,
    io::ErrorKind,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
};
use windlass::fd_passing::{FDS_MAX, RecvFdsError, send_all_with_fds};
use windlass_task::{net::UnixStream, spawn};

use crate::{
    scenarios::Build,
    tools::{at_most, both, run},
};

/// Sends bytes, with a descriptor if `has_descriptor`.
fn send(stream: &StdStream, bytes: &[u8], has_descriptor: bool) {
    let descriptors = [stream.as_fd()];
    let descriptors = if has_descriptor { &descriptors[..] } else { &[] };
    send_all_with_fds(stream, bytes, descriptors).unwrap();
}

fn descriptors_at_any_place_and_buffers_of_any_length(build: Build) {
    run(build, async {
        for place in 0..3 {
            for room in 1..=13 {
                let (there, here) = StdStream::pair().unwrap();
                let mut here = UnixStream::from_std(here).unwrap();
                for (number, bytes) in [b"aaaa", b"bbbb", b"cccc"].iter().enumerate() {
                    send(&there, *bytes, number == place);
                }
                let mut received = Vec::new();
                let mut buffer = vec![0; room];
                while received.len() < 12 {
                    let count = here.read(&mut buffer).await.unwrap();
                    assert_ne!(count, 0);
                    received.extend_from_slice(&buffer[..count]);
                }
                assert_eq!(received, b"aaaabbbbcccc", "descriptor {place}, room {room}");
                drop(there);
                assert_eq!(here.read(&mut buffer).await.unwrap(), 0);
            }
        }
    });
}

/// A pipe whose end to write to is sent away, and the end that tells what became of it.
fn sent_pipe() -> (File, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    (reader.into(), writer)
}

/// Waits until nobody has the other end any longer. False if that takes too long. A process that
/// another test starts has duplicates of all descriptors for a moment.
fn is_closed(reader: &File) -> bool {
    let mut polled = [PollFd::new(reader, PollFlags::empty())];
    let longest = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut polled, Some(&longest)).unwrap() > 0 && polled[0].revents() == PollFlags::HUP
}

fn descriptors_are_received(build: Build) {
    run(build, async {
        let (there, here) = StdStream::pair().unwrap();
        let here = UnixStream::from_std(here).unwrap();
        send(&there, b"plain", false);
        send(&there, b"with", true);
        send(&there, b"plain", false);
        let (mut received, mut descriptors) = (Vec::new(), Vec::new());
        while received.len() < 14 {
            let mut buffer = [0; 64];
            let (count, fds) = here.recv_with_fds(&mut buffer, 1).await.unwrap();
            assert!(fds.is_empty() || received.len() + count == 9, "not of a later message");
            received.extend_from_slice(&buffer[..count]);
            descriptors.extend(fds);
        }
        assert_eq!(received, b"plainwithplain");
        assert_eq!(descriptors.len(), 1);
    });
}

fn descriptors_wait_for_room_and_go_once(build: Build) {
    run(build, async {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, writer) = sent_pipe();
        let bytes = vec![7; 4 << 20];
        let sending = async {
            while here.try_write(&[1; 4096]).is_ok() {}
            // Full, so that it waits before it sends anything.
            let waits = at_most(1, here.send_with_fds(b"x", &[writer.as_fd()])).await;
            assert!(waits.is_none());
            here.send_all_with_fds(&bytes, &[writer.as_fd()]).await.unwrap();
        };
        let receiving = async {
            let (mut buffer, mut sevens, mut descriptors) = (vec![0; 64 << 10], 0, Vec::new());
            while sevens < bytes.len() {
                let (count, fds) = there.recv_with_fds(&mut buffer, 1).await.unwrap();
                let is_first = sevens == 0;
                sevens += buffer[..count].iter().filter(|byte| **byte == 7).count();
                assert_eq!(fds.len(), usize::from(is_first && sevens > 0), "with the first byte");
                descriptors.extend(fds);
            }
            descriptors
        };
        let (_, descriptors) = both(sending, receiving).await;
        drop((writer, descriptors));
        assert!(is_closed(&reader));
    });
}

fn descriptors_that_nobody_expects_are_closed_and_reported(build: Build) {
    run(build, async {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, writer) = sent_pipe();
        // A receive that is given up while it waits takes nothing.
        let mut buffer = [0; 8];
        assert!(at_most(1, there.recv_with_fds(&mut buffer, 2)).await.is_none());
        here.send_all_with_fds(b"two", &[writer.as_fd(), writer.as_fd()]).await.unwrap();
        drop(writer);
        let error = there.recv_with_fds(&mut buffer, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let reason = error.into_inner().unwrap().downcast::<RecvFdsError>().unwrap();
        assert_eq!(*reason, RecvFdsError::TooMany { bytes: 3, fds: 2 });
        assert!(is_closed(&reader));
        let many = vec![there.as_fd(); FDS_MAX + 1];
        let error = here.send_with_fds(b"x", &many).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        drop(here);
        let (count, descriptors) = there.recv_with_fds(&mut buffer, 1).await.unwrap();
        assert!(count == 0 && descriptors.is_empty(), "the end");
    });
}

fn a_task_that_panics_closes_what_it_has_received(build: Build) {
    run(build, async {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, writer) = sent_pipe();
        here.send_all_with_fds(b"x", &[writer.as_fd()]).await.unwrap();
        drop(writer);
        let task = spawn(async move {
            let _received = there.recv_with_fds(&mut [0; 8], 1).await.unwrap();
            std::panic::resume_unwind(Box::new("expected"));
        });
        assert!(task.await.is_err());
        assert!(is_closed(&reader));
    });
}

fn many_control_messages_between_two_looks(build: Build) {
    run(build, async {
        let (there, here) = StdStream::pair().unwrap();
        let mut here = UnixStream::from_std(here).unwrap();
        for round in 1..20 {
            for _ in 0..round {
                send(&there, b"x", true);
                send(&there, b"y", false);
            }
            let (mut received, mut buffer) = (Vec::new(), [0; 64]);
            while received.len() < 2 * round {
                let count = here.read(&mut buffer).await.unwrap();
                assert_ne!(count, 0);
                received.extend_from_slice(&buffer[..count]);
            }
            assert_eq!(received, b"xy".repeat(round));
        }
    });
}

scenarios! {
    descriptors_at_any_place_and_buffers_of_any_length,
    descriptors_are_received,
    descriptors_wait_for_room_and_go_once,
    descriptors_that_nobody_expects_are_closed_and_reported,
    a_task_that_panics_closes_what_it_has_received,
    many_control_messages_between_two_looks,
}
