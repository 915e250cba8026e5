//! The suite `deflate`: compression and decompression by permessage-deflate (RFC 7692).

use std::hint::black_box;
use std::time::Instant;

use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush};

use crate::measured::{Error, Measured};
use crate::protocol::{Case, Compressor, Outcome};
use crate::{alloc, payload};

/// The parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Compression level, 1 to 9.
    pub level: u8,
    /// Base-two logarithm of the window size in both directions.
    pub window_bits: u8,
    /// A message may refer to earlier ones, in both directions (context takeover).
    pub takeover: bool,
    /// The owner of the compressor.
    pub compressor: Compressor,
}

/// Both ends of permessage-deflate.
pub trait DeflateSubject: Sized + 'static {
    /// Creates the state of a connection.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it does not have this setting.
    fn new(setting: &Setting) -> Result<Self, Error>;

    /// Returns the compressed message without its last four bytes (RFC 7692 section 7.2.1).
    ///
    /// # Errors
    ///
    /// If it cannot be compressed.
    fn compress(&mut self, plain: &[u8]) -> Result<&[u8], Error>;

    /// Returns the decompressed message of `compressed[..length]`. The [`ROOM`] bytes after it may
    /// be overwritten.
    ///
    /// # Errors
    ///
    /// If the input is not a compressed message.
    fn inflate(&mut self, compressed: &mut [u8], length: usize) -> Result<&[u8], Error>;
}

/// Number of bytes after a compressed message that may be overwritten, as in a receive buffer.
pub const ROOM: usize = 16;

/// Number of different messages, which repeat in a cycle. A message has left the window of 32 KiB
/// when it comes again.
const MESSAGES: usize = 64;

/// Sets up a case of this suite.
pub(crate) fn prepare<S: DeflateSubject>(
    case: &Case,
    _backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    if idle {
        return Err("no case of the suite `deflate` can be idle".into());
    }
    match *case {
        Case::Compress { bytes, level, window_bits, takeover, compressor } => {
            let setting = Setting { level, window_bits, takeover, compressor };
            Ok(Box::new(Compress::<S>::new(bytes, setting)?))
        }
        Case::Inflate { bytes, window_bits, takeover } => {
            let setting =
                Setting { level: 6, window_bits, takeover, compressor: Compressor::Dedicated };
            Ok(Box::new(Inflating::<S>::new(bytes, setting)?))
        }
        _ => Err("no case of the suite `deflate`".into()),
    }
}

fn plain_messages(bytes: usize) -> Vec<Vec<u8>> {
    (0..MESSAGES as u64).map(|seed| payload::json(seed, bytes)).collect()
}

/// A round is one message. The messages are those of one connection.
struct Compress<S> {
    subject: S,
    setting: Setting,
    messages: Vec<Vec<u8>>,
    next: usize,
}

impl<S: DeflateSubject> Compress<S> {
    fn new(bytes: usize, setting: Setting) -> Result<Self, Error> {
        Ok(Self { subject: S::new(&setting)?, setting, messages: plain_messages(bytes), next: 0 })
    }

    /// Starts a new connection, and decompresses all its messages by another implementation.
    /// Returns their total length.
    fn check(&self) -> Result<usize, Error> {
        let mut subject = S::new(&self.setting)?;
        let mut witness = Inflate::new(false, self.setting.window_bits);
        let mut compressed_bytes = 0;
        for message in &self.messages {
            if !self.setting.takeover {
                witness = Inflate::new(false, self.setting.window_bits);
            }
            let mut compressed = subject.compress(message)?.to_vec();
            compressed_bytes += compressed.len();
            compressed.extend_from_slice(&TAIL);
            let mut plain = vec![0; message.len() + 1];
            let before = witness.total_out();
            witness
                .decompress(&compressed, &mut plain, InflateFlush::SyncFlush)
                .map_err(|error| format!("what was compressed does not inflate: {error:?}"))?;
            plain.truncate((witness.total_out() - before) as usize);
            if plain != *message {
                return Err("what was compressed inflates to something else".into());
            }
        }
        Ok(compressed_bytes)
    }
}

/// The bytes that a sender removes and a receiver appends (RFC 7692 section 7.2.2).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

impl<S: DeflateSubject> Measured for Compress<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        for _ in 0..rounds {
            black_box(self.subject.compress(&self.messages[self.next])?);
            self.next = (self.next + 1) % MESSAGES;
        }
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        let compressed_bytes = self.check()?;
        let bytes = self.messages[0].len();
        let ratio = compressed_bytes as f64 / (bytes * MESSAGES) as f64;
        let gauges =
            [("compressed_over_plain_ratio", ratio), ("mib_per_s", mib_per_s(rounds, bytes, ns))];
        let gauges = gauges.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Outcome { ns, units: rounds, allocations, gauges, ..Outcome::default() })
    }
}

