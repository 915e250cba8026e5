//! permessage-deflate on single messages, without frames.
#![cfg(feature = "deflate")]

mod naive;

use proptest::prelude::*;
use windlass_ws::Violation;
use windlass_ws::deflate::{Agreement, Codec, CodecPool, Compressor, DeflateConfig};

const MAX: usize = 16 << 20;

fn config(compressor: Compressor, level: u8) -> DeflateConfig {
    let mut config = DeflateConfig::DEFAULT;
    config.compressor = compressor;
    config.level = level;
    config.threshold = 0;
    config
}

fn agreement(bits: u8, forgets: bool) -> Agreement {
    let mut agreement = Agreement::DEFAULT;
    agreement.server_max_window_bits = bits;
    agreement.server_no_context_takeover = forgets;
    agreement
}

/// A server's codec, and the codec of its client.
fn pair(bits: u8, forgets: bool, config: &DeflateConfig) -> (Codec, Codec) {
    let agreement = agreement(bits, forgets);
    (Codec::new(true, &agreement, config), Codec::new(false, &agreement, config))
}

/// A client's codec with the default agreement.
fn reader() -> Codec {
    Codec::new(false, &Agreement::DEFAULT, &DeflateConfig::DEFAULT)
}

fn read(
    codec: &mut Codec,
    shared: &mut CodecPool,
    compressed: &[u8],
) -> Result<Vec<u8>, Violation> {
    let mut out = Vec::new();
    codec.decompress(shared, compressed, &mut out, MAX).map(|()| out)
}

fn random(len: usize, mut seed: u64) -> Vec<u8> {
    (0..len)
        .map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 32) as u8
        })
        .collect()
}

fn text(len: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 8] =
        ["reactor ", "of ", "descriptor ", "the ", "ready ", "{\"id\":", "window", ", "];
    let words = random(len, seed).into_iter().map(|byte| WORDS[usize::from(byte % 8)]);
    let mut bytes: Vec<u8> = words.collect::<String>().into_bytes();
    bytes.truncate(len);
    bytes
}

// ---- RFC 7692 section 7.2.3, byte for byte ----

const HELLO: [u8; 7] = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
const HELLO_AGAIN: [u8; 5] = [0xf2, 0x00, 0x11, 0x00, 0x00];

#[test]
fn one_message_is_compressed_as_the_rfc_says() {
    let mut out = vec![1, 2];
    let (mut server, mut client) = pair(15, false, &config(Compressor::Dedicated, 6));
    let mut shared = CodecPool::new();
    assert!(server.compress(&mut shared, b"Hello", &mut out));
    assert_eq!(out, [&[1, 2][..], &HELLO].concat(), "section 7.2.3.1");
    assert_eq!(read(&mut client, &mut shared, &HELLO).unwrap(), b"Hello");
}

#[test]
fn the_window_is_shared_between_messages() {
    let mut out = Vec::new();
    let (mut server, mut client) = pair(15, false, &config(Compressor::Dedicated, 6));
    let mut shared = CodecPool::new();
    assert!(server.compress(&mut shared, b"Hello", &mut out));
    out.clear();
    assert!(server.compress(&mut shared, b"Hello", &mut out));
    assert_eq!(out, HELLO_AGAIN, "section 7.2.3.2");
    assert_eq!(read(&mut client, &mut shared, &HELLO).unwrap(), b"Hello");
    assert_eq!(read(&mut client, &mut shared, &HELLO_AGAIN).unwrap(), b"Hello");
}

#[test]
fn a_block_without_compression_is_read() {
    let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
    assert_eq!(
        read(&mut reader(), &mut CodecPool::new(), &stored).unwrap(),
        b"Hello",
        "section 7.2.3.3"
    );
}

#[test]
fn a_final_block_is_read_and_the_window_stays() {
    let last = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
    let (mut client, mut shared) = (reader(), CodecPool::new());
    for _ in 0..3 {
        assert_eq!(read(&mut client, &mut shared, &last).unwrap(), b"Hello", "section 7.2.3.4");
        assert_eq!(read(&mut client, &mut shared, &HELLO_AGAIN).unwrap(), b"Hello");
    }
    // The same within one message: a final block, then one that refers to bytes before it.
    let both = [&last[..7], &HELLO_AGAIN].concat();
    assert_eq!(read(&mut reader(), &mut shared, &both).unwrap(), b"HelloHello");
    let forgetful = &mut Codec::new(false, &agreement(15, true), &DeflateConfig::DEFAULT);
    assert_eq!(read(forgetful, &mut shared, &both).unwrap(), b"HelloHello");
}

