//! A stream that does what a test says.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
};

/// What one call of `read` does. After the last one, the stream ends.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Bytes(Vec<u8>),
    Fails(ErrorKind),
}

/// A stream whose reads follow a script, and whose writes are kept.
#[derive(Debug, Default)]
pub(crate) struct Script {
    reads: VecDeque<Step>,
    /// How many bytes the next calls of `write` take; 0 would block. Later ones take everything.
    pub(crate) writes: VecDeque<usize>,
    pub(crate) written: Vec<u8>,
    pub(crate) flushes: usize,
}

impl Script {
    pub(crate) fn new(reads: impl IntoIterator<Item = Step>) -> Self {
        Self { reads: reads.into_iter().collect(), ..Self::default() }
    }

    /// One read with all these bytes.
    pub(crate) fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new([Step::Bytes(bytes.into())])
    }

    /// Frames that one end sent, unmasked: the first byte and the payload.
    pub(crate) fn frames(&self) -> Vec<(u8, String)> {
        let (mut bytes, mut frames) = (&self.written[..], Vec::new());
        while !bytes.is_empty() {
            let (header, len) = windlass_ws::FrameHeader::parse(bytes).unwrap().unwrap();
            let (payload, rest) = bytes[len..].split_at(header.len as usize);
            let mut payload = payload.to_vec();
            if let Some(key) = header.key {
                windlass_ws::mask(&mut payload, key);
            }
            frames.push((bytes[0], payload.escape_ascii().to_string()));
            bytes = rest;
        }
        frames
    }
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.reads.pop_front() {
            Some(Step::Bytes(mut bytes)) => {
                let count = bytes.len().min(buffer.len());
                buffer[..count].copy_from_slice(&bytes[..count]);
                if count < bytes.len() {
                    self.reads.push_front(Step::Bytes(bytes.split_off(count)));
                }
                Ok(count)
            }
            Some(Step::Fails(kind)) => Err(kind.into()),
            None => Ok(0),
        }
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match self.writes.pop_front() {
            Some(0) => return Err(ErrorKind::WouldBlock.into()),
            Some(count) => count.min(bytes.len()),
            None => bytes.len(),
        };
        self.written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushes += 1;
        Ok(())
    }
}

/// A frame of a server, or, with a key of zeros, of a client.
pub(crate) fn frame(masked: bool, first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mask = u8::from(masked) << 7;
    match payload.len() {
        len @ 0..=125 => bytes.push(mask | len as u8),
        len @ 126..=0xffff => {
            bytes.push(mask | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(mask | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    if masked {
        bytes.extend([0; 4]);
    }
    bytes.extend(payload);
    bytes
}
