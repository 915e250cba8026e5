//! The cases of the suite `websocket`: libraries on a runtime.

use windlass_bench_driver::protocol::{Case, Content};

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
    cases.into_iter().map(|workload| Case::Websocket { workload: Box::new(workload) }).collect()
}

/// Returns whether a quick run counts the instructions and system calls of this workload.
pub(super) fn is_counted_quickly(workload: &Case) -> bool {
    matches!(workload, Case::Messages { bytes: 20, connections: 100, depth: 1, .. })
}

/// Returns the traffic that a server may choose its settings for: each peer has those that its
/// documentation has for it.
pub(crate) fn traffic(case: &Case) -> Option<&'static str> {
    let Case::Websocket { workload } = case else { return None };
    match **workload {
        Case::Messages { depth: 1, bytes, .. } if bytes >= 16 * KIB => Some("large"),
        Case::Messages { depth: 1, .. } => Some("single"),
        Case::Messages { .. } => Some("pipelined"),
        Case::IdleConnection { .. } => Some("idle"),
        _ => None,
    }
}
