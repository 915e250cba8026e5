//! Descriptors over a socket.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use windlass_flow::{CounterParts, EventCounter};

const SPACE: usize = rustix::cmsg_space!(ScmRights(3));

pub(crate) fn send(socket: impl AsFd, counter: &EventCounter) {
    let parts = counter.clone().into_parts().unwrap();
    let fds = [parts.page.as_fd(), parts.reader.as_fd(), parts.writer.as_fd()];
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    assert_eq!(sendmsg(socket, &[IoSlice::new(b"c")], &mut control, SendFlags::empty()), Ok(1));
}

pub(crate) fn receive(socket: impl AsFd) -> EventCounter {
    EventCounter::from_parts(receive_parts(socket)).unwrap()
}

pub(crate) fn receive_parts(socket: impl AsFd) -> CounterParts {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got =
        recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)
            .unwrap();
    assert!(got.bytes == 1 && !got.flags.contains(ReturnFlags::CTRUNC));
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let [page, reader, writer] = fds.try_into().unwrap();
    CounterParts { page, reader, writer }
}