#[test]
fn a_final_block_may_end_the_message_without_the_empty_one() {
    let (mut client, mut shared) = (reader(), CodecPool::new());
    assert_eq!(
        read(&mut client, &mut shared, &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]).unwrap(),
        b"Hello"
    );
    assert_eq!(read(&mut client, &mut shared, &HELLO_AGAIN).unwrap(), b"Hello");
    // A final empty stored block, whose length fields are the tail.
    assert_eq!(read(&mut client, &mut shared, &[0x01]).unwrap(), b"");
    assert_eq!(read(&mut client, &mut shared, &HELLO_AGAIN).unwrap(), b"Hello");
}

#[test]
fn two_blocks_in_one_message_are_read() {
    let two = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(
        read(&mut reader(), &mut CodecPool::new(), &two).unwrap(),
        b"Hello",
        "section 7.2.3.5"
    );
}

#[test]
fn an_empty_message_is_one_byte() {
    for compressor in [Compressor::Shared, Compressor::Dedicated] {
        let (mut server, mut client) = pair(15, false, &config(compressor, 6));
        let mut shared = CodecPool::new();
        for _ in 0..3 {
            let mut out = Vec::new();
            assert!(server.compress(&mut shared, b"", &mut out));
            assert_eq!(out, [0], "section 7.2.3.6");
            assert_eq!(read(&mut client, &mut shared, &out).unwrap(), b"");
        }
    }
}

// ---- round trips ----

/// Every message is read, the naive decoder agrees, and no reference exceeds the window.
fn round_trip(
    bits: u8,
    forgets: bool,
    config: &DeflateConfig,
    messages: &[Vec<u8>],
    check_naively: bool,
) {
    let (mut server, mut client) = pair(bits, forgets, config);
    let (mut here, mut there) = (CodecPool::new(), CodecPool::new());
    let mut naive = naive::Decoder::default();
    for (index, message) in messages.iter().enumerate() {
        let what = format!(
            "message {index} of {} bytes, {bits} bits, forgets: {forgets}, {config:?}",
            message.len()
        );
        let mut compressed = Vec::new();
        if !server.compress(&mut here, message, &mut compressed) {
            assert!(compressed.is_empty(), "{what}");
            assert!(forgets || config.compressor == Compressor::Shared, "{what}");
            continue;
        }
        let received = read(&mut client, &mut there, &compressed);
        assert!(received.as_ref() == Ok(message), "{what}");
        if check_naively {
            if forgets {
                naive.output.clear();
            }
            assert!(naive.message(&compressed).as_ref() == Some(message), "{what}");
        }
    }
    assert!(naive.distance_max <= 1 << bits, "{} with {bits} bits", naive.distance_max);
}

#[test]
fn every_window_level_and_kind_of_payload_comes_back() {
    for bits in 9..=15 {
        let messages = [
            vec![],
            vec![b'x'],
            text(300, 1),
            text(300, 1),
            random(1000, 2),
            random(1000, 2),
            // Longer than the window.
            text((1 << bits) + 700, 3),
            [text(600, 5), random(600, 6), text(600, 5)].concat(),
        ];
        for level in [1, 2, 4, 6, 9] {
            for forgets in [false, true] {
                for compressor in [Compressor::Shared, Compressor::Dedicated] {
                    let naively =
                        level == 6 && compressor == Compressor::Dedicated || level == 1 && forgets;
                    round_trip(bits, forgets, &config(compressor, level), &messages, naively);
                }
            }
        }
    }
}

#[test]
fn a_megabyte_of_one_byte_comes_back() {
    let messages = [vec![b'a'; 1 << 20], random(1 << 16, 7), vec![b'a'; 1 << 20]];
    for (bits, compressor) in
        [(9, Compressor::Dedicated), (15, Compressor::Shared), (15, Compressor::Dedicated)]
    {
        round_trip(bits, false, &config(compressor, 6), &messages, false);
    }
}

