//! The halves of a stream.

use core::fmt;
use std::rc::Rc;

use crate::io::{ByteStream, impl_reading, impl_writing};

/// The half of a stream that reads, borrowed from it.
#[derive(Debug)]
pub struct ReadHalf<'s, S>(&'s S);

/// The half of a stream that writes, borrowed from it. Dropping it does not end writing.
#[derive(Debug)]
pub struct WriteHalf<'s, S>(&'s S);

/// The half of a stream that reads. The stream is closed when both halves are dropped.
///
/// The kernel tells the error of a connection once (`SO_ERROR` in socket(7)). If the other half has
/// met it, reading ends as if the peer had ended: then a whole is known by the protocol alone.
#[derive(Debug)]
pub struct OwnedReadHalf<S>(Rc<S>);

/// The half of a stream that writes. Dropping it ends writing, so that the peer reads the end of
/// the stream; see [`forget`](Self::forget).
#[derive(Debug)]
pub struct OwnedWriteHalf<S: ByteStream> {
    stream: Rc<S>,
    ends_writing: bool,
}

/// The halves are not of the same stream. Both are returned.
pub struct ReuniteError<S: ByteStream>(pub OwnedReadHalf<S>, pub OwnedWriteHalf<S>);

impl<S: ByteStream> fmt::Debug for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReuniteError").finish_non_exhaustive()
    }
}

impl<S: ByteStream> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are not of the same stream")
    }
}

impl<S: ByteStream> core::error::Error for ReuniteError<S> {}

pub(super) fn split<S: ByteStream>(stream: &mut S) -> (ReadHalf<'_, S>, WriteHalf<'_, S>) {
    (ReadHalf(stream), WriteHalf(stream))
}

pub(super) fn into_split<S: ByteStream>(stream: S) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
    let stream = Rc::new(stream);
    (OwnedReadHalf(Rc::clone(&stream)), OwnedWriteHalf { stream, ends_writing: true })
}

impl<S> ReadHalf<'_, S> {
    /// The stream, for its addresses and options.
    #[must_use]
    pub const fn stream(&self) -> &S {
        self.0
    }
}

impl<S> WriteHalf<'_, S> {
    /// The stream, for its addresses and options.
    #[must_use]
    pub const fn stream(&self) -> &S {
        self.0
    }
}

impl<S: ByteStream> OwnedReadHalf<S> {
    /// The stream, for its addresses and options.
    #[must_use]
    pub fn stream(&self) -> &S {
        &self.0
    }

    /// Puts the two halves together again.
    ///
    /// # Errors
    /// Returns both if they are not of the same stream.
    pub fn reunite(self, write: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>> {
        if !Rc::ptr_eq(&self.0, &write.stream) {
            return Err(ReuniteError(self, write));
        }
        write.forget();
        Ok(Rc::into_inner(self.0).expect("a stream has two halves, and the other is gone"))
    }
}

impl<S: ByteStream> OwnedWriteHalf<S> {
    /// The stream, for its addresses and options.
    #[must_use]
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Drops the half without ending the direction.
    pub fn forget(mut self) {
        self.ends_writing = false;
    }
}

impl<S: ByteStream> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        if self.ends_writing {
            self.stream.shutdown_now();
        }
    }
}

impl_reading!(['s, S: ByteStream] ReadHalf<'s, S>);
impl_writing!(['s, S: ByteStream] WriteHalf<'s, S>);
impl_reading!([S: ByteStream] OwnedReadHalf<S>);
impl_writing!([S: ByteStream] OwnedWriteHalf<S>);
