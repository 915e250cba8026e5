//! The cases of the suite `tls`.

use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tls::{TlsCase, TlsHandshake};

const KIB: usize = 1024;

/// Returns the cases.
pub(crate) fn cases() -> Vec<Case> {
    use TlsHandshake::{Full, None, Resumed};
    let messages = [(100, 20, 1), (10, KIB, 1), (10, 16 * KIB, 1), (100, 64, 16)];
    let idle = [(64, false), (64, true), (16 * KIB, true)];
    let messages = messages.map(|(connections, bytes, depth)| TlsCase::TlsMessages {
        bytes,
        connections,
        depth,
    });
    let upgrades =
        [None, Full, Resumed].map(|handshake| TlsCase::TlsUpgrade { handshake, parallel: 16 });
    let flood = TlsCase::TlsFlood { connections: 10, handshakes: 64 };
    let idle =
        idle.map(|(bytes, tls)| TlsCase::TlsIdleConnection { connections: 2_000, bytes, tls });
    let all = messages.into_iter().chain(upgrades).chain([flood]).chain(idle);
    all.map(Case::Tls).collect()
}

/// Returns the unit of a case.
pub(crate) fn unit(case: &TlsCase) -> &'static str {
    match case {
        TlsCase::TlsMessages { .. } | TlsCase::TlsFlood { .. } => "message",
        TlsCase::TlsUpgrade { .. } => "handshake",
        TlsCase::TlsIdleConnection { .. } => "connection",
    }
}

/// Returns whether the case measures memory, and no times.
pub(crate) fn is_idle(case: &Case) -> bool {
    matches!(case, Case::Tls(TlsCase::TlsIdleConnection { .. }))
}

/// Returns the number of rounds of the longer count of a case, if it is counted.
pub(crate) fn counted_rounds(case: &TlsCase) -> Option<u64> {
    match *case {
        TlsCase::TlsMessages { bytes, depth, .. } if bytes <= KIB => {
            Some(2_000 * depth.min(16) as u64)
        }
        TlsCase::TlsMessages { .. } => Some(500),
        // A handshake takes as many instructions as thousands of messages.
        TlsCase::TlsUpgrade { .. } => Some(300),
        TlsCase::TlsFlood { .. } | TlsCase::TlsIdleConnection { .. } => None,
    }
}
