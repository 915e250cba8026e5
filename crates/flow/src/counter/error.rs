//! The errors of a counter, one small type per operation. Each converts into an [`io::Error`], so
//! that `?` works.

use core::fmt;
use std::io;

use crate::Errno;

/// The shared page contains an invalid state, or changes without end, because another process has
/// written to it. A counter between threads is never corrupt.
///
/// ```
/// use std::os::unix::fs::FileExt as _;
/// use windlass_flow::{Corrupt, EventCounter, ReadError};
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::builder().maximum(10).shared(true).build()?;
/// let page = std::fs::File::from(counter.clone().into_parts()?.page);
/// // Another process can write to the page: here a maximum of zero.
/// page.write_all_at(&[0; 4096], 0)?;
/// assert_eq!(counter.count(), Err(Corrupt));
/// assert_eq!(counter.try_read(), Err(ReadError::Corrupt));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Why a counter could not be built.
///
/// ```
/// use windlass_flow::{CounterBuildError, EventCounter};
///
/// assert_eq!(EventCounter::new(0).unwrap_err(), CounterBuildError::ZeroMaximum);
/// let full = EventCounter::builder().maximum(5).initial(5).build();
/// assert_eq!(full.unwrap_err(), CounterBuildError::InitialTooLarge);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterBuildError {
    /// The maximum is zero.
    ZeroMaximum,
    /// The initial count is not below the maximum.
    InitialTooLarge,
    /// An error of the kernel, for example `EMFILE` if the process has no descriptor left. Only for
    /// shared counters.
    Os(Errno),
}

/// Why a write failed.
///
/// ```
/// use std::{io, time::Duration};
/// use windlass_flow::{EventCounter, WriteError};
///
/// # fn main() -> io::Result<()> {
/// let counter = EventCounter::new(3)?;
/// counter.write(2)?;
/// assert_eq!(counter.try_write(1), Err(WriteError::WouldBlock));
/// assert_eq!(counter.write_timeout(1, Duration::ZERO), Err(WriteError::TimedOut));
/// assert_eq!(counter.write(0), Err(WriteError::Zero));
/// assert_eq!(counter.write(3), Err(WriteError::TooLarge));
/// let error = io::Error::from(WriteError::WouldBlock);
/// assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The write would reach the maximum, and must not wait.
    WouldBlock,
    /// The write would still reach the maximum at the timeout.
    TimedOut,
    /// A write of zero has no effect.
    Zero,
    /// The number is not below the maximum, so it could never fit. A waiting writer gets this error
    /// too if the maximum is lowered.
    TooLarge,
    /// See [`Corrupt`].
    Corrupt,
}

/// Why a read failed.
///
/// ```
/// use std::time::Duration;
/// use windlass_flow::{EventCounter, ReadError};
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(3)?;
/// assert_eq!(counter.try_read(), Err(ReadError::WouldBlock));
/// assert_eq!(counter.read_timeout(Duration::ZERO), Err(ReadError::TimedOut));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The count is zero, and the read must not wait.
    WouldBlock,
    /// The count was still zero at the timeout.
    TimedOut,
    /// See [`Corrupt`].
    Corrupt,
}

/// Why the maximum was not changed.
///
/// ```
/// use windlass_flow::{EventCounter, SetMaximumError};
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(10)?;
/// counter.write(4)?;
/// assert_eq!(counter.set_maximum(4), Err(SetMaximumError::NotAboveCount));
/// assert_eq!(counter.set_maximum(5), Ok(()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetMaximumError {
    /// The new maximum is not above the count.
    NotAboveCount,
    /// See [`Corrupt`].
    Corrupt,
}

/// Why a counter could not be split into parts or built from parts. See [`PartsError`].
///
/// ```
/// use windlass_flow::{EventCounter, PartsReason};
///
/// # fn main() -> std::io::Result<()> {
/// let mut parts = EventCounter::builder().shared(true).build()?.into_parts()?;
/// parts.reader = std::fs::File::open("/dev/null")?.into();
/// let error = EventCounter::from_parts(parts).unwrap_err();
/// assert_eq!(error.reason, PartsReason::NotATimerFd);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartsReason {
    /// The counter is not shared, so it has no page to send.
    NotShared,
    /// The page is not a memfd that is sealed against shrinking. A peer could truncate it, and the
    /// next access would raise `SIGBUS`.
    NotSealed,
    /// The page is shorter than 4096 bytes.
    TooSmall,
    /// The page does not belong to a counter.
    WrongMagic,
    /// The page belongs to a counter of another version of this crate.
    WrongVersion,
    /// The count is above the maximum, the maximum is zero, or unknown flags are set.
    Corrupt,
    /// The reader's or the writer's descriptor is not a timerfd.
    NotATimerFd,
    /// An error of the kernel.
    Os(Errno),
}

/// A failed conversion between a counter and its parts. It returns the counter or the parts.
///
/// ```
/// use windlass_flow::{EventCounter, PartsReason};
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(10)?;
/// counter.write(3)?;
/// let error = counter.into_parts().unwrap_err();
/// assert_eq!(error.reason, PartsReason::NotShared);
/// let counter = error.given;
/// assert_eq!(counter.read()?, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PartsError<T> {
    /// The reason.
    pub reason: PartsReason,
    /// The unchanged input.
    pub given: T,
}

