//! The permessage-deflate state of one connection.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use zlib_rs::{Deflate, Inflate};

use super::codec_pool::{CodecPool, INFLATE_INPUT_COST, StreamPosition};
use super::config::{
    Agreement, BITS_MAX, BITS_MIN, Compressor, DeflateConfig, FULL_LEVEL_LEN_MAX, LEVEL_MIN,
};
use super::history::History;
use super::message_stream::{CompressedPart, MessageStream};
use super::{compress, inflate};
use crate::protocol::violation::Violation;

/// Compresses the messages that one connection sends, and decompresses those it receives, as the
/// handshake agreed.
///
/// Neither allocates per message once the buffers have grown. The memory belongs to [`CodecPool`];
/// the module's documentation lists what each connection has of its own.
///
/// ```
/// use windlass_ws::deflate::{Agreement, Codec, CodecPool, DeflateConfig};
///
/// let (agreement, config) = (Agreement::DEFAULT, DeflateConfig::DEFAULT);
/// let mut pool = CodecPool::new();
/// let mut server = Codec::new(true, &agreement, &config);
/// let mut client = Codec::new(false, &agreement, &config);
/// let message = b"all work and no play ".repeat(50);
/// let (mut compressed, mut read) = (Vec::new(), Vec::new());
/// assert!(server.compress(&mut pool, &message, &mut compressed));
/// client.decompress(&mut pool, &compressed, &mut read, 1 << 20)?;
/// assert_eq!(read, message);
/// # Ok::<(), windlass_ws::Violation>(())
/// ```
pub struct Codec {
    compressor: SendCompressor,
    receive_context: Option<ReceiveContext>,
    /// No message that could be compressed is longer than that, because zlib counts in `u32`.
    threshold: u32,
    /// The window for sending, in bits: 9 to 15.
    bits: u8,
    level: u8,
}

// Each idle connection has one.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Codec>() <= 72, "a codec has few words");

enum SendCompressor {
    Shared,
    /// Created when the first message is compressed.
    Dedicated(Option<Box<Deflate>>),
}

/// The state for a peer that takes its context over.
struct ReceiveContext {
    history: History,
    stream: usize,
    messages: u64,
}

impl ReceiveContext {
    fn new(bits: u8) -> Self {
        static STREAMS: AtomicUsize = AtomicUsize::new(0);
        // zlib uses 9 bits when told 8, and some peers do not know that.
        let history = History::new(1 << bits.clamp(BITS_MIN, BITS_MAX));
        Self { history, stream: STREAMS.fetch_add(1, Ordering::Relaxed), messages: 0 }
    }

    fn position(&self) -> StreamPosition {
        StreamPosition { stream: self.stream, messages: self.messages }
    }
}

impl Codec {
    /// A codec for a connection whose handshake ended with `agreement`; the flag says whether this
    /// endpoint is the server. `config` holds the settings that are not negotiated: level,
    /// threshold, and which compressor to use.
    #[must_use]
    pub fn new(is_server: bool, agreement: &Agreement, config: &DeflateConfig) -> Self {
        let server = (agreement.server_max_window_bits, agreement.server_no_context_takeover);
        let client = (agreement.client_max_window_bits, agreement.client_no_context_takeover);
        let ((bits, forgets), (peer_bits, peer_forgets)) =
            if is_server { (server, client) } else { (client, server) };
        let compressor = match config.compressor {
            Compressor::Dedicated if !forgets => SendCompressor::Dedicated(None),
            _ => SendCompressor::Shared,
        };
        Self {
            compressor,
            bits: bits.clamp(BITS_MIN, BITS_MAX),
            level: config.level(),
            threshold: u32::try_from(config.threshold).unwrap_or(u32::MAX),
            receive_context: (!peer_forgets).then(|| ReceiveContext::new(peer_bits)),
        }
    }

    /// A codec for messages that a server sends to many connections. Each message is compressed
    /// independently. Connections whose agreement [allows it](Agreement::can_read_broadcast) can
    /// read them.
    #[must_use]
    pub fn for_broadcast(config: &DeflateConfig) -> Self {
        let agreement = Agreement {
            server_no_context_takeover: true,
            client_no_context_takeover: true,
            server_max_window_bits: config.server_bits(),
            client_max_window_bits: BITS_MAX,
        };
        Self::new(true, &agreement, config)
    }

    /// Messages with fewer bytes are not compressed.
    pub(crate) const fn threshold(&self) -> usize {
        self.threshold as usize
    }

