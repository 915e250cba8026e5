//! `windlass load` as its users see it: the program against `windlass serve`, and against servers
//! that misbehave.

#[path = "../serve/harness.rs"]
mod harness;

mod bad_server;
mod bad_servers;
mod endings;
mod good_servers;
mod http;
mod load;
mod own_certificates;
mod timing;
mod tls;
