//! The parts of the ring that Miri can test. They are not used there.

#[path = "buffer_ring.rs"]
mod buffer_ring;
#[path = "copies.rs"]
mod copies;
#[path = "pool.rs"]
mod pool;
#[path = "sends.rs"]
mod sends;
