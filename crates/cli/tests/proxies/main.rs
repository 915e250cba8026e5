//! `windlass serve` behind haproxy and nginx. The tests are ignored where these are missing.

#[path = "../suite/client.rs"]
mod client;
#[path = "../suite/harness.rs"]
mod harness;
mod program;

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::ExitCode,
};

use libtest_mimic::{Completion, Trial};
use rustix::net::{AddressFamily, SocketType, sockopt};
use windlass_ws::MessageRef;

use client::Client;
use harness::{Server, WAIT_MAX};
use program::{Program, Proxy};

fn main() -> ExitCode {
    let tests: [(&str, Proxy, fn()); 4] = [
        ("haproxy::send_proxy", Proxy::Haproxy, || haproxy_states_the_client("send-proxy")),
        ("haproxy::send_proxy_v2", Proxy::Haproxy, || haproxy_states_the_client("send-proxy-v2")),
        ("haproxy::forwardfor", Proxy::Haproxy, haproxy_names_the_client),
        ("nginx::x_forwarded_for", Proxy::Nginx, nginx_names_the_client),
    ];
    let trials = tests.into_iter().map(|(name, proxy, test)| {
        Trial::ignorable_test(name, move || {
            if !proxy.is_there() {
                return Ok(Completion::ignored_with(format!("there is no {}", proxy.name())));
            }
            test();
            Ok(Completion::Completed)
        })
    });
    windlass_testkit::mimic::run(trials.collect())
}

/// Starts a server that admits one connection of each address.
fn server(options: &[&str]) -> Server {
    let own = ["--mode", "echo", "--connections-per-address", "1", "--log-level", "debug"];
    Server::start(&[&own, options].concat())
}

/// Connects from an address of this machine.
fn connect(from: [u8; 4], port: u16) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .expect("there is a descriptor");
    let own = SocketAddr::from((from, 0));
    rustix::net::bind(&socket, &own).expect("all of 127.0.0.0/8 is this machine");
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    rustix::net::connect(&socket, &to).expect("the proxy listens");
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, timeout, Some(WAIT_MAX)).expect("it can be set");
    }
    TcpStream::from(socket)
}

/// The trusted proxies connect from 127.0.0.1, and the clients from these.
const ADA: [u8; 4] = [127, 0, 0, 2];
const BOB: [u8; 4] = [127, 0, 0, 3];
/// One that connects to the server itself.
const EVE: [u8; 4] = [127, 0, 0, 4];

/// What a client forges.
const FORGED: &str = "X-Forwarded-For: 192.0.2.66\r\nForwarded: for=192.0.2.66\r\n";

/// Opens a WebSocket, with forged headers.
fn open(from: [u8; 4], port: u16) -> TcpStream {
    let mut socket = ask(from, port);
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(socket.read(&mut byte).expect("it answers"), 1, "{}", head.escape_ascii());
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
    socket
}

fn ask(from: [u8; 4], port: u16) -> TcpStream {
    let mut socket = connect(from, port);
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{FORGED}\r\n"
    );
    socket.write_all(request.as_bytes()).expect("the proxy reads");
    socket
}

/// Returns what is received until the end, or until the end of a head: a proxy may keep the
/// connection for another request.
fn answer(mut socket: TcpStream) -> String {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    // A proxy may reset a connection that its server has closed.
    while !bytes.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|count| count > 0) {
        bytes.push(byte[0]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Checks that the server sees the address of each client, whatever the client states.
fn check(server: &Server, port: u16, refused: &str) {
    let _ada = open(ADA, port);
    let line = server.wait_for_error(" open ");
    assert!(line.contains("peer=127.0.0.2:"), "{line}");
    let answer = answer(ask(ADA, port));
    let is_refused =
        if refused.is_empty() { answer.is_empty() } else { answer.starts_with(refused) };
    assert!(is_refused, "{answer}");
    let line = server.wait_for_error("refused");
    assert!(line.contains("peer=127.0.0.2:"), "{line}");
    assert!(line.contains("option=\"--connections-per-address\""), "{line}");
    let _bob = open(BOB, port);
    let line = server.wait_for_error(" open ");
    assert!(line.contains("peer=127.0.0.3:"), "{line}");
}

fn haproxy_states_the_client(option: &str) {
    let server = server(&["--proxy-protocol-from", "127.0.0.1"]);
    let backend = format!("server only {} {option}", server.address);
    let haproxy = Program::haproxy("tcp", &backend);
    // haproxy's connection ends without a response.
    check(&server, haproxy.port, "");
    // Another address of the machine is no proxy, and its header is a malformed request.
    let mut forger = connect_to(EVE, server.address);
    forger.write_all(b"PROXY TCP4 192.0.2.66 127.0.0.1 1 2\r\n\r\n").expect("the server reads");
    assert!(answer(forger).starts_with("HTTP/1.1 400 "));
    // A proxy that sends no header is closed.
    let mut direct = connect_to([127, 0, 0, 1], server.address);
    direct.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    assert_eq!(answer(direct), "");
    server.stop_cleanly();
}

fn connect_to(from: [u8; 4], to: SocketAddr) -> TcpStream {
    connect(from, to.port())
}

fn haproxy_names_the_client() {
    let server = server(&["--forwarded-from", "127.0.0.1"]);
    let backend = format!("option forwardfor\n    server only {}", server.address);
    let haproxy = Program::haproxy("http", &backend);
    check(&server, haproxy.port, "HTTP/1.1 429 ");
    // haproxy passes messages on.
    let mut client = Client::open(connect([127, 0, 0, 4], haproxy.port), "/echo", None);
    client.exchange(MessageRef::Text("through it"));
    server.stop_cleanly();
}

fn nginx_names_the_client() {
    let server = server(&["--forwarded-from", "127.0.0.1"]);
    let nginx = Program::nginx(server.address);
    check(&server, nginx.port, "HTTP/1.1 429 ");
    server.stop_cleanly();
}
