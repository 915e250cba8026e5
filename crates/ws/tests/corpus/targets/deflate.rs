//! permessage-deflate: each side reads the other's messages, whichever state is shared, and invalid
//! data does no harm.

use windlass_ws::Violation;
use windlass_ws::deflate::{Agreement, Codec, CodecPool, Compressor, DeflateConfig};

use super::input::Input;

/// The most memory for a message that the decompressor rejects: a `Vec` doubles.
const SLACK: usize = 1 << 17;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() % 2 == 0 {
        made_up(&mut input);
    } else {
        round_trips(&mut input);
    }
}

/// An agreement with matching settings.
pub(crate) fn agreement(input: &mut Input<'_>) -> (Agreement, DeflateConfig) {
    let flags = input.byte();
    let bits = input.byte();
    let mut config = DeflateConfig::DEFAULT;
    config.server_no_context_takeover = flags & 1 != 0;
    config.client_no_context_takeover = flags & 2 != 0;
    config.compressor = if flags & 4 != 0 { Compressor::Dedicated } else { Compressor::Shared };
    config.server_max_window_bits = 9 + (bits & 15) % 7;
    config.client_max_window_bits = 9 + (bits >> 4) % 7;
    config.level = 1 + flags / 32;
    config.threshold = usize::from(flags / 8 % 4) * 20;
    let mut agreement = Agreement::DEFAULT;
    let is_shared = config.compressor == Compressor::Shared;
    agreement.server_no_context_takeover = config.server_no_context_takeover || is_shared;
    agreement.client_no_context_takeover = config.client_no_context_takeover || is_shared;
    agreement.server_max_window_bits = config.server_max_window_bits;
    agreement.client_max_window_bits = config.client_max_window_bits;
    (agreement, config)
}

/// Any bytes from a peer are read or rejected, and never take more memory than the limit.
fn made_up(input: &mut Input<'_>) {
    let (agreement, config) = agreement(input);
    let mut codec = Codec::new(input.byte() % 2 == 0, &agreement, &config);
    let mut shared = CodecPool::new();
    while !input.is_empty() {
        let max = input.number() << (input.byte() % 8);
        let compressed = input.payload();
        let mut out = vec![7; 3];
        match codec.decompress(&mut shared, &compressed, &mut out, max) {
            Ok(()) => {
                assert!(out.len() - 3 <= max, "{} bytes where {max} are allowed", out.len() - 3)
            }
            Err(violation) => {
                assert!(
                    matches!(violation, Violation::BadDeflate | Violation::MessageTooBig),
                    "{violation:?}"
                );
                assert_eq!(out, [7; 3], "something was appended");
                assert!(
                    out.capacity() <= 2 * max + SLACK,
                    "{} bytes kept where {max} are allowed",
                    out.capacity()
                );
                return;
            }
        }
        assert_eq!(out[..3], [7; 3], "what was there is touched");
    }
}

/// Both ends of a connection.
struct Pair {
    server: Codec,
    client: Codec,
}

/// Messages of several connections, in both directions and any order. All connections of a thread
/// share its pool.
fn round_trips(input: &mut Input<'_>) {
    let mut pairs: Vec<Pair> = (0..1 + input.byte() % 3)
        .map(|_| {
            let (agreement, config) = agreement(input);
            Pair {
                server: Codec::new(true, &agreement, &config),
                client: Codec::new(false, &agreement, &config),
            }
        })
        .collect();
    let (mut at_server, mut at_client) = (CodecPool::new(), CodecPool::new());
    while !input.is_empty() {
        let what = input.byte();
        let index = usize::from(what >> 1) % pairs.len();
        let pair = &mut pairs[index];
        let (from, from_shared, to, to_shared) = if what % 2 == 0 {
            (&mut pair.server, &mut at_server, &mut pair.client, &mut at_client)
        } else {
            (&mut pair.client, &mut at_client, &mut pair.server, &mut at_server)
        };
        let payload = input.payload();
        let mut compressed = vec![9];
        if !from.compress(from_shared, &payload, &mut compressed) {
            assert_eq!(compressed, [9], "rejected, and something was appended");
            continue;
        }
        let mut received = Vec::new();
        let outcome = to.decompress(to_shared, &compressed[1..], &mut received, payload.len());
        assert_eq!(outcome, Ok(()), "{} bytes, {} compressed", payload.len(), compressed.len() - 1);
        assert!(received == payload, "{} bytes came as {}", payload.len(), received.len());
    }
}
