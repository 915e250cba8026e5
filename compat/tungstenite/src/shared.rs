//! What all sockets of a thread share: the engine's scratch, and buffers that no idle socket needs.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use windlass_ws::{Config, MessageBuffer, Role, Scratch};

/// The length of a buffer for reading, in bytes.
pub(crate) const READ_BUFFER_LEN: usize = 64 << 10;

/// The length of a block of short messages, in bytes. Whoever keeps one of them keeps the block.
const BLOCK_LEN: usize = 1 << 10;

/// The longest message that is put into a block, in bytes: that of a frame with a short header.
pub(crate) const SHORT_LEN_MAX: usize = 125;

/// The most buffers of each kind that are kept for later.
const SPARES_MAX: usize = 16;

/// The largest output buffer that is kept, in bytes.
const OUTPUT_KEPT_MAX: usize = 256 << 10;

thread_local! {
    static TOOLS: Cell<Option<Box<Tools>>> = const { Cell::new(None) };
    static READ_BUFFERS: Spares<Box<[u8]>> = const { Spares::new() };
    static OUTPUTS: Spares<Vec<u8>> = const { Spares::new() };
    /// The configurations that were used last: of a server, and of a client.
    static CONFIGS: RefCell<[Option<Arc<Config>>; 2]> = const { RefCell::new([None, None]) };
}

/// What processing needs while it runs.
#[derive(Default)]
pub(crate) struct Tools {
    pub(crate) scratch: Scratch,
    pub(crate) block: Block,
}

/// The rest of a block, where the next short messages are put. Its memory is used again when all
/// its messages were dropped.
#[derive(Default)]
pub(crate) struct Block(BytesMut);

impl Block {
    /// A copy of the bytes, which shares its allocation with others if it is short.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() > SHORT_LEN_MAX {
            return Bytes::copy_from_slice(bytes);
        }
        let copied = self.fill(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            Ok::<_, Infallible>(())
        });
        copied.unwrap_or_else(|never| match never {})
    }

    /// So many bytes, at most [`SHORT_LEN_MAX`], which `fill` writes.
    #[inline(always)]
    pub(crate) fn fill<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        if len == 0 {
            fill(&mut [])?;
            // It holds no block.
            return Ok(Bytes::new());
        }
        if self.0.len() < len {
            self.renew();
        }
        let mut room = self.0.split_to(len);
        fill(&mut room)?;
        Ok(room.freeze())
    }

    #[cold]
    fn renew(&mut self) {
        self.0.clear();
        if !self.0.try_reclaim(BLOCK_LEN) {
            self.0 = BytesMut::with_capacity(BLOCK_LEN);
        }
        self.0.resize(BLOCK_LEN, 0);
    }
}

/// Runs `use_them` with the thread's tools. A stream that is itself a WebSocket gets others while
/// they are in use.
// As a call it would return its result in memory.
#[inline(always)]
pub(crate) fn with_tools<R>(use_them: impl FnOnce(&mut Tools) -> R) -> R {
    // The thread may be about to end, and its tools gone.
    let mut tools = TOOLS.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = use_them(&mut tools);
    let _ = TOOLS.try_with(|place| place.set(Some(tools)));
    result
}

/// [`with_tools`], for callers that need the scratch alone.
#[inline(always)]
pub(crate) fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch) -> R) -> R {
    with_tools(|tools| use_it(&mut tools.scratch))
}

/// Keeps the buffer of a message for later ones.
#[cold]
pub(crate) fn recycle(message: MessageBuffer) {
    with_scratch(|scratch| scratch.recycle(message));
}

/// Buffers that are kept for later.
struct Spares<B> {
    /// The one that is used next.
    next: Cell<Option<B>>,
    others: RefCell<Vec<B>>,
}

impl<B> Spares<B> {
    const fn new() -> Self {
        Self { next: Cell::new(None), others: RefCell::new(Vec::new()) }
    }

    #[inline]
    fn take(&self) -> Option<B> {
        let next = self.next.take();
        if next.is_some() { next } else { self.take_other() }
    }

    #[cold]
    fn take_other(&self) -> Option<B> {
        self.others.borrow_mut().pop()
    }

    #[inline]
    fn give(&self, buffer: B) {
        if let Some(other) = self.next.replace(Some(buffer)) {
            self.give_other(other);
        }
    }

    #[cold]
    fn give_other(&self, buffer: B) {
        let mut others = self.others.borrow_mut();
        if others.len() + 1 < SPARES_MAX {
            others.push(buffer);
        }
    }
}

