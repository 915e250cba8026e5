//! A counter as three descriptors, which can go to another process.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::{
    EventCounter,
    core::Core,
    error::{PartsError, PartsReason},
    flag::Flag,
    page::{Mapping, Memory},
    sides::SideFd,
};
use crate::{Errno, sys::Scope};

/// What a shared counter consists of, to be sent to another process over a Unix socket
/// (`SCM_RIGHTS`), or inherited.
#[derive(Debug)]
pub struct CounterParts {
    /// The page with the state: a memfd sealed against shrinking.
    pub page: OwnedFd,
    /// The reader's side: a timerfd that is used as a flag.
    pub reader: OwnedFd,
    /// The writer's side: another.
    pub writer: OwnedFd,
}

impl EventCounter {
    /// Takes a shared counter apart, for another process. Other clones go on working, and so may
    /// this one: clone it first.
    ///
    /// The descriptors are duplicated when another clone lives.
    ///
    /// # Errors
    /// `NotShared`, or what the kernel says when there are no more descriptors. The counter is in
    /// the error.
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
            (Memory::Shared(mapping), Some(SideFd::Flag(reader)), Some(SideFd::Flag(writer))) => {
                Ok(CounterParts {
                    page: mapping.into_memfd(),
                    reader: reader.into(),
                    writer: writer.into(),
                })
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
                Err(PartsError {
                    reason: PartsReason::NotShared,
                    given: Self { core: Arc::new(core) },
                })
            }
        }
    }

    /// Makes a counter of what another process has sent, blocking whatever the other's is.
    ///
    /// The parts are checked, so that a hostile peer can never do more than mislead: it can stall
    /// this process's waits, make them end in vain, or give any count. It cannot make a call wait
    /// that promises not to. In a sandbox the calls need `timerfd_gettime`, `timerfd_settime` and
    /// `futex`, and are faster with `ioctl`.
    ///
    /// # Errors
    /// See [`PartsReason`]. The parts are in the error.
    pub fn from_parts(parts: CounterParts) -> Result<Self, PartsError<CounterParts>> {
        let CounterParts { page, reader, writer } = parts;
        let refused = |errno: Errno, page, reader, writer| {
            let reason =
                if errno == Errno::INVAL { PartsReason::NotATimerFd } else { errno.into() };
            Err(PartsError { reason, given: CounterParts { page, reader, writer } })
        };
        let reader = match Flag::from_fd(reader) {
            Ok(reader) => reader,
            Err((errno, reader)) => return refused(errno, page, reader, writer),
        };
        let writer = match Flag::from_fd(writer) {
            Ok(writer) => writer,
            Err((errno, writer)) => return refused(errno, page, reader.into(), writer),
        };
        match Mapping::open(page) {
            Ok((mapping, semaphore)) => {
                let mut core = Core::new(Memory::Shared(mapping), Scope::System, semaphore, false);
                core.reader = SideFd::Flag(reader).into();
                core.writer = SideFd::Flag(writer).into();
                Ok(Self { core: Arc::new(core) })
            }
            Err((reason, page)) => {
                let given = CounterParts { page, reader: reader.into(), writer: writer.into() };
                Err(PartsError { reason, given })
            }
        }
    }
}

fn duplicate(core: &Core) -> Result<CounterParts, PartsReason> {
    let (Memory::Shared(mapping), Some(reader), Some(writer)) =
        (&core.page, core.reader.get(), core.writer.get())
    else {
        return Err(PartsReason::NotShared);
    };
    let again =
        |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(PartsReason::Os);
    Ok(CounterParts {
        page: again(mapping.memfd())?,
        reader: again(reader.as_fd())?,
        writer: again(writer.as_fd())?,
    })
}
