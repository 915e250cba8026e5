//! What is guaranteed when peers are slow, hostile, many, or gone: each test is named for it. Real
//! sockets, and a clock that is set by hand.

#[path = "../../../reactor/tests/common/backend.rs"]
mod backend;
mod codec_budget;
mod codec_latency;
mod decompression_bombs;
mod disconnects;
mod drain;
mod fixture;
mod floods;
mod leaks;
mod limits;
mod memory;
mod order;
mod own_process;
mod pages;
mod raw_client;
mod scale;
mod slow_consumers;
mod timeouts;
mod workers;