#[test]
fn numbers_out_of_range_count_as_the_nearest() {
    for (bits, level) in [(8, 0), (0, 255), (255, 10)] {
        let mut config = config(Compressor::Dedicated, level);
        config.server_max_window_bits = bits;
        let (mut server, mut client) = pair(bits.clamp(9, 15), false, &config);
        let mut shared = CodecPool::new();
        let mut out = Vec::new();
        assert!(server.compress(&mut shared, &text(3000, 1), &mut out));
        assert_eq!(read(&mut client, &mut shared, &out).unwrap(), text(3000, 1));
    }
}

#[test]
fn the_parameters_of_the_own_direction_count() {
    let mut agreement = Agreement::DEFAULT;
    agreement.client_max_window_bits = 9;
    agreement.client_no_context_takeover = true;
    let config = config(Compressor::Dedicated, 6);
    let (mut server, mut client) =
        (Codec::new(true, &agreement, &config), Codec::new(false, &agreement, &config));
    let mut shared = CodecPool::new();
    let far_apart = [random(1000, 1), random(1000, 1)].concat();
    // The client refers neither 1000 bytes back nor into its last message.
    for _ in 0..2 {
        assert!(!client.compress(&mut shared, &far_apart, &mut Vec::new()));
    }
    // The server does both.
    let mut lengths = Vec::new();
    for _ in 0..2 {
        let mut out = Vec::new();
        assert!(server.compress(&mut shared, &far_apart, &mut out));
        assert_eq!(read(&mut client, &mut shared, &out).unwrap(), far_apart);
        lengths.push(out.len());
    }
    assert!(lengths[0] < 1100 && lengths[1] < 100, "{lengths:?}");
}

#[test]
fn short_messages_and_such_that_do_not_shrink_are_sent_as_they_are() {
    let mut config = config(Compressor::Shared, 6);
    config.threshold = 100;
    let (mut server, _) = pair(15, false, &config);
    let mut shared = CodecPool::new();
    let mut out = vec![7];
    assert!(!server.compress(&mut shared, &[b'a'; 99], &mut out));
    assert!(!server.compress(&mut shared, &random(5000, 1), &mut out));
    assert_eq!(out, [7]);
    assert!(server.compress(&mut shared, &[b'a'; 100], &mut out));
    assert!(out.len() < 20 && out[0] == 7);
}

#[test]
fn a_payload_that_looks_like_the_tail_is_not_taken_for_it() {
    let config = config(Compressor::Shared, 6);
    for at in 280..=296 {
        let mut payload = random(300, 1);
        payload[at..at + 4].copy_from_slice(&[0, 0, 0xff, 0xff]);
        round_trip(15, true, &config, &[payload], true);
    }
}

// ---- separation of connections ----

#[test]
fn many_connections_share_one_decompressor() {
    let config = config(Compressor::Dedicated, 6);
    let mut shared = CodecPool::new();
    let mut pairs: Vec<_> = (0..12_u8).map(|i| pair(9 + i % 7, i % 3 == 0, &config)).collect();
    let order = random(600, 3);
    for (round, &who) in order.iter().enumerate() {
        let (server, client) = &mut pairs[usize::from(who) % 12];
        let message = text(100 + round * 7, u64::from(who % 12) + 1);
        let mut compressed = Vec::new();
        assert!(server.compress(&mut shared, &message, &mut compressed));
        assert_eq!(read(client, &mut shared, &compressed).unwrap(), message, "round {round}");
    }
}

#[test]
fn a_connection_may_go_to_another_thread_and_come_back() {
    let config = config(Compressor::Dedicated, 6);
    let (mut server, mut client) = pair(15, false, &config);
    let mut threads = [CodecPool::new(), CodecPool::new()];
    let message = random(500, 1);
    for thread in [0, 0, 1, 0, 1, 1, 0] {
        let mut compressed = Vec::new();
        assert!(server.compress(&mut threads[thread], &message, &mut compressed));
        assert_eq!(read(&mut client, &mut threads[thread], &compressed).unwrap(), message);
        // A different message in between, so that a stale window is noticed.
        let more = random(300, compressed.len() as u64 + thread as u64 + 2);
        compressed.clear();
        assert!(server.compress(&mut threads[1 - thread], &more, &mut compressed));
        assert_eq!(read(&mut client, &mut threads[1 - thread], &compressed).unwrap(), more);
    }
}

