//! [`AsyncFd`]: readiness of any descriptor.

use core::{
    fmt,
    future::poll_fn,
    task::{Context, Poll},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    rc::Rc,
};

use crate::{
    budget,
    fd::{
        ready_methods,
        source::{Direction, Place, ShortRead, Source, SourceOptions, Waiting},
        waiters::ListedWaiter,
    },
};

/// A descriptor whose readiness tasks wait for: a pipe, an eventfd, a timerfd, a socket of another
/// library.
///
/// The descriptor must be in non-blocking mode. Wait with [`readable`](Self::readable) or
/// [`writable`](Self::writable) and try with [`try_io`](Self::try_io), or do both with
/// [`async_io`](Self::async_io). A spurious wake-up is possible.
///
/// Readiness is kept until an operation returns `WouldBlock`. A short read does not clear it.
///
/// Dropping it ends the registration, and then drops the value. Where that is impossible at once,
/// in a handler of the reactor or outside of `block_on`, the executor's next turn does both. There
/// is no mutable access to the value, because it could close the descriptor.
///
/// ```
/// use std::io::{Read, Write};
/// use windlass_task::{AsyncFd, Direction, block_on};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let (receiver, mut sender) = std::os::unix::net::UnixStream::pair()?;
///     receiver.set_nonblocking(true)?;
///     let receiver = AsyncFd::new(receiver)?;
///     sender.write_all(b"hello")?;
///     let mut buffer = [0; 16];
///     let count = receiver.async_io(Direction::Read, |mut fd| fd.read(&mut buffer)).await?;
///     assert_eq!(&buffer[..count], b"hello");
///     Ok(())
/// })
/// # }
/// ```
pub struct AsyncFd<T: AsFd + 'static> {
    source: Rc<Source>,
    /// Present until the drop.
    value: Option<T>,
}

/// The value was not registered. It is returned with the reason.
pub struct RegisterError<T> {
    /// The reason.
    pub reason: io::Error,
    /// The value, unchanged.
    pub value: T,
}

impl<T> fmt::Debug for RegisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for RegisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the descriptor was not registered: {}", self.reason)
    }
}

impl<T> core::error::Error for RegisterError<T> {}

impl<T> From<RegisterError<T>> for io::Error {
    fn from(error: RegisterError<T>) -> Self {
        error.reason
    }
}

impl<T: AsFd + 'static> AsyncFd<T> {
    /// Registers a descriptor with the executor that this thread runs. It must be in non-blocking
    /// mode. `as_fd` is called once.
    ///
    /// # Errors
    /// The value is dropped: [`try_new`](Self::try_new) returns it. The error is that of
    /// [`windlass::AddReason`], for example `EPERM` for a regular file. It is an error too if no
    /// executor runs on this thread.
    pub fn new(value: T) -> io::Result<Self> {
        Self::try_new(value).map_err(|error| error.reason)
    }

    /// [`new`](Self::new) with an error that returns the value.
    ///
    /// # Errors
    /// The reasons of [`new`](Self::new). The error returns the value.
    pub fn try_new(value: T) -> Result<Self, RegisterError<T>> {
        let short_read = ShortRead::SaysNothing;
        let options = SourceOptions { short_read, is_writable: false, is_one_shot: false };
        let place = Place::of(&value);
        Self::with_options(value, place, options)
    }

    /// The place is that of the value.
    pub(crate) fn with_options(
        value: T,
        place: Place,
        options: SourceOptions,
    ) -> Result<Self, RegisterError<T>> {
        match Source::register(place, options) {
            Ok(source) => Ok(Self { source, value: Some(value) }),
            Err(reason) => Err(RegisterError { reason, value }),
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The value.
    #[must_use]
    pub fn get_ref(&self) -> &T {
        self.value.as_ref().expect("the value is present until the drop")
    }

    /// Ends the registration, and returns the value.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.source.deregister_open();
        self.value.take().expect("the value is present until the drop")
    }

    /// The value and its registration, which goes on. The caller ends it before the value goes.
    pub(crate) fn into_parts(mut self) -> (Rc<Source>, T) {
        let value = self.value.take().expect("the value is present until the drop");
        (Rc::clone(&self.source), value)
    }

    /// Waits until reading is worth a try. Any number of futures may wait at the same time.
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// If the executor was dropped, or if the registration was queued and was then rejected.
    pub async fn readable(&self) -> io::Result<()> {
        self.direction_ready(Direction::Read).await
    }

    /// Waits until writing is worth a try. As [`readable`](Self::readable).
    ///
    /// # Errors
    /// As [`readable`](Self::readable).
    pub async fn writable(&self) -> io::Result<()> {
        self.direction_ready(Direction::Write).await
    }

    ready_methods!();

    pub(crate) async fn direction_ready(&self, direction: Direction) -> io::Result<()> {
        budget::remaining().await;
        let waiter = ListedWaiter::new(self.source.waiters(direction));
        poll_fn(|context| {
            self.source.poll_ready(direction, context.waker(), Waiting::Listed(&waiter))
        })
        .await
    }

    /// Polls for readiness. One waiter for each direction: a later call replaces the waker of an
    /// earlier one.
    ///
    /// # Errors
    /// As [`readable`](Self::readable).
    pub fn poll_ready(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.source.poll_ready(direction, context.waker(), Waiting::One)
    }

    /// Tries an operation if the direction counts as ready. If it returns `WouldBlock`, the
    /// direction is no longer ready.
    ///
    /// # Errors
    /// `WouldBlock` without a call if the direction is not ready. Otherwise the error of the
    /// operation.
    pub fn try_io<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        self.source.try_user_io(direction, || operation(self.get_ref()))
    }

    /// Waits until the direction is ready and tries an operation, until it returns anything but
    /// `WouldBlock`.
    ///
    /// If the future is dropped while it waits, the operation was not done.
    ///
    /// # Errors
    /// That of the operation, or as [`readable`](Self::readable).
    pub async fn async_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        self.source.user_io(direction, || operation(self.get_ref())).await
    }

    /// States that the direction is not ready, after a call outside of
    /// [`try_io`](Self::try_io) has returned `WouldBlock`. A hang-up stays.
    pub fn clear_ready(&self, direction: Direction) {
        self.source.clear_for_user(direction);
    }
}

impl<T: AsFd + 'static> Drop for AsyncFd<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        // Returned here if the registration has ended.
        drop(self.source.deregister(value));
    }
}

impl<T: AsFd + 'static> AsFd for AsyncFd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}

impl<T: AsFd + 'static> AsRawFd for AsyncFd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: AsFd + fmt::Debug + 'static> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncFd").field("value", &self.value).finish_non_exhaustive()
    }
}