fn mib_per_s(rounds: u64, bytes: usize, ns: u64) -> f64 {
    rounds as f64 * bytes as f64 / f64::from(1 << 20) / (ns.max(1) as f64 / 1e9)
}

/// Decompresses the output of zlib-rs, the same for all implementations.
struct Inflating<S> {
    subject: S,
    messages: Vec<Vec<u8>>,
    /// The messages, each followed by [`ROOM`] bytes.
    compressed: Vec<Vec<u8>>,
    /// The first message refers to no earlier one, so it may follow the last.
    next: usize,
}

impl<S: DeflateSubject> Inflating<S> {
    fn new(bytes: usize, setting: Setting) -> Result<Self, Error> {
        let messages = plain_messages(bytes);
        let compressed = compressed(&messages, &setting)?;
        Ok(Self { subject: S::new(&setting)?, messages, compressed, next: 0 })
    }

    fn inflate_next(&mut self) -> Result<&[u8], Error> {
        let compressed = &mut self.compressed[self.next];
        let length = compressed.len() - ROOM;
        self.next = (self.next + 1) % MESSAGES;
        self.subject.inflate(compressed, length)
    }
}

/// Compresses all messages one after the other, as on one connection.
fn compressed(messages: &[Vec<u8>], setting: &Setting) -> Result<Vec<Vec<u8>>, Error> {
    let mut deflate = Deflate::new(6, false, setting.window_bits);
    let mut all = Vec::new();
    for message in messages {
        let mut out = vec![0; 2 * message.len() + 64];
        let before = deflate.total_out();
        deflate
            .compress(message, &mut out, DeflateFlush::SyncFlush)
            .map_err(|error| format!("zlib-rs does not compress: {error:?}"))?;
        out.truncate((deflate.total_out() - before) as usize);
        if !out.ends_with(&TAIL) {
            return Err("zlib-rs has not flushed".into());
        }
        out.truncate(out.len() - TAIL.len());
        out.resize(out.len() + ROOM, 0);
        all.push(out);
        if !setting.takeover {
            deflate = Deflate::new(6, false, setting.window_bits);
        }
    }
    Ok(all)
}

impl<S: DeflateSubject> Measured for Inflating<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        for _ in 0..rounds {
            black_box(self.inflate_next()?);
        }
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        for _ in 0..MESSAGES {
            let expected = self.messages[self.next].clone();
            if self.inflate_next()? != expected {
                return Err("what was inflated is not what was compressed".into());
            }
        }
        let gauges =
            [("mib_per_s".to_owned(), mib_per_s(rounds, self.messages[0].len(), ns))].into();
        Ok(Outcome { ns, units: rounds, allocations, gauges, ..Outcome::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores without compression (RFC 1951 section 3.2.4), in one block.
    struct Stored(Vec<u8>);

    impl DeflateSubject for Stored {
        fn new(_: &Setting) -> Result<Self, Error> {
            Ok(Self(Vec::new()))
        }

        fn compress(&mut self, plain: &[u8]) -> Result<&[u8], Error> {
            let length = plain.len() as u16;
            self.0 = vec![0];
            self.0.extend_from_slice(&length.to_le_bytes());
            self.0.extend_from_slice(&(!length).to_le_bytes());
            self.0.extend_from_slice(plain);
            self.0.push(0);
            Ok(&self.0)
        }

        fn inflate(&mut self, compressed: &mut [u8], length: usize) -> Result<&[u8], Error> {
            self.0 = compressed[..length].to_vec();
            Ok(&self.0)
        }
    }

    const SETTING: Setting =
        Setting { level: 6, window_bits: 15, takeover: true, compressor: Compressor::Dedicated };

    #[test]
    fn what_is_compressed_is_inflated_by_another_and_compared() {
        let mut compress = Compress::<Stored>::new(1024, SETTING).unwrap();
        let ratio = compress.slice(3).unwrap().gauges["compressed_over_plain_ratio"];
        assert!(ratio > 1.0 && ratio < 1.01, "{ratio}");
    }

    #[test]
    fn what_is_not_inflated_is_found() {
        for takeover in [false, true] {
            let mut inflating =
                Inflating::<Stored>::new(1024, Setting { takeover, ..SETTING }).unwrap();
            assert!(inflating.slice(1).is_err());
        }
    }
}
