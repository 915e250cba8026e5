//! Windlass beside its peers.

fn main() {}
