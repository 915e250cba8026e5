//! The traits that a [`Pinned`] passes on to its value.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::Pinned;

impl<F: Future + 'static> Future for Pinned<F> {
    type Output = F::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        Self::as_pin_mut(&mut self).poll(context)
    }
}

/// Passes on methods that take a pinned value and a context, and `is_write_vectored`.
#[cfg(any(feature = "tokio-io", feature = "futures-io", feature = "hyper"))]
macro_rules! pass_on {
    ($bound:path: $($method:ident($($name:ident: $type:ty),*) -> $output:ty)* $(; $is:ident)?) => {
        impl<T: $bound + 'static> $bound for Pinned<T> {
            $(
                #[inline]
                fn $method(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    $($name: $type),*
                ) -> Poll<std::io::Result<$output>> {
                    Self::as_pin_mut(&mut self).$method(context, $($name),*)
                }
            )*
            $(
                fn $is(&self) -> bool {
                    (**self).$is()
                }
            )?
        }
    };
}

#[cfg(feature = "tokio-io")]
pass_on!(tokio::io::AsyncRead: poll_read(buffer: &mut tokio::io::ReadBuf<'_>) -> ());

#[cfg(feature = "tokio-io")]
pass_on!(
    tokio::io::AsyncWrite:
    poll_write(bytes: &[u8]) -> usize
    poll_write_vectored(parts: &[std::io::IoSlice<'_>]) -> usize
    poll_flush() -> ()
    poll_shutdown() -> ();
    is_write_vectored
);

#[cfg(feature = "futures-io")]
pass_on!(
    futures_io::AsyncRead:
    poll_read(buffer: &mut [u8]) -> usize
    poll_read_vectored(parts: &mut [std::io::IoSliceMut<'_>]) -> usize
);

#[cfg(feature = "futures-io")]
pass_on!(
    futures_io::AsyncWrite:
    poll_write(bytes: &[u8]) -> usize
    poll_write_vectored(parts: &[std::io::IoSlice<'_>]) -> usize
    poll_flush() -> ()
    poll_close() -> ()
);

#[cfg(feature = "hyper")]
pass_on!(hyper::rt::Read: poll_read(cursor: hyper::rt::ReadBufCursor<'_>) -> ());

#[cfg(feature = "hyper")]
pass_on!(
    hyper::rt::Write:
    poll_write(bytes: &[u8]) -> usize
    poll_write_vectored(parts: &[std::io::IoSlice<'_>]) -> usize
    poll_flush() -> ()
    poll_shutdown() -> ();
    is_write_vectored
);
