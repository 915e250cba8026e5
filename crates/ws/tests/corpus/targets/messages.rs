//! A client's bytes give the same result, however they are cut.

use std::sync::Arc;

use windlass_ws::{Config, EngineLimits, FrameHeader, Opcode, Scratch};

use super::{
    endpoint::{Endpoint, Seen},
    input::{Cuts, Input},
    stream,
};

/// Longer streams are not fed byte by byte.
const SINGLE_MAX: usize = 1 << 14;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let config = Arc::new(Config::server().with_limits(limits(&mut input)));
    let reactions = [input.byte(), input.byte(), input.byte()];
    let mut cuts = Cuts::new(&mut input);
    let bytes = stream::client_bytes(&mut input);

    let mut scratch = Scratch::new();
    let mut whole = Endpoint::server(&config, &reactions);
    whole.feed(&bytes, &mut Cuts::none(), &mut scratch);
    check_output(&whole);
    compare(&whole, &config, &reactions, &bytes, &mut cuts);
    if bytes.len() <= SINGLE_MAX {
        compare(&whole, &config, &reactions, &bytes, &mut Cuts::single());
    }
}

/// The default limits, or small ones that a fuzzer's stream can reach.
fn limits(input: &mut Input<'_>) -> EngineLimits {
    let mut limits = EngineLimits::DEFAULT;
    let which = input.byte();
    if which & 1 != 0 {
        limits.frame_max = usize::from(which) * 2;
    }
    if which & 2 != 0 {
        limits.message_max = usize::from(which) * 3;
    }
    if which & 4 != 0 {
        limits.fragments_max = u32::from(which >> 5);
    }
    if which & 8 != 0 {
        limits.controls_per_second_max = u16::from(which >> 4);
    }
    limits
}

fn compare(
    whole: &Endpoint,
    config: &Arc<Config>,
    reactions: &[u8],
    bytes: &[u8],
    cuts: &mut Cuts,
) {
    let mut scratch = Scratch::new();
    let mut cut = Endpoint::server(config, reactions);
    cut.feed(bytes, cuts, &mut scratch);
    assert_eq!(cut.seen, whole.seen, "events");
    assert_eq!(cut.end, whole.end, "end");
    assert!(cut.sent == whole.sent, "output: {:x?} whole, {:x?} cut", whole.sent, cut.sent);
    check_buffer(&cut, config);
}

/// An engine holds no more than it received, within its limits and the growth of a `Vec`.
fn check_buffer(endpoint: &Endpoint, config: &Config) {
    let most = config.limits.message_max.saturating_mul(2).saturating_add(4096);
    assert!(endpoint.engine.buffered() <= most, "{} bytes are held", endpoint.engine.buffered());
}

/// A server sends complete, unmasked, unfragmented frames. It sends nothing after a Close frame,
/// and it answers every ping before that.
fn check_output(endpoint: &Endpoint) {
    let mut rest = &endpoint.sent[..];
    let mut pongs = Vec::new();
    let mut is_closed = false;
    while !rest.is_empty() {
        assert!(!is_closed, "{} bytes after the Close frame", rest.len());
        let (header, len) = FrameHeader::parse(rest).expect("it is right").expect("it is whole");
        assert!(header.fin && header.key.is_none() && !header.compressed, "{header:?}");
        let payload = rest[len..].split_at_checked(header.len as usize).expect("it is whole");
        match header.opcode {
            Opcode::Pong => pongs.push(Seen::Ping(payload.0.to_vec())),
            Opcode::Close => is_closed = true,
            Opcode::Text => assert!(std::str::from_utf8(payload.0).is_ok(), "text that is none"),
            _ => {}
        }
        rest = payload.1;
    }
    let pings: Vec<&Seen> =
        endpoint.seen.iter().filter(|seen| matches!(seen, Seen::Ping(_))).collect();
    assert!(pongs.len() <= pings.len());
    assert!(
        pongs.iter().eq(pings[..pongs.len()].iter().copied()),
        "pongs are not the pings' answers"
    );
    assert!(is_closed || pongs.len() == pings.len(), "a ping was not answered");
    assert!(is_closed || endpoint.end.is_none(), "the end without a Close frame");
}