    /// Appends the payload of a message with RSV1 set to `out`: `payload` compressed, without the
    /// last four bytes `00 00 ff ff`. Returns `false` if nothing was appended because the message
    /// is below the threshold or does not get shorter. Send it uncompressed then.
    ///
    /// The caller must send the appended bytes. With context takeover, the peer needs them to read
    /// the next message.
    pub fn compress(&mut self, pool: &mut CodecPool, payload: &[u8], out: &mut Vec<u8>) -> bool {
        if payload.len() < self.threshold as usize {
            return false;
        }
        if payload.is_empty() {
            // RFC 7692 section 7.2.3.6. zlib would write nothing for a second empty message in a
            // row.
            out.push(0);
            return true;
        }
        pool.bytes.deflated += payload.len() as u64;
        match &mut self.compressor {
            SendCompressor::Shared => {
                let level = if payload.len() > FULL_LEVEL_LEN_MAX { LEVEL_MIN } else { self.level };
                compress::if_smaller(pool.compressor(self.bits, level), payload, out)
            }
            SendCompressor::Dedicated(slot) => {
                let deflate = slot.get_or_insert_with(|| {
                    let level = compress::MEM_LEVEL_DEDICATED;
                    Box::new(compress::new(self.bits, self.level, level))
                });
                // The message must be sent even if it got longer. Otherwise the compressor would
                // refer to a message that the peer never received.
                let whole = compress::always(deflate, payload, out);
                if !whole {
                    deflate.reset();
                }
                whole
            }
        }
    }

    /// Decompresses a whole message with RSV1 set and appends it to `out`. `compressed` is the
    /// payload of all its frames. The message takes at most `max` bytes of `out`, plus the spare
    /// capacity that a `Vec` reserves.
    ///
    /// # Errors
    ///
    /// [`Violation::BadDeflate`] and [`Violation::MessageTooBig`]. Nothing was appended. The
    /// connection has failed, and the codec must not be used again.
    pub fn decompress(
        &mut self,
        pool: &mut CodecPool,
        compressed: &[u8],
        out: &mut Vec<u8>,
        max: usize,
    ) -> Result<(), Violation> {
        let start = out.len();
        let mut decoder = self.take_inflate(pool)?;
        let history = self.receive_context.as_ref().map(|context| &context.history);
        let (work, result) =
            inflate::MessageInflater::new(&mut decoder, history, out, max).run(compressed);
        pool.bytes.inflated += (work as u64).max(compressed.len() as u64 * INFLATE_INPUT_COST);
        if result.is_ok() {
            if let Some(context) = &mut self.receive_context {
                context.history.push(&out[start..]);
            }
        }
        self.give_inflate(pool, decoder, result.is_ok());
        result
    }

    /// Starts the decompression of a message piece by piece.
    pub(crate) fn begin_stream(&self, pool: &mut CodecPool) -> Result<MessageStream, Violation> {
        Ok(MessageStream::new(self.take_inflate(pool)?))
    }

    /// Appends the next piece of a message to `out`. Returns how many bytes of `part` were
    /// consumed: all of them, unless the piece is full. `max` is the longest message for a number
    /// of compressed bytes.
    ///
    /// # Errors
    ///
    /// As for [`decompress`](Self::decompress).
    pub(crate) fn decompress_piece(
        &mut self,
        pool: &mut CodecPool,
        stream: &mut MessageStream,
        part: &CompressedPart<'_>,
        out: &mut Vec<u8>,
        max: impl Fn(usize) -> usize,
    ) -> Result<usize, Violation> {
        let (consumed, work) = (stream.consumed(), stream.work());
        let history = self.receive_context.as_mut().map(|context| &mut context.history);
        let result = stream.run(history, part, out, max);
        let (consumed, work) = (stream.consumed() - consumed, stream.work() - work);
        pool.bytes.inflated += (work as u64).max(consumed as u64 * INFLATE_INPUT_COST);
        result
    }

    /// Ends a message that was decompressed to its end.
    pub(crate) fn end_stream(&mut self, pool: &mut CodecPool, stream: MessageStream) {
        self.give_inflate(pool, stream.into_inflate(), true);
    }

    /// Takes a decompressor that goes on where this connection is.
    fn take_inflate(&self, pool: &mut CodecPool) -> Result<Inflate, Violation> {
        let position = pool.last_stream.take();
        let mut decoder = pool.inflate.take().unwrap_or_else(inflate::new);
        let context = self.receive_context.as_ref();
        if position.is_none() || position != context.map(ReceiveContext::position) {
            inflate::restart(&mut decoder, context.map(|context| &context.history), &[])?;
        }
        Ok(decoder)
    }

    /// Gives it back after a message, which it has read to its end if that is `whole`.
    fn give_inflate(&mut self, pool: &mut CodecPool, decoder: Inflate, whole: bool) {
        pool.inflate = Some(decoder);
        pool.last_stream = match &mut self.receive_context {
            Some(context) if whole => {
                context.messages += 1;
                Some(context.position())
            }
            _ => None,
        };
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec")
            .field("bits", &self.bits)
            .field("level", &self.level)
            .field("threshold", &self.threshold)
            .field("dedicated", &matches!(self.compressor, SendCompressor::Dedicated(_)))
            .field("remembers", &self.receive_context.as_ref().map(|context| context.history.len()))
            .finish_non_exhaustive()
    }
}
