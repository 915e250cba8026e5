//! The reactor's streams and listeners, for its owner and for their own code.

use crate::{
    Key, NotFound, Reactor,
    stream::{ListenerKey, Listening, Stream, StreamTable, parts::ReactorParts},
};

impl Reactor {
    /// What the code of streams works on.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> ReactorParts<'_> {
        let Self { streams, kernel, timing, groups, .. } = self;
        ReactorParts { streams, kernel, timing, groups }
    }

    #[inline(always)]
    pub(crate) fn streams(&self) -> &StreamTable {
        &self.streams
    }

    /// Finds a stream by its key, outside a turn. Output sent to it is written when the next turn
    /// starts. See [`Turn::stream`](crate::Turn::stream).
    ///
    /// # Errors
    /// [`NotFound`] if the stream was closed.
    #[inline]
    pub fn stream(&mut self, key: Key) -> Result<Stream<'_>, NotFound> {
        Stream::find(self, key)
    }

    /// Bytes of memory that all streams of the reactor hold for buffered output, and for received
    /// bytes that were not delivered yet. Shared bytes ([`Stream::send_shared`]) count once,
    /// however many streams hold them.
    #[must_use]
    pub fn stream_memory(&self) -> usize {
        self.streams.memory_bytes()
    }

    /// Finds a listener by its key, outside a turn.
    ///
    /// # Errors
    /// [`NotFound`] if it was deleted.
    pub fn listener(&mut self, key: ListenerKey) -> Result<Listening<'_>, NotFound> {
        Listening::find(self, key)
    }
}
