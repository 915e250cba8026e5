//! What bytes on the wire bring about before a connection is a WebSocket's: the real program, over
//! TCP.
//!
//! Every request of the table is sent at once, in two pieces, and byte by byte. The answer is the
//! same, the connection ends, and the server goes on.

#[path = "../serve/harness.rs"]
mod harness;
mod heads;
mod peer;
mod table;
mod timing;
mod upgraded;
