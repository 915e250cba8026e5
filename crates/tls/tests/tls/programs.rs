//! Other people's clients, where they are installed.

use std::{
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

use windlass::{Reactor, Stop};

use crate::bed::{Log, file, localhost, serve};

/// A server on a thread of its own.
struct Server {
    address: SocketAddr,
    stop: Stop,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let (send, receive) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut reactor = Reactor::new().unwrap();
            let address = serve(&mut reactor, localhost().build().unwrap(), &Log::default());
            send.send((address, reactor.stop_handle())).unwrap();
            reactor.run().unwrap();
        });
        let (address, stop) = receive.recv().unwrap();
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Runs a program with this input. `None`, with a line that says so, if it is not installed.
fn output(test: &str, command: &mut Command, input: &[u8]) -> Option<String> {
    let started =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        let program = command.get_program().to_string_lossy().into_owned();
        let line = format!("skipped here: {test}: {program} is not installed\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    };
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn openssl_s_client_verifies_and_is_echoed_to() {
    let server = Server::start();
    for version in ["-tls1_2", "-tls1_3"] {
        let mut command = Command::new("openssl");
        command
            .args(["s_client", "-quiet", "-no_ign_eof", "-verify_return_error", version])
            .args(["-servername", "localhost", "-verify_hostname", "localhost", "-CAfile"])
            .arg(file("ca.pem"))
            .args(["-connect", &server.address.to_string()]);
        let Some(text) = output("openssl_s_client", &mut command, b"hello, server\nQ\n") else {
            return;
        };
        assert!(text.contains("verify return:1") && !text.contains("error"), "{text}");
    }
}

#[test]
fn openssl_s_client_may_not_renegotiate() {
    let server = Server::start();
    let mut command = Command::new("openssl");
    command
        .args(["s_client", "-tls1_2", "-servername", "localhost", "-CAfile"])
        .arg(file("ca.pem"))
        .args(["-connect", &server.address.to_string()]);
    // The command `R` asks for a renegotiation.
    if let Some(text) = output("openssl_renegotiation", &mut command, b"R\n") {
        assert!(text.contains("RENEGOTIATING") && text.contains("no renegotiation"), "{text}");
    }
}

#[test]
fn pythons_ssl_module_talks_and_closes() {
    const PROGRAM: &str = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as plain:
    with context.wrap_socket(plain, server_hostname='localhost') as tls:
        message = bytes(range(256)) * 400
        tls.sendall(message)
        got = b''
        while len(got) < len(message):
            got += tls.recv(65536)
        assert got == message
        version = tls.version()
        tls.unwrap()
        print('closed', version)
";
    let server = Server::start();
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM, &server.address.port().to_string()]).arg(file("ca.pem"));
    if let Some(text) = output("pythons_ssl_module", &mut command, b"") {
        assert_eq!(text, "closed TLSv1.3\n");
    }
}
