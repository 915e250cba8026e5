//! A counter as three descriptors, which can go to another process.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, OFlags},
};

use super::{
    EventCounter,
    core::Core,
    error::{PartsError, PartsReason},
    page::{Mapping, Memory},
};
use crate::{
    Errno,
    sys::{EventFd, Scope},
};

/// What a shared counter consists of, to be sent to another process over a Unix socket (`SCM_RIGHTS`), or inherited.
#[derive(Debug)]
pub struct CounterParts {
    /// The page with the state: a memfd sealed against shrinking.
    pub page: OwnedFd,
    /// The reader's side: an eventfd.
    pub reader: OwnedFd,
    /// The writer's side: an eventfd.
    pub writer: OwnedFd,
}

impl EventCounter {
    /// Takes a shared counter apart, for another process. Other clones go on working, and so may this one: clone it first.
    ///
    /// The descriptors are duplicated when another clone lives.
    ///
    /// # Errors
    /// `NotShared`, or what the kernel says when there are no more descriptors. The counter is in the error.
    pub fn into_parts(self) -> Result<CounterParts, PartsError<Self>> {
        let core = match Arc::try_unwrap(self.core) {
            Ok(core) => core,
            Err(core) => {
                let parts = duplicate(&core);
                return parts.map_err(|reason| PartsError { reason, given: Self { core } });
            }
        };
        let Core { page, scope, semaphore, nonblocking, reader, writer } = core;
        match (page, reader.into_inner(), writer.into_inner()) {
            (Memory::Shared(mapping), Some(reader), Some(writer)) => {
                Ok(CounterParts { page: mapping.into_memfd(), reader: reader.into(), writer: writer.into() })
            }
            (page, reader, writer) => {
                let core = Core {
                    page,
                    scope,
                    semaphore,
                    nonblocking,
                    reader: reader.map_or_else(Default::default, Into::into),
                    writer: writer.map_or_else(Default::default, Into::into),
                };
                Err(PartsError { reason: PartsReason::NotShared, given: Self { core: Arc::new(core) } })
            }
        }
    }

    /// Makes a counter of what another process has sent, blocking whatever the other's is.
    ///
    /// The parts are checked, so that a hostile peer can never do more than mislead: it can stall this process's waits, make them end in vain, or give any count.
    ///
    /// # Errors
    /// See [`PartsReason`]. The parts are in the error.
    pub fn from_parts(parts: CounterParts) -> Result<Self, PartsError<CounterParts>> {
        let checked = check_eventfd(parts.reader.as_fd()).and_then(|()| check_eventfd(parts.writer.as_fd()));
        if let Err(reason) = checked {
            return Err(PartsError { reason, given: parts });
        }
        let CounterParts { page, reader, writer } = parts;
        match Mapping::open(page) {
            Ok((mapping, semaphore)) => {
                let mut core = Core::new(Memory::Shared(mapping), Scope::System, semaphore, false);
                core.reader = EventFd::from(reader).into();
                core.writer = EventFd::from(writer).into();
                Ok(Self { core: Arc::new(core) })
            }
            Err((reason, page)) => Err(PartsError { reason, given: CounterParts { page, reader, writer } }),
        }
    }
}

fn duplicate(core: &Core) -> Result<CounterParts, PartsReason> {
    let (Memory::Shared(mapping), Some(reader), Some(writer)) = (&core.page, core.reader.get(), core.writer.get())
    else {
        return Err(PartsReason::NotShared);
    };
    let again = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(PartsReason::Os);
    Ok(CounterParts { page: again(mapping.memfd())?, reader: again(reader.as_fd())?, writer: again(writer.as_fd())? })
}

/// Whether this looks like an eventfd to calls that change nothing, whatever it is; a jail may have no `/proc` to ask.
///
/// What passes and is none (an expired timerfd, say) is nothing worse than a peer that plays with an eventfd: no call on it waits
/// unless the peer wills it, and what the calls answer is not relied on.
fn check_eventfd(fd: BorrowedFd<'_>) -> Result<(), PartsReason> {
    let mode = rustix::fs::fcntl_getfl(fd)?;
    if !mode.contains(OFlags::NONBLOCK | OFlags::RDWR) {
        return Err(PartsReason::NotAnEventFd);
    }
    // Only anonymous inodes have no type: no pipe, which would raise `SIGPIPE` at a write, no socket, file or device.
    let file_type = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    // A read of one byte is `EINVAL` to an eventfd, whatever it holds: eventfd_read() in fs/eventfd.c.
    if file_type != FileType::Unknown || rustix::io::read(fd, &mut [0; 1]) != Err(Errno::INVAL) {
        return Err(PartsReason::NotAnEventFd);
    }
    // An eventfd is readable, or writable, or both. Few others are ever writable.
    let mut set = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::OUT)];
    match poll(&mut set, Some(&Timespec::default())) {
        Ok(1) if !set[0].revents().contains(PollFlags::ERR) => Ok(()),
        Ok(_) => Err(PartsReason::NotAnEventFd),
        Err(errno) => Err(errno.into()),
    }
}
