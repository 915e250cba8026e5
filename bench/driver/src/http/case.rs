//! The cases of the suite `http`.

use serde::{Deserialize, Serialize};

/// What answers the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpServer {
    /// Reads to the end of a request's head and writes a fixed response, as the benchmark of
    /// corosio does.
    Mock,
    /// hyper's HTTP/1.1 connection with a service that returns a fixed body, as users of the
    /// runtime serve it.
    Hyper,
    /// A `Router` of axum with one route.
    Axum,
}

/// Where the client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientPlace {
    /// On the server's thread, as tasks of the same runtime.
    SameThread,
    /// On another processor: a thread with an epoll loop, the same for all implementations.
    OwnProcessor,
}

/// The rate at which paced requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacedRate {
    /// 70 % of the rate that this server reached just before. A faster server has more to do.
    Own,
    /// The same for all servers: 70 % of what tokio reached. `windlass-bench` finds it, and passes
    /// it on as [`PerSecond`](Self::PerSecond).
    Common,
    /// This number of requests in a second.
    PerSecond(u64),
}

/// A workload of the suite `http` with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum HttpCase {
    /// Each connection has one request in flight. A round is a request and its response.
    Requests {
        /// The server.
        server: HttpServer,
        /// The place of the client.
        client: ClientPlace,
        /// Number of connections.
        connections: usize,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// Requests are due at a given rate, with the client on another processor. Latencies are those
    /// from the moment at which a request was due.
    PacedRequests {
        /// The server.
        server: HttpServer,
        /// Number of connections.
        connections: usize,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
        /// The rate.
        rate: PacedRate,
    },
    /// The mock as a server of several threads, with the client on another processor and one
    /// request in flight on each connection. A round is a request and its response.
    MultiThread {
        /// Number of the server's threads.
        threads: usize,
        /// Number of connections.
        connections: usize,
    },
    /// The memory of a connection that has answered a request and waits for the next one.
    IdleKeepAlive {
        /// The server.
        server: HttpServer,
        /// Number of connections, by which the memory is divided.
        connections: usize,
    },
}

impl HttpCase {
    /// The server of the case.
    pub fn server(&self) -> HttpServer {
        match *self {
            Self::Requests { server, .. }
            | Self::PacedRequests { server, .. }
            | Self::IdleKeepAlive { server, .. } => server,
            Self::MultiThread { .. } => HttpServer::Mock,
        }
    }

    /// The number of timers that wait during the case.
    pub fn live_timers(&self) -> usize {
        match *self {
            Self::Requests { live_timers, .. } | Self::PacedRequests { live_timers, .. } => {
                live_timers
            }
            Self::MultiThread { .. } | Self::IdleKeepAlive { .. } => 0,
        }
    }

    /// See [`Case::part`](crate::protocol::Case::part).
    pub fn part(&self) -> &'static str {
        match (self, self.server()) {
            (Self::MultiThread { .. }, _) => "http/multi_thread",
            (_, HttpServer::Mock) => "http",
            (_, HttpServer::Hyper | HttpServer::Axum) => "http/server",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Case;

    #[test]
    fn a_case_of_http_is_named_like_all_others() {
        let case = Case::Http(HttpCase::Requests {
            server: HttpServer::Hyper,
            client: ClientPlace::SameThread,
            connections: 4,
            live_timers: 0,
        });
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(
            text,
            r#"{"case":"requests","server":"hyper","client":"same_thread","connections":4,"live_timers":0}"#
        );
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
        let rates = [PacedRate::Own, PacedRate::Common, PacedRate::PerSecond(9)];
        let texts = rates.map(|rate| serde_json::to_string(&rate).unwrap());
        assert_eq!(texts, [r#""own""#, r#""common""#, r#"{"per_second":9}"#]);
        assert_eq!((case.suite(), case.part()), ("http", "http/server"));
        let case = Case::Http(HttpCase::MultiThread { threads: 4, connections: 32 });
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(text, r#"{"case":"multi_thread","threads":4,"connections":32}"#);
        assert_eq!((case.suite(), case.part()), ("http", "http/multi_thread"));
    }
}