#[inline]
pub(crate) fn take_read_buffer() -> Box<[u8]> {
    let spare = READ_BUFFERS.try_with(Spares::take).ok().flatten();
    spare.unwrap_or_else(|| vec![0; READ_BUFFER_LEN].into_boxed_slice())
}

/// Takes back a buffer of any length.
#[inline]
pub(crate) fn give_read_buffer(buffer: Box<[u8]>) {
    if buffer.len() == READ_BUFFER_LEN {
        let _ = READ_BUFFERS.try_with(|spares| spares.give(buffer));
    }
}

/// An empty buffer.
#[inline]
pub(crate) fn take_output() -> Vec<u8> {
    OUTPUTS.try_with(Spares::take).ok().flatten().unwrap_or_default()
}

#[inline]
pub(crate) fn give_output(mut output: Vec<u8>) {
    if output.capacity() <= OUTPUT_KEPT_MAX {
        output.clear();
        let _ = OUTPUTS.try_with(|spares| spares.give(output));
    }
}

/// A configuration of the engine with these contents, shared with the sockets that had the same.
pub(crate) fn config(config: Config) -> Arc<Config> {
    let is_same = |other: &Config| {
        other.limits == config.limits && other.accept_unmasked == config.accept_unmasked
    };
    let place = usize::from(matches!(config.role, Role::Client { .. }));
    CONFIGS
        .try_with(|configs| {
            let last = &mut configs.borrow_mut()[place];
            match last {
                Some(last) if is_same(last) => Arc::clone(last),
                _ => Arc::clone(last.insert(Arc::new(config))),
            }
        })
        .unwrap_or_else(|_| Arc::new(config))
}

/// The second of the clock, where there is one. It is never 0, which is that of a socket before its
/// first control frame.
pub(crate) fn second() -> Option<u32> {
    if cfg!(all(target_family = "wasm", target_os = "unknown")) {
        return None;
    }
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed().as_secs();
    Some((elapsed as u32).wrapping_add(1))
}

/// Unpredictable bytes for masking keys and the handshake's key.
///
/// # Panics
/// If the system has none.
pub(crate) fn entropy(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system's source of random bytes works");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies `count` messages, all different, and returns them.
    fn copies(block: &mut Block, count: u8, len: usize) -> Vec<Bytes> {
        (0..count).map(|byte| block.copy(&vec![byte; len])).collect()
    }

    /// How many bytes lie between the first byte of one message and the next one's.
    fn distances(messages: &[Bytes]) -> Vec<usize> {
        let address = |message: &Bytes| message.as_ptr().addr();
        messages.windows(2).map(|two| address(&two[1]).abs_diff(address(&two[0]))).collect()
    }

    #[test]
    fn short_messages_share_a_block_and_stay_what_they_were() {
        let mut block = Block::default();
        let messages = copies(&mut block, 100, SHORT_LEN_MAX);
        let shared = distances(&messages).iter().filter(|it| **it == SHORT_LEN_MAX).count();
        assert!(shared >= 100 - 100_usize.div_ceil(BLOCK_LEN / SHORT_LEN_MAX), "{shared}");
        for (byte, message) in messages.iter().enumerate() {
            assert!(message.len() == SHORT_LEN_MAX && message.iter().all(|it| *it == byte as u8));
        }
    }

    #[test]
    fn a_message_that_is_kept_holds_one_block() {
        let mut block = Block::default();
        let kept = block.copy(b"kept");
        let mut len = kept.len();
        while len <= BLOCK_LEN {
            len += block.copy(&[0; SHORT_LEN_MAX]).len();
            assert!(block.0.len() < BLOCK_LEN);
        }
        assert!(kept.is_unique(), "the others are in a new block");
        let long = block.copy(&[0; SHORT_LEN_MAX + 1]);
        assert!(long.is_unique(), "it has its own allocation");
    }

    #[test]
    fn a_block_is_used_again_when_its_messages_were_dropped() {
        let mut block = Block::default();
        let first = block.copy(&[1; SHORT_LEN_MAX]).as_ptr();
        let mut again = 0;
        for _ in 0..3 * BLOCK_LEN / SHORT_LEN_MAX {
            again += usize::from(block.copy(&[2; SHORT_LEN_MAX]).as_ptr() == first);
        }
        assert_eq!(again, 3);
    }
    #[test]
    fn buffers_that_are_kept_are_bounded_in_number() {
        let spares = Spares::new();
        for number in 0..2 * SPARES_MAX {
            spares.give(number);
        }
        let kept = std::iter::from_fn(|| spares.take()).count();
        assert_eq!(kept, SPARES_MAX);
    }
}
