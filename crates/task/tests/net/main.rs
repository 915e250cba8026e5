//! Sockets and descriptors, on every backend.

#![deny(unsafe_code)]

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::scenarios;

#[path = "../common/acknowledged.rs"]
mod acknowledged;

#[path = "../common/counting_waker.rs"]
mod counting_waker;

#[path = "../common/leak.rs"]
mod leak;

mod attacks;
mod attempts;
mod control_data;
mod descriptors;
mod drops;
mod ends;
mod hand_over;
mod names;
mod outputs;
mod read_buffers;
mod streams;
mod tcp;
mod tools;
#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
mod traits;
mod udp;
mod unix;
mod urgent;
mod vsock;
