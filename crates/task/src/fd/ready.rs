//! Readiness of both directions, for all that has `readable`, `writable` and `poll_ready`.

use core::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};
use std::io;

use windlass::{Interest, Ready};

/// The directions of `interest` that are ready, at least one.
pub(crate) async fn ready_of(
    interest: Interest,
    readable: impl Future<Output = io::Result<()>>,
    writable: impl Future<Output = io::Result<()>>,
) -> io::Result<Ready> {
    if !interest.has_read() && !interest.has_write() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the interest names no direction: ask for `read()`, `write()` or both",
        ));
    }
    let (mut readable, mut writable) = (pin!(readable), pin!(writable));
    poll_fn(|context| {
        let mut ready = Ready::empty();
        if interest.has_read() {
            if let Poll::Ready(result) = readable.as_mut().poll(context) {
                result?;
                ready = ready.read();
            }
        }
        if interest.has_write() {
            if let Poll::Ready(result) = writable.as_mut().poll(context) {
                result?;
                ready = ready.write();
            }
        }
        if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
    })
    .await
}

/// The methods that are made of the others.
macro_rules! ready_methods {
    () => {
        /// Waits until a direction of `interest` is worth a try. The result tells which are
        /// ([`has_read`](windlass::Ready::has_read), [`has_write`](windlass::Ready::has_write)).
        /// Other conditions of `interest` are ignored. Any number of futures may wait.
        ///
        /// # Errors
        /// As [`readable`](Self::readable). `InvalidInput` if `interest` has neither direction.
        pub async fn ready(
            &self,
            interest: windlass::Interest,
        ) -> std::io::Result<windlass::Ready> {
            $crate::fd::ready_of(interest, self.readable(), self.writable()).await
        }

        /// [`poll_ready`](Self::poll_ready) for reading.
        ///
        /// # Errors
        /// As [`readable`](Self::readable).
        pub fn poll_read_ready(
            &self,
            context: &mut core::task::Context<'_>,
        ) -> core::task::Poll<std::io::Result<()>> {
            self.poll_ready($crate::Direction::Read, context)
        }

        /// [`poll_ready`](Self::poll_ready) for writing.
        ///
        /// # Errors
        /// As [`readable`](Self::readable).
        pub fn poll_write_ready(
            &self,
            context: &mut core::task::Context<'_>,
        ) -> core::task::Poll<std::io::Result<()>> {
            self.poll_ready($crate::Direction::Write, context)
        }
    };
}
pub(crate) use ready_methods;
