//! The effects of bytes on the wire before a connection is upgraded, with the program over TCP.
//!
//! Every request of the table is sent at once, in two pieces, and byte by byte. The response is the
//! same, the connection ends, and the server continues.

mod heads;
mod peer;
mod table;
mod timing;
mod upgraded;
