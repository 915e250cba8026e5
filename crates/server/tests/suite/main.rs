//! Black-box tests of the server: real sockets, and the client's side of windlass-ws as the peer.

mod adopt;
#[path = "../../../reactor/tests/common/backend.rs"]
mod backend;
mod bed;
mod connection;
mod drain;
mod hostile;
mod http;
mod owned;
mod promises;
mod random;
mod sender;
mod server;
mod slow;
mod timeouts;
mod topics;
