//! The client by URL: on each runtime, over TLS and proxies, and what it says when it fails.

mod errors;
mod fake;
mod happy_eyeballs;
mod https_proxy;
mod programs;
mod reconnecting;
mod request;
mod roots;
mod runtimes;
mod server;
