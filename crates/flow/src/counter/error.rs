//! The errors of a counter, one small type per operation. Each converts into an [`io::Error`], so
//! that `?` works.

use core::fmt;
use std::io;

use crate::Errno;

/// The shared page contains an invalid state, or changes without end, because another process has
/// written to it. A counter between threads is never corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Why a counter could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The maximum is zero.
    ZeroMaximum,
    /// The initial count is not below the maximum.
    InitialTooLarge,
    /// An error of the kernel, for example `EMFILE` if the process has no descriptor left. Only for
    /// shared counters.
    Os(Errno),
}

/// Why a write failed.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetMaximumError {
    /// The new maximum is not above the count.
    NotAboveCount,
    /// See [`Corrupt`].
    Corrupt,
}

/// Why a counter could not be split into parts or built from parts.
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

/// A failed conversion between a counter and its parts.
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
    BuildError,
    |e| match e {
        Self::ZeroMaximum => "the counter's maximum is zero",
        Self::InitialTooLarge => "the counter's initial count is not below its maximum",
        Self::Os(_) => "the kernel refused the counter's page or descriptors",
    },
    io::ErrorKind::InvalidInput,
    match e {
        BuildError::Os(errno) => Some(*errno),
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
        Self::Os(_) => "the kernel refused the counter's parts",
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
            (BuildError::ZeroMaximum.into(), InvalidInput),
            (BuildError::InitialTooLarge.into(), InvalidInput),
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
        assert_eq!(io::Error::from(BuildError::Os(Errno::MFILE)).raw_os_error(), number);
        assert_eq!(
            io::Error::from(PartsError { reason: Errno::MFILE.into(), given: () }).raw_os_error(),
            number
        );
        assert!(PartsReason::Os(Errno::MFILE).to_string().contains(&Errno::MFILE.to_string()));
    }
}
