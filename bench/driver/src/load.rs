//! The suites `scaling`, `fairness`, `fixed-rate` and `startup`: a server under loads of several
//! sizes and shapes.

use serde::{Deserialize, Serialize};

/// A workload of these suites. All echo messages, of 20 bytes unless another length is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum LoadCase {
    /// Each connection has one message in flight. A round is a message.
    Connections {
        /// Number of connections.
        connections: usize,
    },
    /// The same, with a server of several threads.
    Workers {
        /// Number of the server's threads.
        workers: usize,
        /// Number of connections.
        connections: usize,
    },
    /// One connection always has messages in flight. Beside it, messages are due on others at a
    /// fixed rate. A round is one of those.
    HotConnection {
        /// Number of the messages in flight; with zero there is no such connection, to compare.
        depth: usize,
        /// Length of their payloads in bytes.
        bytes: usize,
        /// Number of the other connections.
        quiet: usize,
    },
    /// One connection sends many messages at once, and others one each. The server works on each
    /// message before it answers. A round is a message.
    BurstOfOne {
        /// Number of messages of the one connection.
        burst: usize,
        /// Number of the other connections.
        others: usize,
        /// Work per message.
        work_us: u64,
    },
    /// Messages are due at a share of the rate that the server has reached just before. A round is
    /// a message.
    AtRate {
        /// That share.
        per_cent: u32,
        /// Number of connections, on which the messages are due in turn.
        connections: usize,
    },
    /// A server starts, and answers the first message of its first connection. A round is a start.
    FirstAnswer,
}

impl LoadCase {
    /// See [`Case::part`](crate::protocol::Case::part).
    pub fn part(&self) -> &'static str {
        match self {
            Self::Connections { .. } => "scaling",
            Self::Workers { .. } => "scaling/workers",
            Self::HotConnection { .. } => "fairness",
            Self::BurstOfOne { .. } => "fairness/work",
            Self::AtRate { .. } => "fixed-rate",
            Self::FirstAnswer => "startup",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Case;

    #[test]
    fn a_case_of_load_is_named_like_all_others() {
        let at_rate = LoadCase::AtRate { per_cent: 95, connections: 100 };
        for (case, text) in [
            (at_rate, r#"{"case":"at_rate","per_cent":95,"connections":100}"#),
            (LoadCase::FirstAnswer, r#"{"case":"first_answer"}"#),
        ] {
            let case = Case::Load(case);
            assert_eq!(serde_json::to_string(&case).unwrap(), text);
            assert_eq!(serde_json::from_str::<Case>(text).unwrap(), case);
        }
        let workers = Case::Load(LoadCase::Workers { workers: 4, connections: 32 });
        assert_eq!((workers.suite(), workers.part()), ("scaling", "scaling/workers"));
    }
}
