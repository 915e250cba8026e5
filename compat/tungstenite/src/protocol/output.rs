//! What waits to be written.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
};

use windlass_ws::MessageRef;

use super::frame::Frame;
use crate::{error::Result, shared};

/// Bytes that wait for the stream. It holds a buffer only while something waits.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// How many of them were written.
    written: usize,
}

impl Output {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer().extend_from_slice(bytes);
    }

    /// Queues the frame that a server sends for this message, uncompressed.
    pub(crate) fn push_message(&mut self, message: MessageRef<'_>) {
        message.encode(self.buffer());
    }

    /// Queues a frame as it is, masked if it has a key.
    pub(crate) fn push_frame(&mut self, frame: Frame) -> Result<()> {
        frame.format(self.buffer())
    }

    #[inline]
    fn buffer(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = shared::take_output();
        } else if self.written > 0 {
            self.make_room();
        }
        &mut self.bytes
    }

    /// Moves what waits to the front, if more was written.
    #[cold]
    fn make_room(&mut self) {
        if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Writes everything.
    #[inline]
    pub(crate) fn write(&mut self, stream: &mut impl Write) -> io::Result<()> {
        if self.is_empty() { Ok(()) } else { self.write_some(stream) }
    }

    fn write_some(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while !self.is_empty() {
            self.written += write_once(stream, &self.bytes[self.written..])?;
        }
        self.written = 0;
        shared::give_output(std::mem::take(&mut self.bytes));
        Ok(())
    }

    /// Writes bytes that were not queued, when nothing waits before them. What the stream does not
    /// take waits then.
    #[inline]
    pub(crate) fn write_now(&mut self, stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(self.is_empty(), "the order of the bytes");
        let mut written = 0;
        while written < bytes.len() {
            match write_once(stream, &bytes[written..]) {
                Ok(count) => written += count,
                Err(error) => {
                    self.push(&bytes[written..]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// A stream that takes nothing counts as reset.
#[inline]
fn write_once(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes)? {
        0 => Err(io::Error::new(ErrorKind::ConnectionReset, "the stream takes no more bytes")),
        count => Ok(count.min(bytes.len())),
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Takes so many bytes in each call, then blocks.
    struct Slow {
        takes: VecDeque<usize>,
        taken: Vec<u8>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.takes.pop_front().ok_or(ErrorKind::WouldBlock)?.min(bytes.len());
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_keep_their_order_however_little_the_stream_takes() {
        let mut output = Output::default();
        let mut stream = Slow { takes: VecDeque::from([2]), taken: Vec::new() };
        let error = output.write_now(&mut stream, b"one ").unwrap_err();
        assert_eq!((error.kind(), output.len()), (ErrorKind::WouldBlock, 2));
        for text in ["two ", "three ", "four "] {
            output.push(text.as_bytes());
            stream.takes = VecDeque::from([1, 2]);
            assert!(output.write(&mut stream).is_err());
        }
        stream.takes = VecDeque::from([100]);
        output.write(&mut stream).unwrap();
        assert_eq!(stream.taken, b"one two three four ");
        assert!(output.is_empty() && output.bytes.capacity() == 0, "it holds no buffer");
    }

    #[test]
    fn a_stream_that_takes_nothing_is_reset() {
        let mut output = Output::default();
        output.push(b"x");
        let mut stream = Slow { takes: VecDeque::from([0]), taken: Vec::new() };
        let error = output.write(&mut stream).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