impl From<Errno> for PartsReason {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// Writes the conversions of [`Corrupt`].
macro_rules! corrupt_is {
    ($($type:ident),*) => {$(
        impl From<Corrupt> for $type {
            fn from(Corrupt: Corrupt) -> Self {
                Self::Corrupt
            }
        }
    )*};
}
corrupt_is!(WriteError, ReadError, SetMaximumError, PartsReason);

/// Writes `Display`, `Error` and the conversion into [`io::Error`].
macro_rules! error_traits {
    ($type:ident, |$e:ident| $text:expr, $kind:expr) => {
        error_traits!($type, |$e| $text, $kind, None::<Errno>);
    };
    ($type:ident, |$e:ident| $text:expr, $kind:expr, $errno:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $e = self;
                f.write_str($text)?;
                match $errno {
                    Some(errno) => write!(f, ": {errno}"),
                    None => Ok(()),
                }
            }
        }
        impl std::error::Error for $type {}
        impl From<$type> for io::Error {
            fn from(error: $type) -> Self {
                let $e = &error;
                match $errno {
                    Some(errno) => errno.into(),
                    None => Self::new($kind, error),
                }
            }
        }
    };
}

const CORRUPT: &str = "the counter's shared page is corrupt";

error_traits!(Corrupt, |_e| CORRUPT, io::ErrorKind::InvalidData);

error_traits!(
    CounterBuildError,
    |e| match e {
        Self::ZeroMaximum => "the counter's maximum is zero",
        Self::InitialTooLarge => "the counter's initial count is not below its maximum",
        Self::Os(_) => "the kernel cannot create the counter's page or descriptors",
    },
    io::ErrorKind::InvalidInput,
    match e {
        CounterBuildError::Os(errno) => Some(*errno),
        _ => None,
    }
);

error_traits!(
    WriteError,
    |e| match e {
        Self::WouldBlock => "the write would reach the counter's maximum",
        Self::TimedOut => "the write still reaches the counter's maximum",
        Self::Zero => "the write is zero",
        Self::TooLarge => "the write is not below the counter's maximum",
        Self::Corrupt => CORRUPT,
    },
    match e {
        WriteError::WouldBlock => io::ErrorKind::WouldBlock,
        WriteError::TimedOut => io::ErrorKind::TimedOut,
        WriteError::Zero | WriteError::TooLarge => io::ErrorKind::InvalidInput,
        WriteError::Corrupt => io::ErrorKind::InvalidData,
    }
);

error_traits!(
    ReadError,
    |e| match e {
        Self::WouldBlock => "the count is zero",
        Self::TimedOut => "the count is still zero",
        Self::Corrupt => CORRUPT,
    },
    match e {
        ReadError::WouldBlock => io::ErrorKind::WouldBlock,
        ReadError::TimedOut => io::ErrorKind::TimedOut,
        ReadError::Corrupt => io::ErrorKind::InvalidData,
    }
);

error_traits!(
    SetMaximumError,
    |e| match e {
        Self::NotAboveCount => "the maximum is not above the count",
        Self::Corrupt => CORRUPT,
    },
    match e {
        SetMaximumError::NotAboveCount => io::ErrorKind::InvalidInput,
        SetMaximumError::Corrupt => io::ErrorKind::InvalidData,
    }
);

error_traits!(
    PartsReason,
    |e| match e {
        Self::NotShared => "the counter is not shared between processes",
        Self::NotSealed => "the page is not a memfd sealed against shrinking",
        Self::TooSmall => "the page is too small",
        Self::WrongMagic => "the page is not one of a counter",
        Self::WrongVersion => "the page is of another version",
        Self::Corrupt => CORRUPT,
        Self::NotATimerFd => "a side's descriptor is not a timerfd",
        Self::Os(_) => "the kernel rejected the counter's parts",
    },
    match e {
        PartsReason::NotShared => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::InvalidData,
    },
    match e {
        PartsReason::Os(errno) => Some(*errno),
        _ => None,
    }
);

impl<T> fmt::Display for PartsError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for PartsError<T> {}

impl<T> From<PartsError<T>> for io::Error {
    fn from(e: PartsError<T>) -> Self {
        e.reason.into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_kind_and_text() {
        use io::ErrorKind::{InvalidData, InvalidInput, TimedOut, WouldBlock};
        let told: [(io::Error, io::ErrorKind); 21] = [
            (Corrupt.into(), InvalidData),
            (CounterBuildError::ZeroMaximum.into(), InvalidInput),
            (CounterBuildError::InitialTooLarge.into(), InvalidInput),
            (WriteError::WouldBlock.into(), WouldBlock),
            (WriteError::TimedOut.into(), TimedOut),
            (WriteError::Zero.into(), InvalidInput),
            (WriteError::TooLarge.into(), InvalidInput),
            (WriteError::from(Corrupt).into(), InvalidData),
            (ReadError::WouldBlock.into(), WouldBlock),
            (ReadError::TimedOut.into(), TimedOut),
            (ReadError::from(Corrupt).into(), InvalidData),
            (SetMaximumError::NotAboveCount.into(), InvalidInput),
            (SetMaximumError::from(Corrupt).into(), InvalidData),
            (PartsReason::NotShared.into(), InvalidInput),
            (PartsReason::NotSealed.into(), InvalidData),
            (PartsReason::TooSmall.into(), InvalidData),
            (PartsReason::WrongMagic.into(), InvalidData),
            (PartsReason::WrongVersion.into(), InvalidData),
            (PartsReason::from(Corrupt).into(), InvalidData),
            (PartsReason::NotATimerFd.into(), InvalidData),
            (PartsError { reason: PartsReason::TooSmall, given: () }.into(), InvalidData),
        ];
        for (error, kind) in told {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn the_kernels_number_survives() {
        let number = Some(Errno::MFILE.raw_os_error());
        assert_eq!(io::Error::from(CounterBuildError::Os(Errno::MFILE)).raw_os_error(), number);
        assert_eq!(
            io::Error::from(PartsError { reason: Errno::MFILE.into(), given: () }).raw_os_error(),
            number
        );
        assert!(PartsReason::Os(Errno::MFILE).to_string().contains(&Errno::MFILE.to_string()));
    }
}
