//! What all sockets have in common.

use core::future::poll_fn;
use std::{io, net::SocketAddr, os::fd::AsFd, time::Duration};

use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

use crate::{
    Direction,
    budget::poll_proceed,
    fd::{
        AsyncFd,
        source::{ShortRead, SourceOptions},
    },
    io::{Socket, either},
};

/// A socket is made non-blocking, so that it never becomes one in between.
pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

pub(super) fn socket(family: AddressFamily, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(family, kind, FLAGS, None)
}

/// Registers a socket that counts as writable.
pub(super) fn fresh<S: AsFd + 'static>(
    socket: Socket<S>,
    short_read: ShortRead,
) -> io::Result<AsyncFd<Socket<S>>> {
    let options = SourceOptions { short_read, is_writable: true, is_one_shot: false };
    let place = socket.place();
    Ok(AsyncFd::with_options(socket, place, options)?)
}

/// Starts to connect a non-blocking socket. `EINPROGRESS` if the result comes as an event.
///
/// Over the loopback, connect(2) returns `EINPROGRESS` although the peer's kernel has answered by
/// then, unless its backlog is full. A second call returns the result, so such a socket need not be
/// registered to wait for it.
pub(super) async fn connect(socket: &OwnedFd, address: SocketAddr) -> rustix::io::Result<()> {
    match rustix::net::connect(socket, &address) {
        Err(Errno::INPROGRESS) if address.ip().is_loopback() => {
            // Without a wait, a task that connects in a loop would never return to the executor.
            poll_fn(poll_proceed).await.made_progress();
            match rustix::net::connect(socket, &address) {
                Err(Errno::ALREADY) => Err(Errno::INPROGRESS),
                Err(Errno::ISCONN) => Ok(()),
                outcome => outcome,
            }
        }
        outcome => outcome,
    }
}

/// Waits for the result of a connect. No other code waits for this socket yet.
pub(super) async fn connect_result<S: AsFd + 'static>(io: &AsyncFd<Socket<S>>) -> io::Result<()> {
    loop {
        poll_fn(|context| io.poll_ready(Direction::Write, context)).await?;
        if !io.get_ref().is_connecting() {
            return io.get_ref().take_error()?.map_or(Ok(()), Err);
        }
        io.source().clear_after_eagain(Direction::Write);
    }
}

/// Registers a socket whose connect may be under way.
pub(super) async fn connecting<S: AsFd + 'static>(
    socket: Socket<S>,
    short_read: ShortRead,
    connected: rustix::io::Result<()>,
) -> io::Result<AsyncFd<Socket<S>>> {
    match connected {
        Ok(()) => fresh(socket, short_read),
        Err(Errno::INPROGRESS) => {
            let options = SourceOptions { short_read, is_writable: false, is_one_shot: false };
            let place = socket.place();
            let io = AsyncFd::with_options(socket, place, options)?;
            connect_result(&io).await?;
            Ok(io)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// `SO_LINGER`. Of a simulated socket, only whether it is zero matters.
pub(super) fn set_linger<S: AsFd>(socket: &Socket<S>, linger: Option<Duration>) -> io::Result<()> {
    either!(
        socket,
        |socket| Ok(rustix::net::sockopt::set_socket_linger(socket, linger)?),
        |kernel, fd| kernel.set_reset_on_close(fd, linger == Some(Duration::ZERO))
    )
}

/// A socket that the standard library has no type for, as [`impl_socket`] takes it.
pub(super) trait Descriptor {
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
}

impl Descriptor for OwnedFd {
    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(self, on)?)
    }
}

/// A stream that reads and writes its socket without buffers of its own. The type has a field `io`.
macro_rules! impl_raw_stream {
    ($type:ident) => {
        impl $type {
            const fn stream(&self) -> &Self {
                self
            }

            /// Borrows the two halves, for two futures of one task.
            pub fn split(
                &mut self,
            ) -> ($crate::net::ReadHalf<'_, Self>, $crate::net::WriteHalf<'_, Self>) {
                $crate::net::split::split(self)
            }

            /// Makes two halves, for two tasks.
            #[must_use]
            pub fn into_split(
                self,
            ) -> ($crate::net::OwnedReadHalf<Self>, $crate::net::OwnedWriteHalf<Self>) {
                $crate::net::split::into_split(self)
            }

            /// Ends one direction or both, at once.
            ///
            /// # Errors
            /// That of shutdown(2).
            pub fn shutdown_now(&self, how: std::net::Shutdown) -> std::io::Result<()> {
                self.io.get_ref().shutdown(how)
            }
        }

        impl $crate::io::RawStream for $type {
            #[inline]
            fn poll_read<B: $crate::io::Unfilled + ?Sized>(
                &self,
                context: &mut core::task::Context<'_>,
                buffer: &mut B,
            ) -> core::task::Poll<std::io::Result<usize>> {
                $crate::io::poll_receive(&self.io, context, buffer)
            }

            #[inline]
            fn poll_write(
                &self,
                context: &mut core::task::Context<'_>,
                bytes: &[u8],
            ) -> core::task::Poll<std::io::Result<usize>> {
                $crate::io::poll_send(&self.io, context, bytes)
            }

            fn try_read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                $crate::io::try_receive(self.io.source(), self.io.get_ref(), buffer)
            }

            fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
                $crate::io::try_send(self.io.source(), self.io.get_ref(), bytes)
            }

            fn poll_write_vectored(
                &self,
                context: &mut core::task::Context<'_>,
                parts: &[std::io::IoSlice<'_>],
            ) -> core::task::Poll<std::io::Result<usize>> {
                $crate::io::poll_send_vectored(&self.io, context, parts)
            }

            fn poll_flush(
                &self,
                _: &mut core::task::Context<'_>,
            ) -> core::task::Poll<std::io::Result<()>> {
                core::task::Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                &self,
                _: &mut core::task::Context<'_>,
            ) -> core::task::Poll<std::io::Result<()>> {
                core::task::Poll::Ready($crate::net::common::ended(
                    self.io.get_ref().shutdown(std::net::Shutdown::Write),
                ))
            }

            fn shutdown_now(&self) {
                if !self.io.source().is_in_child() {
                    let _ = self.io.get_ref().shutdown(std::net::Shutdown::Write);
                }
            }
        }
    };
}
pub(crate) use impl_raw_stream;

