//! The contents of messages.
//!
//! All messages are slices of one pool of seeded bytes, each at another offset. So sending or
//! comparing one neither copies nor allocates. Each connection's messages begin at offsets of its
//! own, and repeat only after [`PERIOD`] messages, far more than can be in flight. A message that
//! is swapped, duplicated or belongs to another connection therefore has the wrong bytes. (Messages
//! of one or two bytes have too few bits to reveal every such fault.)

use clap::ValueEnum;
use windlass_ws::MessageRef;

use super::plan::LoadArgs;

/// Number of messages after which a connection's contents repeat. A power of two.
pub(crate) const PERIOD: u64 = 8192;

/// Offset between consecutive messages of a connection, and between connections. Odd, so that every
/// offset is used.
const MESSAGE_STRIDE: u64 = 2731;
const CONNECTION_STRIDE: u64 = 1117;

/// Shorter messages may be equal by chance.
pub(crate) const LIKE_BY_CHANCE: usize = 8;

/// The characters of text messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Charset {
    /// Printable characters of one byte
    Ascii,
    /// Characters of two bytes
    Utf8,
}

/// The bytes of all messages.
#[derive(Debug)]
pub(crate) struct PayloadPool {
    content: PoolBytes,
    /// Length of a message in bytes.
    size: usize,
    /// Length of a character in bytes.
    width: usize,
}

#[derive(Debug)]
enum PoolBytes {
    Binary(Vec<u8>),
    Text(String),
}

impl PayloadPool {
    /// Creates the pool of a run.
    pub(crate) fn of(args: &LoadArgs) -> Self {
        Self::new(args.size as usize, args.text, args.deflate)
    }

    /// Creates a pool for messages of `size` bytes, which must be even for two-byte text. A
    /// compressible pool is generated from a small vocabulary.
    pub(crate) fn new(size: usize, text: Option<Charset>, is_compressible: bool) -> Self {
        let width = if text == Some(Charset::Utf8) { 2 } else { 1 };
        debug_assert!(size.is_multiple_of(width), "half a character cannot be sent");
        let symbols = size / width + PERIOD as usize;
        let mut source = ByteGenerator::new(is_compressible);
        let content = match text {
            None => PoolBytes::Binary((0..symbols).map(|_| source.next()).collect()),
            Some(Charset::Ascii) => {
                PoolBytes::Text((0..symbols).map(|_| ascii(source.next())).collect())
            }
            Some(Charset::Utf8) => {
                PoolBytes::Text((0..symbols).map(|_| cyrillic(source.next())).collect())
            }
        };
        Self { content, size, width }
    }

    /// Returns the bytes of a connection's message.
    #[inline]
    pub(crate) fn bytes(&self, connection: u64, number: u64) -> &[u8] {
        let start = self.start(connection, number);
        let all = match &self.content {
            PoolBytes::Binary(bytes) => bytes,
            PoolBytes::Text(text) => text.as_bytes(),
        };
        &all[start..start + self.size]
    }

    /// Returns a connection's message in the form to send.
    #[inline]
    pub(crate) fn message(&self, connection: u64, number: u64) -> MessageRef<'_> {
        let start = self.start(connection, number);
        match &self.content {
            PoolBytes::Binary(bytes) => MessageRef::Binary(&bytes[start..start + self.size]),
            PoolBytes::Text(text) => MessageRef::Text(&text[start..start + self.size]),
        }
    }

    /// Returns whether these bytes are a message of some connection, and too long to be one by
    /// chance.
    pub(crate) fn has(&self, bytes: &[u8]) -> bool {
        let all = match &self.content {
            PoolBytes::Binary(bytes) => bytes,
            PoolBytes::Text(text) => text.as_bytes(),
        };
        bytes.len() == self.size
            && self.size >= LIKE_BY_CHANCE
            && all.windows(self.size).step_by(self.width).any(|message| message == bytes)
    }

    /// Length of each message in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Returns whether messages are text.
    pub(crate) const fn is_text(&self) -> bool {
        matches!(self.content, PoolBytes::Text(_))
    }

    fn start(&self, connection: u64, number: u64) -> usize {
        let index = number
            .wrapping_mul(MESSAGE_STRIDE)
            .wrapping_add(connection.wrapping_mul(CONNECTION_STRIDE));
        (index % PERIOD) as usize * self.width
    }
}

