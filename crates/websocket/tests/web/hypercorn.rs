//! hypercorn, a server in Python, on HTTP/2. The tests are skipped where it is missing.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tokio::{net::TcpStream, spawn};
use windlass_testkit::certificates::certificate;
use windlass_websocket::{Config, DeflateConfig};

use crate::bed::{Stream, client_http2, close, converse, open, run, tls_client};

/// An echo on the listener that is its standard input.
const SCRIPT: &str = "
import sys
try:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config
except ImportError:
    print('missing')
    sys.exit()
import asyncio
print('there', flush=True)

async def app(scope, receive, send):
    if scope['type'] != 'websocket':
        return
    assert scope['http_version'] == '2', scope
    await receive()
    await send({'type': 'websocket.accept'})
    while (event := await receive())['type'] == 'websocket.receive':
        event['type'] = 'websocket.send'
        await send(event)

config = Config()
config.bind = ['fd://0']
if len(sys.argv) > 1:
    config.certfile, config.keyfile = sys.argv[1:]
    config.alpn_protocols = ['h2']
asyncio.run(serve(app, config))
";

/// A server in a process of its own, which ends with its value.
struct Hypercorn {
    child: Child,
    address: SocketAddr,
}

impl Hypercorn {
    /// Starts it with the names of files for TLS. `None` if it is missing, which is written as a
    /// skipped test.
    fn start(test: &str, files: &[PathBuf]) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).args(files);
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::piped()).stderr(Stdio::null());
        let skip = |what| {
            let line = format!("skipped here: hypercorn::{test}: there is no {what}\n");
            std::io::stderr().write_all(line.as_bytes()).expect("it is open");
        };
        let Ok(child) = command.spawn() else {
            skip("python3");
            return None;
        };
        let mut it = Self { child, address };
        let mut answer = String::new();
        let output = it.child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut answer).expect("it is open");
        match answer.trim() {
            "there" => Some(it),
            "missing" => {
                skip("package hypercorn of Python");
                None
            }
            other => panic!("Python says {other:?}"),
        }
    }
}

impl Drop for Hypercorn {
    fn drop(&mut self) {
        // It has ended if it is missing.
        let _ = self.child.kill();
        self.child.wait().expect("it is a child");
    }
}

async fn several_sockets(stream: impl Stream, scheme: &str) {
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let mut sender = client_http2(stream).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let mut socket = open(&mut sender, scheme, "/", &config).await;
        assert!(socket.has_compression());
        tasks.push(spawn(async move {
            converse(&mut socket).await;
            socket
        }));
    }
    let mut sockets = Vec::new();
    for task in tasks {
        sockets.push(task.await.expect("the echo is right"));
    }
    // hypercorn 0.18 fails with a `KeyError`, and its connection with it, when it receives the
    // empty DATA frame that ends a closed socket's stream. So only one is closed, and last.
    close(sockets.remove(0)).await;
}

#[test]
fn it_serves_several_sockets_in_cleartext() {
    let Some(server) = Hypercorn::start("it_serves_several_sockets_in_cleartext", &[]) else {
        return;
    };
    run(async {
        let stream = TcpStream::connect(server.address).await.expect("it listens");
        several_sockets(stream, "http").await;
    });
}

#[test]
fn it_serves_several_sockets_with_tls() {
    let files = ["pem", "key"].map(|kind| certificate(&format!("localhost.{kind}")));
    let Some(server) = Hypercorn::start("it_serves_several_sockets_with_tls", &files) else {
        return;
    };
    run(async {
        let stream = TcpStream::connect(server.address).await.expect("it listens");
        let stream = tls_client(stream).await;
        several_sockets(stream, "https").await;
    });
}
