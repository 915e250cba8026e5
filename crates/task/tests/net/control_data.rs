//! Control data of Unix streams. It ends a read early, so a read is short while more waits.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use windlass_task::{Direction, net::UnixStream};

use crate::{scenarios::Build, tools::run};

/// Sends bytes, with a descriptor if `has_descriptor`.
fn send(stream: &StdStream, bytes: &[u8], has_descriptor: bool) {
    let descriptors = [stream.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if has_descriptor {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    let sent =
        rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty());
    assert_eq!(sent.unwrap(), bytes.len());
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

fn descriptors_are_received(build: Build) {
    run(build, async {
        let (there, here) = StdStream::pair().unwrap();
        let here = UnixStream::from_std(here).unwrap();
        send(&there, b"plain", false);
        send(&there, b"with", true);
        send(&there, b"plain", false);
        let (mut received, mut descriptors) = (Vec::new(), Vec::<OwnedFd>::new());
        while received.len() < 14 {
            let mut buffer = [0; 64];
            let receive = |stream: &StdStream| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                let message = rustix::net::recvmsg(stream, &mut parts, &mut control, flags)?;
                for control in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = control {
                        descriptors.extend(rights);
                    }
                }
                Ok(message.bytes)
            };
            let count = here.async_io(Direction::Read, receive).await.unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(received, b"plainwithplain");
        assert_eq!(descriptors.len(), 1);
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
            let mut left = 2 * round;
            while left > 0 {
                left -= here.read(&mut [0; 64]).await.unwrap();
            }
        }
    });
}

scenarios! {
    descriptors_at_any_place_and_buffers_of_any_length,
    descriptors_are_received,
    many_control_messages_between_two_looks,
}
