//! The choice of a backend.

use core::{fmt, str::FromStr};

use crate::UnknownBackend;

/// The kernel interface by which the reactor learns of readiness.
///
/// All backends keep the same contract. A backend rejects an operation that it does not support:
///
/// | | [`Epoll`](Self::Epoll) | [`Uring`](Self::Uring) | [`Poll`](Self::Poll) |
/// |---|---|---|---|
/// | level-triggered, one-shot, empty interest | yes | yes | yes |
/// | [edge-triggered](crate::Interest::edge_triggered) | yes | yes | `Unsupported` |
/// | [exclusive](crate::Interest::exclusive) | yes | yes | `Unsupported` |
/// | [wakeup](crate::Interest::wakeup) | yes | without effect | without effect |
/// | streams, listeners, timers, remotes, groups | yes | yes | yes |
/// | [`embed`](crate::Reactor::embed) | yes | yes | `EOPNOTSUPP` |
/// | a wait costs | what is ready | what is ready | what is registered |
/// | a number closed behind the reactor's back | silent, or the old file's events while a duplicate lives | the old file's events | one error event |
/// | a number replaced behind the reactor's back | the same | the same | the new file's events |
/// | needs Linux | 5.11 (2.6.27 with timeouts in milliseconds) | 5.13, best 6.1 | 2.6.17 |
///
/// [`Display`](fmt::Display) writes and [`FromStr`] reads a backend's name: `auto`, `epoll`,
/// `uring`, `uring-or-epoll`, `poll`.
///
/// ```
/// use windlass::{Backend, Reactor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend: Backend = "poll".parse()?;
/// let reactor = Reactor::builder().backend(backend).build()?;
/// assert_eq!(reactor.backend(), Backend::Poll);
/// assert_eq!(Reactor::new()?.backend(), Backend::Epoll, "the default");
/// # Ok(())
/// # }
/// ```
#[doc(alias("epoll", "io_uring", "poll"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Backend {
    /// [`Epoll`](Self::Epoll). A ring must be chosen explicitly: containers often forbid rings, and
    /// a program should use the same backend in development and in production.
    #[default]
    Auto,
    /// epoll(7).
    #[doc(alias("epoll_create1", "epoll_wait"))]
    Epoll,
    /// io_uring(7), from Linux 5.13 on; faster from 6.1 on. It needs the cargo feature `uring`,
    /// which is on by default. Without it, building a reactor fails with
    /// [`RingError::NotCompiled`](crate::RingError::NotCompiled).
    #[doc(alias("io_uring_setup", "io_uring_enter"))]
    Uring,
    /// [`Uring`](Self::Uring) if a ring is available, otherwise [`Epoll`](Self::Epoll).
    /// [`Stats::ring_error`](crate::Stats::ring_error) is the reason why a reactor has no ring.
    /// Each reactor tries on its own: where locked memory is short, some reactors of a process may
    /// have rings and others not.
    UringOrEpoll,
    /// ppoll(2), for sandboxes that forbid the others, and for comparison. It accepts at most
    /// `RLIMIT_NOFILE` descriptors. If a process lowers the limit below the number of registered
    /// descriptors, [`Reactor::run_once`](crate::Reactor::run_once) returns `EINVAL`.
    #[doc(alias = "ppoll")]
    Poll,
    /// A simulation ([`sim`](crate::sim)), which `Builder::sim` chooses together with a host.
    #[cfg(feature = "sim")]
    Sim,
}

impl Backend {
    const ALL: &[Self] = &[
        Self::Auto,
        Self::Epoll,
        Self::Uring,
        Self::UringOrEpoll,
        Self::Poll,
        #[cfg(feature = "sim")]
        Self::Sim,
    ];

    /// The backend's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Epoll => "epoll",
            Self::Uring => "uring",
            Self::UringOrEpoll => "uring-or-epoll",
            Self::Poll => "poll",
            #[cfg(feature = "sim")]
            Self::Sim => "sim",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL.iter().copied().find(|backend| backend.name() == name).ok_or(UnknownBackend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_read_as_it_is_written() {
        for &backend in Backend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        for name in ["", "Epoll", "epoll ", "io_uring", "select"] {
            assert_eq!(name.parse::<Backend>(), Err(UnknownBackend), "{name:?}");
        }
        assert_eq!(format!("[{:>6}]", Backend::Poll), "[  poll]");
    }
}