/// The methods that every socket has. The type has a field `io`.
macro_rules! impl_socket {
    ($type:ident, $std:ty, $short_read:expr) => {
        impl $type {
            /// Takes over a socket of the standard library, which is made non-blocking.
            ///
            /// # Errors
            /// If no executor runs on this thread, or if the reactor rejects the registration
            /// ([`windlass::AddReason`]). The socket is closed.
            pub fn from_std(socket: $std) -> std::io::Result<Self> {
                socket.set_nonblocking(true)?;
                let socket = $crate::io::Socket::Kernel(socket);
                Ok(Self { io: $crate::net::common::fresh(socket, $short_read)? })
            }

            /// The socket of the standard library. It stays non-blocking.
            ///
            /// # Panics
            /// In a simulation, whose sockets have no descriptor.
            #[must_use]
            pub fn into_std(self) -> $std {
                match self.io.into_inner().into_kernel() {
                    Ok(socket) => socket,
                    Err(_) => panic!("a simulated socket has no descriptor"),
                }
            }

            /// Waits until reading, or accepting, is worth a try. Any number of futures may wait.
            ///
            /// # Errors
            /// If the executor was dropped.
            pub async fn readable(&self) -> std::io::Result<()> {
                self.io.readable().await
            }

            /// Waits until writing is worth a try. As [`readable`](Self::readable).
            ///
            /// # Errors
            /// If the executor was dropped.
            pub async fn writable(&self) -> std::io::Result<()> {
                self.io.writable().await
            }

            /// Polls for readiness. One waiter for each direction, which the other `poll_*`
            /// methods and the methods with `&mut self` share.
            ///
            /// # Errors
            /// If the executor was dropped.
            pub fn poll_ready(
                &self,
                direction: $crate::Direction,
                context: &mut core::task::Context<'_>,
            ) -> core::task::Poll<std::io::Result<()>> {
                self.io.poll_ready(direction, context)
            }

            $crate::fd::ready_methods!();

            /// Tries an operation on the socket if the direction counts as ready; see
            /// [`AsyncFd::try_io`](crate::AsyncFd::try_io).
            ///
            /// # Errors
            /// `WouldBlock` without a call if the direction is not ready. Otherwise the error of
            /// the operation.
            pub fn try_io<R>(
                &self,
                direction: $crate::Direction,
                operation: impl FnOnce(&$std) -> std::io::Result<R>,
            ) -> std::io::Result<R> {
                self.io.try_io(direction, |socket| operation(socket.kernel()?))
            }

            /// Does an operation on the socket as soon as it does not return `WouldBlock`; see
            /// [`AsyncFd::async_io`](crate::AsyncFd::async_io).
            ///
            /// # Errors
            /// That of the operation, or if the executor was dropped.
            pub async fn async_io<R>(
                &self,
                direction: $crate::Direction,
                mut operation: impl FnMut(&$std) -> std::io::Result<R>,
            ) -> std::io::Result<R> {
                self.io.async_io(direction, |socket| operation(socket.kernel()?)).await
            }

            /// Takes the pending error of the socket (`SO_ERROR`).
            ///
            /// # Errors
            /// That of getsockopt(2).
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                self.io.get_ref().take_error()
            }

            /// How many operations have returned `EAGAIN`. For tests and benchmarks.
            #[doc(hidden)]
            #[must_use]
            pub fn would_block_count(&self) -> u32 {
                self.io.source().would_block_count()
            }
        }

        impl TryFrom<$std> for $type {
            type Error = std::io::Error;

            /// As [`from_std`](Self::from_std).
            fn try_from(socket: $std) -> std::io::Result<Self> {
                Self::from_std(socket)
            }
        }

        impl std::os::fd::AsFd for $type {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.io.as_fd()
            }
        }

        impl std::os::fd::AsRawFd for $type {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsRawFd::as_raw_fd(&self.io)
            }
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_tuple(stringify!($type)).field(self.io.get_ref()).finish()
            }
        }
    };
}
pub(super) use impl_socket;

/// The result of shutdown(2). A stream that is no longer connected has ended.
pub(super) fn ended(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}