#[test]
fn no_connection_reads_the_window_of_another() {
    let mut shared = CodecPool::new();
    read(&mut reader(), &mut shared, &HELLO).unwrap();
    // "Hello" again, by a reference to the five bytes before it, which do not exist.
    assert_eq!(read(&mut reader(), &mut shared, &HELLO_AGAIN), Err(Violation::BadDeflate));
    let mut forgetful = Codec::new(false, &agreement(15, true), &DeflateConfig::DEFAULT);
    assert_eq!(read(&mut forgetful, &mut shared, &HELLO).unwrap(), b"Hello");
    assert_eq!(read(&mut forgetful, &mut shared, &HELLO_AGAIN), Err(Violation::BadDeflate));
}

#[test]
fn a_shared_compressor_knows_of_no_other_message() {
    let mut shared = CodecPool::new();
    let config = config(Compressor::Shared, 6);
    let secret = random(400, 9);
    let doubled = [&secret[..], &secret].concat();
    let mut outputs = Vec::new();
    for _ in 0..3 {
        let (mut server, _) = pair(15, false, &config);
        let mut out = Vec::new();
        assert!(server.compress(&mut shared, &doubled, &mut out));
        outputs.push(out);
        assert!(
            !server.compress(&mut shared, &secret, &mut Vec::new()),
            "found in an earlier message"
        );
    }
    assert!(outputs.iter().all(|out| *out == outputs[0]));
}

#[test]
fn a_violation_of_one_does_not_touch_the_others() {
    let mut shared = CodecPool::new();
    let mut client = reader();
    read(&mut client, &mut shared, &HELLO).unwrap();
    for _ in 0..2 {
        let mut out = vec![1];
        assert_eq!(
            reader().decompress(&mut shared, &[0xff; 20], &mut out, MAX),
            Err(Violation::BadDeflate)
        );
        assert_eq!(out, [1]);
        assert_eq!(read(&mut client, &mut shared, &HELLO_AGAIN).unwrap(), b"Hello");
    }
}

// ---- limits ----

#[test]
fn a_message_has_at_most_max_bytes() {
    let (mut server, _) = pair(15, true, &config(Compressor::Shared, 6));
    let mut shared = CodecPool::new();
    for len in [1, 2, 100, 127, 128, 129, 4096, 100_000] {
        let message = vec![b'a'; len];
        let mut compressed = Vec::new();
        if !server.compress(&mut shared, &message, &mut compressed) {
            compressed = [&[0, len as u8, 0, !(len as u8), 0xff][..], &message, &[0]].concat();
        }
        let mut out = vec![9];
        assert_eq!(
            reader().decompress(&mut shared, &compressed, &mut out, len - 1),
            Err(Violation::MessageTooBig)
        );
        assert_eq!(out, [9]);
        assert_eq!(reader().decompress(&mut shared, &compressed, &mut out, len), Ok(()), "{len}");
        assert_eq!(out[1..], message);
    }
    assert_eq!(reader().decompress(&mut shared, &[0], &mut Vec::new(), 0), Ok(()));
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let (mut server, _) = pair(15, true, &config(Compressor::Shared, 9));
    let mut shared = CodecPool::new();
    let mut bomb = Vec::new();
    assert!(server.compress(&mut shared, &vec![0; 4 << 20], &mut bomb));
    assert!(bomb.len() < 5000);
    let mut out = Vec::new();
    assert_eq!(
        reader().decompress(&mut shared, &bomb, &mut out, 1 << 16),
        Err(Violation::MessageTooBig)
    );
    assert!(out.is_empty() && out.capacity() <= 2 << 16, "{}", out.capacity());
}

#[test]
fn a_message_of_nothing_but_final_blocks_is_rejected() {
    let (mut client, mut shared) = (reader(), CodecPool::new());
    // A full window, then a few and many final empty blocks.
    read(&mut client, &mut shared, &[&[0, 0xff, 0xff, 0, 0][..], &[b'a'; 65535], &[0]].concat())
        .unwrap();
    let honest = [&[3, 0].repeat(6)[..], &[0]].concat();
    assert_eq!(read(&mut client, &mut shared, &honest).unwrap(), b"");
    let costly = [3, 0].repeat(50);
    assert_eq!(read(&mut client, &mut shared, &costly), Err(Violation::BadDeflate));
}

// ---- damage ----

