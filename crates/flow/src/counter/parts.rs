//! A counter as three descriptors, which can be sent to another process.

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

/// The descriptors of a shared counter. Another process can receive them over a Unix socket
/// (`SCM_RIGHTS`) or inherit them.
///
/// ```
/// use windlass_flow::EventCounter;
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::builder().maximum(10).shared(true).build()?;
/// let parts = counter.clone().into_parts()?;
/// // Another process does this with the descriptors that it has received:
/// let peer = EventCounter::from_parts(parts)?;
/// peer.write(3)?;
/// assert_eq!(counter.read()?, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CounterParts {
    /// The page with the state: a memfd that is sealed against shrinking.
    pub page: OwnedFd,
    /// The reader's side: a timerfd used as a flag.
    pub reader: OwnedFd,
    /// The writer's side: another timerfd used as a flag.
    pub writer: OwnedFd,
}

impl EventCounter {
    /// Converts a shared counter into its parts, for another process. Other clones continue to
    /// work. To keep this one too, clone it first.
    ///
    /// If another clone exists, the descriptors are duplicated.
    ///
    /// # Errors
    /// The error returns the counter. Its reason is:
    /// - `NotShared` if the counter was not built as [shared](super::CounterBuilder::shared);
    /// - `Os`, the error of fcntl(2), if the descriptors cannot be duplicated.
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

    /// Builds a counter from parts that another process has sent. It is blocking, whatever the
    /// other process has set.
    ///
    /// The parts are checked, which limits the harm of a hostile peer. It can stall the waits of
    /// this process, end them spuriously, or set any count. It cannot block a call that promises
    /// not to wait. In a sandbox the calls need `timerfd_gettime`, `timerfd_settime` and `futex`;
    /// they are faster with `ioctl`.
    ///
    /// # Errors
    /// The error returns the parts. Its reason is:
    /// - `NotATimerFd` if one of the sides is not a timerfd;
    /// - `NotSealed` if the page is not a memfd, or is not sealed against shrinking;
    /// - `TooSmall`, `WrongMagic`, `WrongVersion` or `Corrupt` if the page is not that of a
    ///   counter, or not of this version;
    /// - `Os`, the error of fcntl(2), fstat(2) or mmap(2).
    pub fn from_parts(parts: CounterParts) -> Result<Self, PartsError<CounterParts>> {
        let CounterParts { page, reader, writer } = parts;
        let rejected = |errno: Errno, page, reader, writer| {
            let reason =
                if errno == Errno::INVAL { PartsReason::NotATimerFd } else { errno.into() };
            Err(PartsError { reason, given: CounterParts { page, reader, writer } })
        };
        let reader = match Flag::from_fd(reader) {
            Ok(reader) => reader,
            Err((errno, reader)) => return rejected(errno, page, reader, writer),
        };
        let writer = match Flag::from_fd(writer) {
            Ok(writer) => writer,
            Err((errno, writer)) => return rejected(errno, page, reader.into(), writer),
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
