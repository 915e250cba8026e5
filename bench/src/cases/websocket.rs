//! The cases of the suite `websocket`: libraries on a runtime.

use windlass_bench_driver::protocol::{Case, Content};
use windlass_bench_driver::tls::TlsHandshake;
use windlass_bench_driver::websocket_cases::WebsocketCase;

const KIB: usize = 1024;

/// Returns the cases. A quick run has a part of them.
pub(crate) fn cases(quick: bool) -> Vec<Case> {
    use Content::{Ascii, Binary, Json};
    let messages = |content, connections, bytes, depth| Case::Messages {
        content,
        bytes,
        connections,
        depth,
        deflate: false,
    };
    let mut cases = Vec::new();
    for bytes in [20, KIB, 16 * KIB] {
        let connections: &[usize] = if quick && bytes > 20 { &[10] } else { &[1, 10, 100] };
        cases.extend(connections.iter().map(|&count| messages(Binary, count, bytes, 1)));
    }
    let several: &[usize] = if quick { &[10] } else { &[1, 10, 100] };
    cases.extend(several.iter().map(|&count| messages(Binary, count, 20, 16)));
    cases.push(messages(Ascii, 10, 16 * KIB, 1));
    let outstanding: &[usize] = if quick { &[16] } else { &[1, 16] };
    cases.extend(outstanding.iter().map(|&outstanding| Case::Publish {
        receivers: 100,
        bytes: 64,
        outstanding,
    }));
    cases.extend([
        Case::Messages { content: Json, bytes: 4 * KIB, connections: 10, depth: 1, deflate: true },
        Case::Upgrade { parallel: 16 },
        Case::IdleConnection { connections: 5_000, deflate: false },
        Case::IdleConnection { connections: 1_000, deflate: true },
    ]);
    let shared = cases.into_iter().map(|workload| Case::Websocket { workload: Box::new(workload) });
    shared.chain(own().into_iter().map(Case::WebsocketOnly)).collect()
}

/// The cases that only this suite has.
fn own() -> Vec<WebsocketCase> {
    use TlsHandshake::{Full, None, Resumed};
    use WebsocketCase::{AxumEcho, Connect, Http2Echo};
    let mut cases: Vec<_> =
        [None, Full].map(|handshake| Connect { handshake, parallel: 16 }).into();
    // rustls keeps eight tickets of a server. More connections in flight would find none.
    cases.push(Connect { handshake: Resumed, parallel: 4 });
    for (bytes, depth) in [(20, 1), (20, 16), (KIB, 1)] {
        cases.push(AxumEcho { bytes, connections: 100, depth });
        cases.push(Http2Echo { bytes, connections: 10, streams: 10, depth });
    }
    cases
}

/// Returns the unit of a case.
pub(super) fn unit(case: &WebsocketCase) -> &'static str {
    match case {
        WebsocketCase::AxumEcho { .. } | WebsocketCase::Http2Echo { .. } => "message",
        WebsocketCase::Connect { .. } => "handshake",
    }
}

/// Returns the number of rounds of the longer count of a case, if it is counted. The counts are
/// those of servers, so clients have none.
pub(super) fn counted_rounds(case: &WebsocketCase) -> Option<u64> {
    match *case {
        WebsocketCase::AxumEcho { depth, .. } | WebsocketCase::Http2Echo { depth, .. } => {
            Some(2_000 * depth as u64)
        }
        WebsocketCase::Connect { .. } => None,
    }
}

/// Returns whether a quick run counts the instructions and system calls of this workload.
pub(super) fn is_counted_quickly(workload: &Case) -> bool {
    use WebsocketCase::{AxumEcho, Http2Echo};
    matches!(
        workload,
        Case::Messages { bytes: 20, connections: 100, depth: 1, .. }
            | Case::WebsocketOnly(
                AxumEcho { bytes: 20, depth: 1, .. } | Http2Echo { bytes: 20, depth: 1, .. }
            )
    )
}

/// Returns the traffic that a server may choose its settings for: each peer has those that its
/// documentation has for it.
pub(crate) fn traffic(case: &Case) -> Option<&'static str> {
    use WebsocketCase::{AxumEcho, Http2Echo};
    match case {
        Case::WebsocketOnly(AxumEcho { depth: 1, .. } | Http2Echo { depth: 1, .. }) => {
            Some("single")
        }
        Case::WebsocketOnly(AxumEcho { .. } | Http2Echo { .. }) => Some("pipelined"),
        Case::Websocket { workload } => match **workload {
            Case::Messages { depth: 1, bytes, .. } if bytes >= 16 * KIB => Some("large"),
            Case::Messages { depth: 1, .. } => Some("single"),
            Case::Messages { .. } => Some("pipelined"),
            Case::IdleConnection { .. } => Some("idle"),
            _ => None,
        },
        _ => None,
    }
}
