//! Guarantees for slow, hostile, many or vanished clients. Each test is named for its guarantee.
//! The sockets are real, and the clock is manual.

use windlass_testkit::backend;

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
mod tls;
mod workers;
