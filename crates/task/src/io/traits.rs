//! The methods and traits of everything that reads or writes a stream.
//!
//! Both macros take a type that has a method `stream(&self)`, which returns a `RawStream`.

/// Reading: inherent methods, `futures_io::AsyncRead`, `tokio::io::AsyncRead`, `hyper::rt::Read`.
macro_rules! impl_reading {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> $type {
            /// Reads into a buffer, at least one byte. `Ok(0)` is the end of the stream, or a
            /// zero-length buffer. Dropping the future loses nothing.
            ///
            /// # Errors
            /// That of recv(2).
            pub async fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                $crate::io::poll_inline(|context| {
                    $crate::io::RawStream::poll_read(self.stream(), context, buffer)
                })
                .await
            }

            /// Reads what is there, without waiting. `Ok(0)` is as for [`read`](Self::read).
            /// Use it after `readable` of the stream; without that it may miss bytes that have just
            /// come.
            ///
            /// # Errors
            /// `WouldBlock` if there is nothing. Otherwise that of recv(2).
            pub fn try_read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                $crate::io::RawStream::try_read(self.stream(), buffer)
            }

            /// Reads until the buffer is full. If the future is dropped, the bytes that it has
            /// read are in the buffer, and their number is lost.
            ///
            /// # Errors
            /// `UnexpectedEof` if the stream ends before, and otherwise that of recv(2).
            pub async fn read_exact(&mut self, buffer: &mut [u8]) -> std::io::Result<()> {
                let mut filled = 0;
                while filled < buffer.len() {
                    match self.read(&mut buffer[filled..]).await? {
                        0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        count => filled += count,
                    }
                }
                Ok(())
            }
        }

        #[cfg(feature = "futures-io")]
        impl<$($generics)*> futures_io::AsyncRead for $type {
            fn poll_read(
                self: core::pin::Pin<&mut Self>,
                context: &mut core::task::Context<'_>,
                buffer: &mut [u8],
            ) -> core::task::Poll<std::io::Result<usize>> {
                $crate::io::RawStream::poll_read(self.stream(), context, buffer)
            }
        }

        #[cfg(feature = "tokio-io")]
        impl<$($generics)*> tokio::io::AsyncRead for $type {
            fn poll_read(
                self: core::pin::Pin<&mut Self>,
                context: &mut core::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> core::task::Poll<std::io::Result<()>> {
                $crate::io::poll_read_tokio(self.stream(), context, buffer)
            }
        }

        #[cfg(feature = "hyper")]
        impl<$($generics)*> hyper::rt::Read for $type {
            fn poll_read(
                self: core::pin::Pin<&mut Self>,
                context: &mut core::task::Context<'_>,
                cursor: hyper::rt::ReadBufCursor<'_>,
            ) -> core::task::Poll<std::io::Result<()>> {
                $crate::io::poll_read_cursor(self.stream(), context, cursor)
            }
        }
    };
}
pub(crate) use impl_reading;

/// The methods that the three traits of writing share. `$shutdown` is what a trait calls the end.
#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
macro_rules! poll_write_methods {
    ($shutdown:ident) => {
        fn poll_write(
            self: core::pin::Pin<&mut Self>,
            context: &mut core::task::Context<'_>,
            bytes: &[u8],
        ) -> core::task::Poll<std::io::Result<usize>> {
            $crate::io::RawStream::poll_write(self.stream(), context, bytes)
        }

        fn poll_write_vectored(
            self: core::pin::Pin<&mut Self>,
            context: &mut core::task::Context<'_>,
            parts: &[std::io::IoSlice<'_>],
        ) -> core::task::Poll<std::io::Result<usize>> {
            $crate::io::RawStream::poll_write_vectored(self.stream(), context, parts)
        }

        fn poll_flush(
            self: core::pin::Pin<&mut Self>,
            context: &mut core::task::Context<'_>,
        ) -> core::task::Poll<std::io::Result<()>> {
            $crate::io::RawStream::poll_flush(self.stream(), context)
        }

        fn $shutdown(
            self: core::pin::Pin<&mut Self>,
            context: &mut core::task::Context<'_>,
        ) -> core::task::Poll<std::io::Result<()>> {
            $crate::io::RawStream::poll_shutdown(self.stream(), context)
        }
    };
}
#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
pub(crate) use poll_write_methods;

/// Writing: inherent methods, `futures_io::AsyncWrite`, `tokio::io::AsyncWrite`,
/// `hyper::rt::Write`.
macro_rules! impl_writing {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> $type {
            /// Writes a part of the bytes, at least one unless there are none. Dropping the future
            /// loses nothing.
            ///
            /// # Errors
            /// That of send(2). A closed peer does not raise a signal.
            pub async fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                $crate::io::poll_inline(|context| {
                    $crate::io::RawStream::poll_write(self.stream(), context, bytes)
                })
                .await
            }

            /// Writes a part of the bytes, without waiting. Use it after `writable` of the stream.
            ///
            /// # Errors
            /// `WouldBlock` if there is no room. Otherwise that of send(2).
            pub fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
                $crate::io::RawStream::try_write(self.stream(), bytes)
            }

            /// Writes a part of the bytes of several buffers, with one system call.
            ///
            /// # Errors
            /// That of sendmsg(2).
            pub async fn write_vectored(
                &mut self,
                parts: &[std::io::IoSlice<'_>],
            ) -> std::io::Result<usize> {
                $crate::io::poll_inline(|context| {
                    $crate::io::RawStream::poll_write_vectored(self.stream(), context, parts)
                })
                .await
            }

            /// Writes all bytes. If the future is dropped, a part may have been written.
            ///
            /// # Errors
            /// That of send(2).
            pub async fn write_all(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
                while !bytes.is_empty() {
                    match self.write(bytes).await? {
                        0 => return Err(std::io::ErrorKind::WriteZero.into()),
                        count => bytes = &bytes[count..],
                    }
                }
                Ok(())
            }

            /// Waits until the kernel has taken what was written. Only a TCP stream on a ring
            /// buffers bytes here: see [`TcpStream`](crate::net::TcpStream). Elsewhere the kernel
            /// has taken them already.
            ///
            /// # Errors
            /// That of an earlier write, for a TCP stream on a ring. Otherwise none.
            pub async fn flush(&mut self) -> std::io::Result<()> {
                $crate::io::poll_inline(|context| {
                    $crate::io::RawStream::poll_flush(self.stream(), context)
                })
                .await
            }

            /// Ends writing, so that the peer reads the end of the stream. Reading goes on.
            ///
            /// # Errors
            /// That of shutdown(2). A stream that is no longer connected is no error.
            pub async fn shutdown(&mut self) -> std::io::Result<()> {
                $crate::io::poll_inline(|context| {
                    $crate::io::RawStream::poll_shutdown(self.stream(), context)
                })
                .await
            }
        }

        #[cfg(feature = "futures-io")]
        impl<$($generics)*> futures_io::AsyncWrite for $type {
            $crate::io::poll_write_methods!(poll_close);
        }

        #[cfg(feature = "tokio-io")]
        impl<$($generics)*> tokio::io::AsyncWrite for $type {
            $crate::io::poll_write_methods!(poll_shutdown);

            fn is_write_vectored(&self) -> bool {
                true
            }
        }

        #[cfg(feature = "hyper")]
        impl<$($generics)*> hyper::rt::Write for $type {
            $crate::io::poll_write_methods!(poll_shutdown);

            fn is_write_vectored(&self) -> bool {
                true
            }
        }
    };
}
pub(crate) use impl_writing;
