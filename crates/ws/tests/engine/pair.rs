//! A client and a server in memory exchange bytes in pieces of any size.

use std::{collections::VecDeque, sync::Arc};

use proptest::prelude::*;
use windlass_ws::{CloseCode, Config, End, Engine, MessageRef};

use crate::fixture::{Handler, Seen, Session};

/// Masking keys from a deterministic generator.
fn entropy(bytes: &mut [u8]) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static STATE: AtomicU64 = AtomicU64::new(7);
    for byte in bytes {
        let next =
            STATE.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        STATE.store(next, Ordering::Relaxed);
        *byte = (next >> 56) as u8;
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Said {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
}

impl Said {
    fn seen(&self) -> Seen {
        match self {
            Self::Text(text) => Seen::Text(text.clone()),
            Self::Binary(bytes) => Seen::Binary(bytes.clone()),
            Self::Ping(bytes) => Seen::Ping(bytes.clone()),
        }
    }
}

pub(crate) fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        "\\PC{0,100}".prop_map(Said::Text),
        ("\\PC{1,8}", 1usize..2000).prop_map(|(piece, times)| Said::Text(piece.repeat(times))),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Said::Binary),
        (any::<u8>(), 0usize..70_000).prop_map(|(byte, len)| Said::Binary(vec![byte; len])),
        prop::collection::vec(any::<u8>(), 0..=125).prop_map(Said::Ping),
    ]
}

pub(crate) fn plain_pair() -> [Engine; 2] {
    [Engine::new(&Arc::new(Config::client(entropy))), Engine::new(&Arc::new(Config::server()))]
}

#[cfg(feature = "deflate")]
pub(crate) fn deflate_pair(
    agreement: &windlass_ws::deflate::Agreement,
    config: &windlass_ws::deflate::DeflateConfig,
) -> [Engine; 2] {
    [Config::client(entropy), Config::server()]
        .map(|role| Engine::with_deflate(&Arc::new(role), agreement, config))
}

/// Both sides send a few messages by turns. The bytes in flight are delivered in pieces of the
/// given sizes. One side echoes, then both close.
pub(crate) fn talk(
    engines: [Engine; 2],
    parts: [&[Said]; 2],
    sizes: &[usize],
    server_echoes: bool,
) {
    let [client, server] = engines;
    let echo = if server_echoes { Handler::Echo } else { Handler::Silent };
    let mut sides = [Session::with(client, Handler::Silent), Session::with(server, echo)];
    let mut under_way: [VecDeque<u8>; 2] = [VecDeque::new(), VecDeque::new()];
    let mut sizes = sizes.iter().copied().cycle();
    let mut next = [0, 0];
    let mut closed = false;
    while sides.iter().any(|side| side.end.is_none()) {
        for from in 0..2 {
            let side = &mut sides[from];
            for said in parts[from].iter().skip(next[from]).take(2) {
                let sent = match said {
                    Said::Text(text) => side.engine.send(MessageRef::Text(text), &mut side.scratch),
                    Said::Binary(bytes) => {
                        side.engine.send(MessageRef::Binary(bytes), &mut side.scratch)
                    }
                    Said::Ping(bytes) => side.engine.ping(bytes, &mut side.scratch),
                };
                under_way[from].extend(sent.unwrap());
                next[from] += 1;
            }
            let size = sizes.next().unwrap_or(1).min(under_way[from].len());
            let piece: Vec<u8> = under_way[from].drain(..size).collect();
            let other = &mut sides[1 - from];
            other.feed(&piece);
            under_way[1 - from].extend(std::mem::take(&mut other.output));
        }
        let idle =
            under_way.iter().all(VecDeque::is_empty) && next == [parts[0].len(), parts[1].len()];
        if idle && !closed {
            closed = true;
            let client = &mut sides[0];
            under_way[0].extend(
                client.engine.close(CloseCode::NORMAL, "done", &mut client.scratch).unwrap(),
            );
        }
    }
    let pongs = |part: &[Said]| part.iter().filter(|said| matches!(said, Said::Ping(_))).count();
    for (side, pings) in [(0, pongs(parts[0])), (1, pongs(parts[1]))] {
        let all = sides[side].seen.len();
        sides[side].seen.retain(|seen| !matches!(seen, Seen::Pong(_)));
        assert_eq!(all - sides[side].seen.len(), pings, "a pong for each ping");
    }
    let close = Seen::Close(Some(1000), "done".to_owned());
    let expected =
        |part: &[Said]| part.iter().map(Said::seen).chain([close.clone()]).collect::<Vec<_>>();
    assert_eq!(sides[1].seen, expected(parts[0]));
    if server_echoes {
        let messages = |seen: &&Seen| matches!(seen, Seen::Text(_) | Seen::Binary(_));
        let echoed: Vec<&Seen> = sides[1].seen.iter().filter(messages).collect();
        assert_eq!(sides[0].seen.iter().filter(messages).collect::<Vec<_>>(), echoed);
    } else {
        assert_eq!(sides[0].seen, expected(parts[1]));
    }
    assert!(sides.iter().all(|side| side.end == Some(End::Closed)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(windlass_testkit::random::cases(20)))]

    #[test]
    fn messages_arrive(
        client in prop::collection::vec(said(), 0..8),
        server in prop::collection::vec(said(), 0..8),
        sizes in prop::collection::vec(prop_oneof![1usize..200, 1usize..70_000], 1..9),
    ) {
        talk(plain_pair(), [&client, &server], &padded(sizes), false);
    }

    #[test]
    fn a_server_that_echoes_is_heard(
        client in prop::collection::vec(said(), 0..8),
        sizes in prop::collection::vec(prop_oneof![1usize..200, 1usize..70_000], 1..9),
    ) {
        talk(plain_pair(), [&client, &[]], &padded(sizes), true);
    }
}

/// A size, which is large once in a while so that the exchange ends.
pub(crate) fn padded(mut sizes: Vec<usize>) -> Vec<usize> {
    sizes.extend([9000, 60_000]);
    sizes
}
