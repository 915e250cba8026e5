//! Questions about single connections and topics, and the answers.

use std::{sync::Arc, time::Duration};

use windlass::stream::Address;

use super::id::ConnectionId;
use crate::http::Networks;

/// Which connections come first in a [list](ConnectionQuery).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionOrder {
    /// Those with the most bytes, received and sent. Each look costs a system call for each
    /// connection.
    #[default]
    Bytes,
    /// The oldest ones.
    Age,
    /// Those with the most bytes that wait for the client.
    Buffered,
}

/// A question for the first connections of a server: see
/// [`Inspector::connections`](crate::Inspector::connections).
///
/// ```
/// use windlass_server::{ConnectionOrder, ConnectionQuery};
///
/// let mut query = ConnectionQuery::new();
/// query.order = ConnectionOrder::Age;
/// query.topic = Some("/room/lobby".into());
/// query.limit = 10;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionQuery {
    /// Which connections come first. Default: those with the most bytes.
    pub order: ConnectionOrder,
    /// Only the subscribers of this topic. Default: all connections.
    pub topic: Option<Box<str>>,
    /// The maximum number of connections, at most [`ROWS_MAX`](Self::ROWS_MAX); a higher number
    /// counts as that. Default: 100.
    pub limit: usize,
}

impl ConnectionQuery {
    /// The maximum number of rows in any answer of an [`Inspector`](crate::Inspector).
    pub const ROWS_MAX: usize = 1000;

    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self { order: ConnectionOrder::default(), topic: None, limit: 100 }
    }
}

impl Default for ConnectionQuery {
    fn default() -> Self {
        Self::new()
    }
}

/// What is known of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedConnection {
    /// Its ID.
    pub id: ConnectionId,
    /// The client's address, as in the [reports](crate::Rejected::peer) of the server.
    pub peer: Address,
    /// `handshake`, `open` or `closing`, as in the metrics.
    pub state: &'static str,
    /// `tcp`, `tls`, `unix` or `adopted`, as in the metrics.
    pub transport: &'static str,
    /// The time since it opened, or was accepted. It is as exact as the timeouts are: to a second
    /// or better.
    pub age: Duration,
    /// The time since its last bytes came, as exact as its age.
    pub idle: Duration,
    /// The bytes that came from the client, and those that the client's kernel has acknowledged, by
    /// the [counts of TCP](windlass::stream::Stream::tcp_bytes). `None` for other sockets.
    pub bytes: Option<(u64, u64)>,
    /// Bytes that wait for the client.
    pub buffered: u64,
    /// The topics that it subscribed to last, at most four. Those whose names begin with `$` are
    /// left out.
    pub topics: Vec<Arc<str>>,
}

impl ListedConnection {
    /// The number by which it is sorted. The greatest is the first.
    pub(crate) fn rank(&self, order: ConnectionOrder) -> u64 {
        match order {
            ConnectionOrder::Bytes => self.bytes.map_or(0, |(received, acked)| received + acked),
            ConnectionOrder::Age => u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX),
            ConnectionOrder::Buffered => self.buffered,
        }
    }
}

/// What is known of a topic, over all workers of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedTopic {
    /// Its name.
    pub name: Arc<str>,
    /// Number of subscribers.
    pub subscribers: u64,
    /// Copies of publications that receivers got since each worker has subscribers of it.
    pub delivered: u64,
}

/// The answer of an [`Inspector`](crate::Inspector).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspected<T> {
    /// The first rows.
    pub rows: Vec<T>,
    /// Number of all that fit the question, with those that have no row.
    pub count: u64,
    /// Whether all workers have answered in time. Otherwise rows are missing.
    pub is_complete: bool,
}

/// Which connections to [disconnect](crate::Inspector::disconnect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectTarget {
    /// The one with this ID.
    Id(ConnectionId),
    /// Those of clients with these addresses.
    Addresses(Networks),
    /// The subscribers of this topic.
    Topic(Box<str>),
}

/// How many connections were [disconnected](crate::Inspector::disconnect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disconnected {
    /// Their number. Those that were closing already do not count.
    pub count: u64,
    /// Whether all workers have answered in time. Otherwise some connections may be left.
    pub is_complete: bool,
}
