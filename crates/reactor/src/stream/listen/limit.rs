//! A limit on open streams that several listeners share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The maximum number of open streams of all the listeners that share it, on any number of threads:
/// see [`Listener::limited`](crate::stream::Listener::limited). `Clone`, `Send` and `Sync`; a clone
/// refers to the same limit.
///
/// ```
/// use windlass::{Reactor, stream::{Listener, StreamLimit}};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let limit = StreamLimit::new(1000);
/// for _ in 0..2 {
///     let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?.limited(&limit);
///     listener.with_handler(|_| Some(Echo)).register_into(&mut reactor)?;
/// }
/// assert_eq!(limit.open(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamLimit(Arc<OpenCount>);

#[derive(Debug)]
struct OpenCount {
    /// These plain numbers order no other memory accesses, so `Relaxed` is enough.
    most: AtomicUsize,
    open: AtomicUsize,
}

impl StreamLimit {
    /// Allows at most `most` open streams.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(OpenCount { most: AtomicUsize::new(most), open: AtomicUsize::new(0) }))
    }

    /// Changes the maximum. Streams beyond a lower one stay open.
    pub fn set_max(&self, most: usize) {
        self.0.most.store(most, Ordering::Relaxed);
    }

    /// The number of streams that are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Reserves a place for one stream, if one is free.
    pub(in crate::stream) fn take(&self) -> Option<StreamPermit> {
        let most = self.0.most.load(Ordering::Relaxed);
        let more = |open: usize| (open < most).then(|| open + 1);
        self.0.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(StreamPermit { limit: self.clone(), is_filled: false })
    }

    /// Releases the places of `count` closed streams.
    pub(in crate::stream) fn give_back(&self, count: usize) {
        let open = self.0.open.fetch_sub(count, Ordering::Relaxed);
        debug_assert!(open >= count, "the caller has counted {count} of {open} open streams");
    }
}

/// A place reserved for one stream. Dropping it releases the place.
pub(in crate::stream) struct StreamPermit {
    limit: StreamLimit,
    is_filled: bool,
}

impl StreamPermit {
    /// The stream is open. The caller counts it, and calls `give_back` when it is closed.
    pub(in crate::stream) fn fill(mut self) {
        self.is_filled = true;
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if !self.is_filled {
            self.limit.give_back(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_unless_it_was_filled() {
        let limit = StreamLimit::new(2);
        let (first, second) = (limit.take().unwrap(), limit.clone().take().unwrap());
        assert!(limit.take().is_none());
        drop(first);
        second.fill();
        assert_eq!(limit.open(), 1);
        limit.give_back(1);
        assert_eq!(limit.open(), 0);
        assert!(StreamLimit::new(0).take().is_none());
    }

    #[test]
    fn another_maximum_counts_for_further_streams() {
        let limit = StreamLimit::new(1);
        let first = limit.take().unwrap();
        assert!(limit.take().is_none());
        limit.set_max(2);
        let second = limit.take().unwrap();
        limit.set_max(1);
        drop(first);
        assert!(limit.take().is_none(), "one is open still");
        drop(second);
        assert!(limit.take().is_some());
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let limit = StreamLimit::new(100);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).filter_map(|_| limit.take()).for_each(StreamPermit::fill));
            }
        });
        assert_eq!(limit.open(), 100);
    }
}