/// Returns a printable ASCII character.
fn ascii(byte: u8) -> char {
    char::from(b' ' + byte % 95)
}

/// Returns a character that takes two bytes in UTF-8: U+0400 to U+04FF.
fn cyrillic(byte: u8) -> char {
    char::from_u32(0x400 + u32::from(byte)).expect("no surrogate is near")
}

/// Bytes generated from a seed, the same in every run.
struct ByteGenerator {
    state: u64,
    /// Words from which compressible content is generated.
    vocabulary: Vec<Vec<u8>>,
    /// The rest of the current word, reversed.
    word: Vec<u8>,
}

impl ByteGenerator {
    fn new(is_compressible: bool) -> Self {
        let mut source =
            Self { state: 0x9e37_79b9_7f4a_7c15, vocabulary: Vec::new(), word: Vec::new() };
        if is_compressible {
            for _ in 0..64 {
                let len = 3 + source.random() % 8;
                let word = (0..len).map(|_| source.random() as u8).collect();
                source.vocabulary.push(word);
            }
        }
        source
    }

    fn next(&mut self) -> u8 {
        if self.vocabulary.is_empty() {
            return self.random() as u8;
        }
        if self.word.is_empty() {
            let choice = self.random() as usize % self.vocabulary.len();
            self.word.clone_from(&self.vocabulary[choice]);
        }
        self.word.pop().expect("no word is empty")
    }

    /// Returns the upper half of xorshift64*.
    fn random(&mut self) -> u32 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn messages_of_a_connection_and_of_its_neighbours_differ() {
        for text in [None, Some(Charset::Ascii), Some(Charset::Utf8)] {
            for (size, is_compressible) in [(16, false), (128, true)] {
                let pool = PayloadPool::new(size, text, is_compressible);
                let mut seen = HashSet::new();
                for number in 0..PERIOD {
                    assert!(
                        seen.insert(pool.bytes(0, number)),
                        "{text:?} {is_compressible}: {number}"
                    );
                }
                for connection in 1..1000 {
                    assert_ne!(pool.bytes(connection, 5), pool.bytes(connection - 1, 5));
                }
            }
        }
    }

    #[test]
    fn every_message_has_its_size_and_is_the_text_that_was_asked_for() {
        for size in [0, 2, 64, 1000] {
            for (text, is_text) in
                [(None, false), (Some(Charset::Ascii), true), (Some(Charset::Utf8), true)]
            {
                let pool = PayloadPool::new(size, text, false);
                assert_eq!((pool.size(), pool.is_text()), (size, is_text));
                for number in 0..PERIOD {
                    // Slicing text anywhere but between characters would panic.
                    let message = pool.message(3, number);
                    assert_eq!(message.as_bytes(), pool.bytes(3, number));
                    assert_eq!(message.as_bytes().len(), size);
                    match (message, text) {
                        (MessageRef::Text(said), Some(Charset::Ascii)) => {
                            assert!(said.bytes().all(|byte| matches!(byte, b' '..=b'~')));
                        }
                        (MessageRef::Text(said), Some(Charset::Utf8)) => {
                            assert!(said.chars().all(|character| character.len_utf8() == 2));
                        }
                        (MessageRef::Binary(_), None) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn only_what_is_to_be_compressible_repeats_itself() {
        let pairs = |is_compressible| {
            let pool = PayloadPool::new(16 << 10, None, is_compressible);
            pool.bytes(0, 0).windows(4).map(<[u8]>::to_vec).collect::<HashSet<_>>().len()
        };
        assert!(pairs(false) > 16_000, "random bytes hardly repeat");
        assert!(pairs(true) < 10_000, "words do");
    }
}
