//! A member's handler without the state parameter.
use std::net::TcpListener;
use windlass::{Group, Reactor, interest};

fn main() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _: Group<u64, Reactor> =
        Group::new(0u64).fd(interest().read(), listener, |_: &mut TcpListener| {});
}
