//! Proxies that others have written, where they are installed.

use std::{
    io::{ErrorKind, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tokio::io::copy_bidirectional;
use windlass_testkit::waiting::until;
use windlass_websocket::client::{Client, Phase};

use crate::server::{acceptor, echo_server, on_each_connection, trusting};

/// A proxy in a process of its own. It ends with its value.
struct Program {
    child: Child,
    port: u16,
}

impl Program {
    /// Starts a program with arguments for a port. `None` if it is missing, which is written as a
    /// skipped test.
    fn start(test: &str, name: &str, arguments: impl Fn(u16) -> Vec<String>) -> Option<Self> {
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            let mut command = Command::new(name);
            command.args(arguments(port)).stdout(Stdio::null()).stderr(Stdio::null());
            let mut it = match command.spawn() {
                Ok(child) => Self { child, port },
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let line = format!("skipped here: {test}: there is no program {name}\n");
                    std::io::stderr().write_all(line.as_bytes()).expect("it is open");
                    return None;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            let is_started = until(
                || match it.child.try_wait().expect("it is a child") {
                    // Somebody else has the port now.
                    Some(_) => Some(false),
                    None => TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true),
                },
                || format!("{name} at port {port}"),
            );
            if is_started {
                return Some(it);
            }
        }
        panic!("{name} ends again and again");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }
}

/// A file that is removed with its value.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Echoes through a proxy with the credentials `me:pw`, plain and over TLS, and fails with others.
fn check(scheme: &str, port: u16, refusal: &str) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(async {
        for tls in [false, true] {
            let server = echo_server(tls).port();
            let to = if tls { "wss" } else { "ws" };
            let client = Client::new(&format!("{to}://localhost:{server}/")).tls(trusting("ca"));
            let client = client.proxy_tls(trusting("ca"));
            let good = client.clone().proxy(&format!("{scheme}://me:p%77@localhost:{port}"));
            let mut socket = good.connect().await.expect("the proxy accepts it");
            socket.send("through").await.expect("it is open");
            let echo = socket.recv().await.expect("it is good").expect("an echo");
            assert_eq!(echo.as_str(), Some("through"));
            let bad = client.proxy(&format!("{scheme}://me:other@localhost:{port}"));
            let error = bad.connect().await.expect_err("the password is wrong");
            assert_eq!(error.phase(), Phase::Proxy, "{error}");
            assert!(error.to_string().contains(refusal), "{error}");
        }
    });
}

#[test]
fn tinyproxy_connects_by_http() {
    let test = concat!(module_path!(), "::tinyproxy_connects_by_http");
    let file =
        File(std::env::temp_dir().join(format!("windlass-tinyproxy-{}", std::process::id())));
    let program = Program::start(test, "tinyproxy", |port| {
        let settings = format!("Port {port}\nListen 127.0.0.1\nTimeout 60\nBasicAuth me pw\n");
        std::fs::write(&file.0, settings).expect("it is written");
        vec!["-d".to_owned(), "-c".to_owned(), file.0.display().to_string()]
    });
    let Some(program) = program else { return };
    check("http", program.port, "the proxy answered with status 401");
    // It has no TLS itself.
    let port = program.port;
    let secured = on_each_connection(async move |stream| {
        tokio::spawn(async move {
            let mut stream = acceptor().accept(stream).await.expect("the client trusts it");
            let proxy = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            // It fails where one of the two ends its TLS roughly.
            let _ = copy_bidirectional(&mut stream, &mut proxy.expect("it listens")).await;
        });
    });
    check("https", secured.port(), "the proxy answered with status 401");
}

#[test]
fn microsocks_connects_by_socks5() {
    let test = concat!(module_path!(), "::microsocks_connects_by_socks5");
    let program = Program::start(test, "microsocks", |port| {
        let words = ["-i", "127.0.0.1", "-p", &port.to_string(), "-u", "me", "-P", "pw"];
        words.map(str::to_owned).into()
    });
    let Some(program) = program else { return };
    check("socks5", program.port, "the proxy rejected the user or the password");
}
