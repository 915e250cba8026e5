//! The figures of the suite `websocket` that are over those of the server that echoes bytes: how
//! many instructions and how much memory a library adds to its runtime.

use crate::programs::Workspace;
use crate::programs::servers::{SERVERS, TOKIO_ECHO, is_compared};
use crate::report::Entry;
use crate::report::stats::Spread;

/// The figures that are compared.
const FIGURES: [&str; 2] = ["user_instructions_per_message", "anonymous_bytes_per_connection"];

/// The peers that a target names. The others count as the best of them.
const NAMED: [&str; 3] = ["tungstenite", "tungstenite-untuned", "fastwebsockets"];

/// Adds to each entry what it has over the floor. Adds to those of windlass which share this is of
/// what the named peers and the best peer have over it.
pub(super) fn add(results: &mut [Entry]) {
    let entries: Vec<Entry> = results.iter().filter(|e| e.suite == "websocket").cloned().collect();
    for entry in results.iter_mut().filter(|entry| entry.suite == "websocket") {
        for figure in FIGURES {
            let beside = || {
                entries.iter().filter(|of| (&of.case, &of.params) == (&entry.case, &entry.params))
            };
            let of =
                |name: &str| beside().find(|of| of.implementation == name)?.metrics.get(figure);
            let (Some(own), Some(floor)) = (entry.metrics.get(figure), of(TOKIO_ECHO)) else {
                continue;
            };
            let over_floor = |of: &Spread| of.median - floor.median;
            let own = over_floor(own);
            let mut added = vec![(format!("over_tokio_echo_{figure}"), own)];
            if is_compared(&entry.implementation) {
                let named = NAMED.map(|name| (name, of(name).map(over_floor)));
                let peers = SERVERS.iter().map(|server| &server.program);
                let peers = peers.filter(|program| program.workspace == Workspace::Peers);
                let best = peers.filter_map(|program| of(program.name)).map(over_floor);
                let best = ("best_peer", best.min_by(f64::total_cmp));
                added.extend(named.into_iter().chain([best]).filter_map(|(name, theirs)| {
                    Some((format!("over_tokio_echo_{figure}_over_{name}_ratio"), own / theirs?))
                }));
            }
            entry
                .metrics
                .extend(added.into_iter().map(|(name, value)| (name, Spread::exact(value))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_what_a_peer_has_over_the_floor() {
        let entry = |name: &str, instructions| Entry {
            suite: "websocket".into(),
            case: "messages".into(),
            params: [].into(),
            implementation: name.into(),
            backend: "epoll".into(),
            version: "1".into(),
            metrics: [(FIGURES[0].to_owned(), Spread::exact(instructions))].into(),
            samples: Vec::new(),
        };
        let mut all = [
            entry(TOKIO_ECHO, 100.0),
            entry("windlass-websocket", 150.0),
            entry("tungstenite", 300.0),
            entry("yawc", 200.0),
        ];
        add(&mut all);
        let figure = |of: usize, name: &str| all[of].metrics.get(name).map(|value| value.median);
        let over = "over_tokio_echo_user_instructions_per_message";
        assert_eq!([0, 1, 2].map(|of| figure(of, over)), [Some(0.0), Some(50.0), Some(200.0)]);
        assert_eq!(figure(1, &format!("{over}_over_tungstenite_ratio")), Some(0.25));
        assert_eq!(figure(1, &format!("{over}_over_best_peer_ratio")), Some(0.5));
        assert_eq!(figure(1, &format!("{over}_over_fastwebsockets_ratio")), None);
        assert_eq!(figure(2, &format!("{over}_over_best_peer_ratio")), None);
    }
}
