//! Once the buffers have grown, messages allocate nothing.

use windlass_testkit::alloc::{Counting, calls_of_thread};

use std::sync::Arc;

use windlass_ws::{
    Config, Engine, EngineEvent, FrameHeader, HEADER_LEN_MAX, MessageRef, Opcode, Scratch, mask,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn frame(fin: bool, compressed: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let key = Some([1, 2, 3, 4]);
    let mut head = [0; HEADER_LEN_MAX];
    let len =
        FrameHeader { fin, compressed, opcode, key, len: payload.len() as u64 }.encode(&mut head);
    let mut bytes = [&head[..len], payload].concat();
    mask(&mut bytes[len..], [1, 2, 3, 4]);
    bytes
}

/// The number of allocations in 100 rounds, after some rounds in which the buffers grow. The first
/// `replied` rounds reply to messages.
fn allocations(engine: &mut Engine, bytes: &[u8], chunk: usize, replied: u32) -> usize {
    let mut scratch = Scratch::new();
    let mut input = bytes.to_vec();
    let mut before = 0;
    for round in 0..110 {
        if round == 10 {
            before = calls_of_thread();
        }
        scratch.set_second(round);
        input.copy_from_slice(bytes);
        for piece in input.chunks_mut(chunk) {
            let mut pass = engine.process(piece, &mut scratch);
            while let Some(event) = pass.next() {
                match event {
                    EngineEvent::Text(_) | EngineEvent::Binary(_) if round >= replied => {}
                    EngineEvent::Text(text) if round % 2 == 0 => {
                        let (text, mut outbox) = text.split();
                        outbox.send(MessageRef::Text(text)).unwrap();
                    }
                    EngineEvent::Text(text) => text.reply().unwrap(),
                    EngineEvent::Binary(bytes) => bytes.reply().unwrap(),
                    EngineEvent::Ping(_) | EngineEvent::Pong(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            let outcome = pass.finish();
            assert_eq!(
                scratch.output(&outcome, piece).map(<[u8]>::len).sum::<usize>(),
                outcome.len
            );
        }
    }
    calls_of_thread() - before
}

fn traffic() -> Vec<(&'static str, Vec<u8>)> {
    let long = vec![b'x'; 70 << 10];
    vec![
        ("short", frame(true, false, Opcode::Binary, &[7; 20]).repeat(16)),
        ("medium text", frame(true, false, Opcode::Text, &long[..1024])),
        ("70 KiB", frame(true, false, Opcode::Binary, &long)),
        ("70 KiB text", frame(true, false, Opcode::Text, &long)),
        (
            "fragments",
            [
                frame(false, false, Opcode::Text, &long[..30_000]),
                frame(true, false, Opcode::Ping, b"ping"),
                frame(false, false, Opcode::Continuation, b"more"),
                frame(true, false, Opcode::Continuation, &long[..30_000]),
            ]
            .concat(),
        ),
        (
            "complete fragments",
            [
                frame(false, false, Opcode::Text, &long[..400]),
                frame(false, false, Opcode::Continuation, b""),
                frame(true, false, Opcode::Continuation, &long[..700]),
            ]
            .concat(),
        ),
        (
            "controls",
            [frame(true, false, Opcode::Ping, &[1; 125]), frame(true, false, Opcode::Pong, b"")]
                .concat(),
        ),
    ]
}

#[test]
fn messages_whole_and_in_pieces_allocate_nothing() {
    for (name, bytes) in traffic() {
        for chunk in [usize::MAX, 65_536, 1000, 7] {
            let mut engine = Engine::new(&Arc::new(Config::server()));
            let chunk = chunk.min(bytes.len());
            for replied in [110, 5] {
                let made = allocations(&mut engine, &bytes, chunk, replied);
                assert_eq!(made, 0, "{name} in pieces of {chunk}, {replied} rounds replied to");
            }
        }
    }
}

#[cfg(feature = "deflate")]
#[test]
fn compressed_messages_allocate_nothing() {
    use windlass_ws::deflate::{Agreement, Compressor, DeflateConfig};

    let payload: Vec<u8> = b"all work and no play ".repeat(3000);
    for compressor in [Compressor::Shared, Compressor::Dedicated] {
        let mut config = DeflateConfig::DEFAULT;
        config.compressor = compressor;
        let mut agreement = Agreement::DEFAULT;
        agreement.client_no_context_takeover = true;
        agreement.server_no_context_takeover = compressor == Compressor::Shared;
        let mut client = Engine::with_deflate(
            &Arc::new(Config::client(|bytes| bytes.fill(9))),
            &agreement,
            &config,
        );
        let mut scratch = Scratch::new();
        let bytes = client.send(MessageRef::Binary(&payload), &mut scratch).unwrap().to_vec();
        assert!(bytes.len() < 2000);
        for chunk in [bytes.len(), 100] {
            let mut engine = Engine::with_deflate(&Arc::new(Config::server()), &agreement, &config);
            assert_eq!(
                allocations(&mut engine, &bytes, chunk, 110),
                0,
                "{compressor:?} in pieces of {chunk}"
            );
        }
    }
}

#[cfg(feature = "deflate")]
#[test]
fn a_long_message_is_decompressed_into_memory_that_is_kept() {
    use windlass_ws::{
        EngineLimits,
        deflate::{Agreement, DeflateConfig},
    };

    let payload = vec![b'x'; 5 << 20];
    let mut agreement = Agreement::DEFAULT;
    agreement.client_no_context_takeover = true;
    let config = DeflateConfig::DEFAULT;
    let mut scratch = Scratch::new();
    let mut client =
        Engine::with_deflate(&Arc::new(Config::client(|bytes| bytes.fill(9))), &agreement, &config);
    let bytes = client.send(MessageRef::Binary(&payload), &mut scratch).unwrap().to_vec();
    let mut limits = EngineLimits::DEFAULT;
    (limits.message_max, limits.inflate_ratio_max) = (payload.len(), None);
    let mut engine =
        Engine::with_deflate(&Arc::new(Config::server().with_limits(limits)), &agreement, &config);
    for round in 0..3 {
        let mut input = bytes.clone();
        let before = calls_of_thread();
        let mut pass = engine.process(&mut input, &mut scratch);
        let Some(EngineEvent::Binary(message)) = pass.next() else { panic!("no message") };
        assert_eq!(message.len(), payload.len());
        let _ = pass.finish();
        let made = calls_of_thread() - before;
        assert!(round == 0 || made == 0, "{made} allocations for message {round}");
    }
}
