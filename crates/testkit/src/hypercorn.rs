//! hypercorn, a server in Python, on HTTP/2.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

/// Echoes WebSockets, and answers requests with [`BODY`], on the listener that is its standard
/// input.
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
    if scope['type'] == 'http':
        assert scope['http_version'] == '2', scope
        await send({'type': 'http.response.start', 'status': 200})
        await send({'type': 'http.response.body', 'body': b'Hello, World!'})
    elif scope['type'] == 'websocket':
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

/// The body of its answers.
pub const BODY: &str = "Hello, World!";

/// A server in a process of its own, which ends with its value.
#[derive(Debug)]
pub struct Hypercorn {
    child: Child,
    /// Open as long as the server runs.
    output: BufReader<ChildStdout>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Hypercorn {
    /// Starts it with the names of files for TLS, certificate and key, or with none. `None` if it
    /// is missing, which is written as a skipped test.
    ///
    /// # Panics
    ///
    /// If there is no free port, or Python answers something else.
    #[must_use]
    pub fn start(test: &str, files: &[PathBuf]) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).args(files);
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::piped()).stderr(Stdio::null());
        let skip = |what| {
            let line = format!("skipped here: {test}: there is no {what}\n");
            io::stderr().write_all(line.as_bytes()).expect("it is open");
        };
        let Ok(mut child) = command.spawn() else {
            skip("python3");
            return None;
        };
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut it = Self { child, output, address };
        let mut answer = String::new();
        it.output.read_line(&mut answer).expect("it is open");
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