#[test]
fn a_message_that_ends_too_early_is_rejected() {
    for (name, message) in
        [("text", text(3000, 1)), ("random", random(300, 2)), ("one byte", vec![b'a'; 3000])]
    {
        let (mut server, _) = pair(15, false, &config(Compressor::Dedicated, 6));
        let mut compressed = Vec::new();
        let mut shared = CodecPool::new();
        assert!(server.compress(&mut shared, &message, &mut compressed));
        for cut in 0..compressed.len() {
            // A truncated message may end at a block's end by chance: the first byte of a stored
            // block is also the empty message.
            let naive = naive::Decoder::default().message(&compressed[..cut]);
            assert!(naive.is_none() || (name, cut) == ("random", 1), "{name} cut at {cut}");
            for forgets in [false, true] {
                let mut client =
                    Codec::new(false, &agreement(15, forgets), &DeflateConfig::DEFAULT);
                let found = read(&mut client, &mut shared, &compressed[..cut]);
                let expected = naive.clone().ok_or(Violation::BadDeflate);
                assert_eq!(found, expected, "{name} cut at {cut} of {}", compressed.len());
            }
        }
    }
}

#[test]
fn bytes_that_are_no_deflate_are_rejected() {
    let bad: [&[u8]; 8] = [
        &[],
        &[0x07],                               // a reserved block type
        &[0xff; 8],                            // the same
        &[0x00, 0x05, 0x00, 0xfa, 0xfe, 0x00], // lengths that do not match
        &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48], // less data than announced
        &[0x04, 0xff, 0xff, 0xff, 0xff],       // a bad dynamic code
        &[0x02, 0x81, 0x00],                   // a distance with nothing there
        &HELLO_AGAIN,
    ];
    for compressed in bad {
        assert_eq!(
            read(&mut reader(), &mut CodecPool::new(), compressed),
            Err(Violation::BadDeflate),
            "{compressed:x?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(windlass_testkit::random::cases(100))
    })]

    /// Two independent decoders agree on any bytes.
    #[test]
    fn any_bytes_are_read_as_the_naive_decoder_does(messages in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 0..60), 1..4)) {
        let (mut client, mut shared) = (reader(), CodecPool::new());
        let mut naive = naive::Decoder::default();
        for message in messages {
            let expected = naive.message(&message);
            let found = read(&mut client, &mut shared, &message);
            match expected {
                Some(expected) => prop_assert_eq!(found, Ok(expected)),
                None => {
                    // A missing empty block after a final one is accepted on purpose.
                    let mut naive_accepts =
                        || naive.message(&[&message[..], &[0]].concat()).is_some();
                    prop_assert!(found.is_err() || naive_accepts());
                    break;
                }
            }
        }
    }

    /// A damaged stream is read like the naive decoder reads it, or rejected. Its output never
    /// exceeds the limit.
    #[test]
    fn a_damaged_message_is_rejected_or_read_alike(
        len in 1_usize..2000,
        seed in 1_u64..1000,
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let (mut server, _) = pair(15, true, &config(Compressor::Shared, 6));
        let mut compressed = Vec::new();
        let mut shared = CodecPool::new();
        if server.compress(&mut shared, &text(len, seed), &mut compressed) {
            let at = at.index(compressed.len());
            compressed[at] ^= 1_u8 << bit;
            let mut out = Vec::new();
            match reader().decompress(&mut shared, &compressed, &mut out, 3000) {
                Ok(()) => {
                    let decode = |bytes: &[u8]| naive::Decoder::default().message(bytes);
                    let naive = decode(&compressed)
                        .or_else(|| decode(&[&compressed[..], &[0]].concat()));
                    prop_assert_eq!(naive, Some(out));
                }
                Err(_) => prop_assert!(out.is_empty()),
            }
        }
    }

    /// Every exchange of messages succeeds, with any settings.
    #[test]
    fn any_conversation_comes_through(
        bits in 9_u8..=15, level in 1_u8..=9, forgets in any::<bool>(), dedicated in any::<bool>(),
        messages in proptest::collection::vec((0_usize..5000, 1_u64..6, any::<bool>()), 1..12),
    ) {
        let compressor = if dedicated { Compressor::Dedicated } else { Compressor::Shared };
        let messages: Vec<_> = messages.into_iter()
            .map(|(len, seed, is_text)| if is_text { text(len, seed) } else { random(len, seed) })
            .collect();
        round_trip(bits, forgets, &config(compressor, level), &messages, true);
    }
}

#[test]
fn codecs_travel_between_threads() {
    fn sends<T: Send>() {}
    sends::<Codec>();
    sends::<CodecPool>();
}
