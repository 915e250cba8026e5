//! An echo server and its clients on many hosts: what holds under every fault, that runs repeat
//! exactly, and what they cost.

mod determinism;
mod echo;
mod faults;
mod scale;
