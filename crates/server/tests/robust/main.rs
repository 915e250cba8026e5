//! What is guaranteed when peers are slow, hostile, many, or gone: each test is named for it. Real
//! sockets, and a clock that is set by hand.

#[path = "../../../reactor/tests/common/backend.rs"]
mod backend;
mod bed;
mod bombs;
mod codec;
mod drain;
mod ends;
mod floods;
mod leaks;
mod limits;
mod many;
mod memory;
mod order;
mod own_process;
mod pages;
mod peer;
mod slow;
mod stall;
mod threads;
mod time;
