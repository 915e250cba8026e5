//! `windlass load` as its users see it: the real program against the real server, and against
//! servers that lie.

#[path = "../serve/harness.rs"]
mod harness;
mod honest;
mod liar;
mod lies;
mod load;
mod time;
