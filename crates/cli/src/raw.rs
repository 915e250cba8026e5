//! `--mode raw`: what comes is sent back, byte for byte.

use std::sync::Arc;

use windlass::{
    Turn,
    stream::{CloseReason, Input, Stream, StreamHandler},
};

use crate::counts::{Counts, add};

/// One connection. It has no state: what the client does not take waits in its stream.
pub(crate) struct Raw {
    counts: Arc<Counts>,
}

impl Raw {
    pub(crate) fn new(counts: &Arc<Counts>) -> Self {
        Self { counts: Arc::clone(counts) }
    }
}

impl StreamHandler for Raw {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.counts.opened();
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let length = input.len();
        match stream.reply(input, ..) {
            Ok(()) => add(&self.counts.bytes, length as u64),
            // Nothing more is read above the high mark, so it never comes to this. Bytes must not be lost in silence.
            Err(_) => stream.abort(),
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        add(&self.counts.reading_paused, 1);
        stream.pause();
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        stream.resume();
    }

    fn on_close(&mut self, reason: CloseReason, _: Turn<'_>) {
        self.counts.closed(reason != CloseReason::Closed);
    }
}
