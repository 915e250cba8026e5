//! Black-box tests of the server: real sockets, with the client side of windlass-ws as the peer.

use windlass_testkit::backend;

mod adopt;
mod client;
mod cluster;
mod cluster_member;
mod cluster_order;
mod cluster_status;
mod connection;
mod counts;
mod drain;
mod errors;
mod fixture;
mod hand_over;
mod handler_fn;
mod http;
mod ordered;
mod owned_messages;
mod panics;
mod pending_upgrades;
mod proxies;
mod random;
mod rates;
mod regressions;
mod sender;
mod server;
mod slow_consumers;
mod start;
mod timeouts;
mod tls;
mod tls_client;
mod topics;
