//! `windlass load` as its users see it: the program against `windlass serve`, and against servers
//! that misbehave.

mod bad_server;
mod bad_servers;
mod endings;
mod fan_out;
mod good_servers;
mod http;
mod http2;
mod options;
mod own_certificates;
mod runs;
mod targets;
mod timing;
mod tls;
