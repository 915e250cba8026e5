//! Three handlers: for another descriptor type, with an unknown parameter, and with one parameter
//! twice.
use std::net::{TcpListener, TcpStream};
use windlass::{Event, Reactor, interest};

fn on_stream(_: &mut TcpStream) {}
fn on_number(_: u32) {}
fn on_twice(_: Event, _: Event) {}

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    interest().read().with_fd(listener()).with_handler(on_stream).register_into(&mut reactor).ok();
    interest().read().with_fd(listener()).with_handler(on_number).register_into(&mut reactor).ok();
    interest().read().with_fd(listener()).with_handler(on_twice).register_into(&mut reactor).ok();
}
