//! Dialogues before the WebSocket begins, without I/O, and what runs them over a stream.

use std::{
    io,
    task::{Context, Poll, ready},
};

use crate::{shared, transport::Transport};

/// A dialogue with a proxy or server in which this side speaks first.
pub(super) trait Dialogue {
    type Output;
    type Error;

    /// Takes the next bytes of the peer. It may put bytes into `out`, which is empty; they are sent
    /// before the next input.
    fn input(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Self::Output>, Self::Error>;

    /// The stream has ended.
    fn end(&mut self) -> Self::Error;

    /// Reading or writing has failed.
    fn failed(&mut self, error: io::Error) -> Self::Error;
}

/// A dialogue, and the bytes that wait to be sent.
pub(super) struct Exchange<D> {
    pub(super) dialogue: D,
    out: Vec<u8>,
    written: usize,
    is_flushed: bool,
}

impl<D: Dialogue> Exchange<D> {
    /// A dialogue that begins with these bytes.
    pub(super) fn new(dialogue: D, out: Vec<u8>) -> Self {
        Self { dialogue, out, written: 0, is_flushed: false }
    }

    pub(super) fn poll<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<Result<D::Output, D::Error>> {
        loop {
            if let Err(error) = ready!(self.poll_send(io, context)) {
                return Poll::Ready(Err(self.dialogue.failed(error)));
            }
            let mut buffer = shared::take_read_buffer();
            let step = match io.poll_read(context, &mut buffer) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Err(self.dialogue.failed(error))),
                Poll::Ready(Ok(0)) => Poll::Ready(Err(self.dialogue.end())),
                Poll::Ready(Ok(count)) => {
                    let input = &buffer[..count.min(buffer.len())];
                    Poll::Ready(self.dialogue.input(input, &mut self.out))
                }
            };
            shared::give_read_buffer(buffer);
            if let Some(output) = ready!(step)? {
                return Poll::Ready(Ok(output));
            }
            self.is_flushed = self.out.is_empty();
        }
    }

    fn poll_send<S: Transport>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            match ready!(io.poll_write(context, &self.out[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        if !self.is_flushed {
            ready!(io.poll_flush(context))?;
            self.is_flushed = true;
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}
