//! `windlass` as its users see it: the program, with real sockets and a real terminal. One test
//! program has all that need little of the processor, because their waits then pass side by side.

#![deny(unsafe_code)]

mod admin;
mod chat;
mod client;
mod echo;
mod harness;
mod load;
mod rates;
mod serve;
mod tokens;
mod top;
mod wire;
