//! Servers that do not do what an echo server should, each in a thread of the test.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
};

use rustix::net::sockopt;
use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, MessageRef, Scratch,
    handshake::{AcceptOptions, HeadLimits, HeadReader},
};

use crate::harness::PATIENCE;

/// A server for some connections, one after the other.
pub(crate) struct Liar {
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Liar {
    /// Serves one connection.
    pub(crate) fn start(serve: impl FnOnce(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let thread = thread::spawn(move || {
            let (socket, _) = listener.accept().expect("somebody comes");
            socket.set_nodelay(true).expect("it can be set");
            socket.set_read_timeout(Some(PATIENCE)).expect("it can be set");
            serve(socket);
        });
        Self { address, thread }
    }

    /// A WebSocket server that echoes, but asks `lie` what to send for each message.
    pub(crate) fn websocket(
        mut lie: impl FnMut(u64, MessageRef<'_>, &mut Mouth<'_>) + Send + 'static,
    ) -> Self {
        Self::start(move |mut socket| {
            let mut ears = Ears::accept(&mut socket);
            let mut number = 0;
            while ears.hear(&mut socket, |message, mouth| {
                number += 1;
                lie(number, message, mouth);
            }) {}
        })
    }

    pub(crate) fn ws(&self) -> String {
        format!("ws://{}/", self.address)
    }

    pub(crate) fn tcp(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Waits for its end, and fails if it did.
    pub(crate) fn join(self) {
        self.thread.join().expect("the server is content");
    }
}

/// What a lying server says.
pub(crate) struct Mouth<'a> {
    engine: &'a mut Engine,
    socket: &'a mut TcpStream,
    scratch: &'a mut Scratch,
    is_over: &'a mut bool,
}

impl Mouth<'_> {
    /// Sends a message at once.
    pub(crate) fn say(&mut self, message: MessageRef<'_>) {
        let frame = self.engine.send(message, self.scratch).expect("it is open");
        // Who has noticed a lie hangs up.
        let _ = self.socket.write_all(frame);
    }

    /// Sends bytes that need not be frames.
    pub(crate) fn say_bytes(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Sends a Close frame.
    pub(crate) fn say_goodbye(&mut self, code: CloseCode, reason: &str) {
        let frame = self.engine.close(code, reason, self.scratch).expect("it is open");
        let _ = self.socket.write_all(frame);
    }

    /// Hangs up.
    pub(crate) fn hang_up(&mut self) {
        *self.is_over = true;
    }

    /// Hangs up with a RST.
    pub(crate) fn reset(&mut self) {
        sockopt::set_socket_linger(&*self.socket, Some(std::time::Duration::ZERO))
            .expect("it can be set");
        *self.is_over = true;
    }
}

/// What a server hears.
pub(crate) struct Ears {
    engine: Engine,
    scratch: Scratch,
    buffer: Vec<u8>,
}

impl Ears {
    /// Does the handshake, without extensions.
    pub(crate) fn accept(socket: &mut TcpStream) -> Self {
        Self::accept_and_say(socket, &[])
    }

    /// The same, with bytes behind the answer, in one write.
    pub(crate) fn accept_and_say(socket: &mut TcpStream, more: &[u8]) -> Self {
        let (mut head, mut answer) = (HeadReader::new(HeadLimits::DEFAULT), Vec::new());
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = socket.read(&mut buffer).expect("the client asks");
            if let Some((request, used)) = head.request(&buffer[..count]).expect("it is a request")
            {
                assert_eq!(used, count, "the client waits for the answer");
                let upgrade = request.upgrade().expect("it asks for an upgrade");
                upgrade
                    .accept(&AcceptOptions::DEFAULT, &mut answer)
                    .expect("there is nothing of ours in it");
                break;
            }
        }
        answer.extend_from_slice(more);
        socket.write_all(&answer).expect("the client waits for it");
        Self { engine: Engine::new(&Arc::new(Config::server())), scratch: Scratch::new(), buffer }
    }

    /// Reads once and gives each message to `answer`. Whether the connection goes on.
    pub(crate) fn hear(
        &mut self,
        socket: &mut TcpStream,
        mut answer: impl FnMut(MessageRef<'_>, &mut Mouth<'_>),
    ) -> bool {
        // A client that is content says goodbye before it hangs up, one that is not resets the
        // connection.
        let Ok(count @ 1..) = socket.read(&mut self.buffer) else { return false };
        let mut messages = Vec::new();
        let mut pass = self.engine.process(&mut self.buffer[..count], &mut self.scratch);
        let mut is_goodbye = false;
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Text(text) => messages.push((true, text.as_bytes().to_vec())),
                EngineEvent::Binary(bytes) => messages.push((false, bytes.to_vec())),
                EngineEvent::Close(_) => is_goodbye = true,
                EngineEvent::Violation(violation) => {
                    panic!("the client breaks the protocol: {violation}")
                }
                _ => {}
            }
        }
        let outcome = pass.finish();
        let output: Vec<u8> =
            self.scratch.output(&outcome, &self.buffer[..count]).flatten().copied().collect();
        let mut is_over = false;
        for (is_text, bytes) in messages {
            let message = match is_text {
                true => MessageRef::Text(
                    std::str::from_utf8(&bytes).expect("the engine has checked it"),
                ),
                false => MessageRef::Binary(&bytes),
            };
            let (engine, scratch) = (&mut self.engine, &mut self.scratch);
            answer(message, &mut Mouth { engine, socket, scratch, is_over: &mut is_over });
            if is_over {
                return false;
            }
        }
        let _ = socket.write_all(&output);
        !is_goodbye
    }
}

/// A byte stream server that gives each piece that comes to `lie` before it sends it back. It hangs
/// up when `lie` says so or the client does.
pub(crate) fn raw(mut lie: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static) -> Liar {
    Liar::start(move |mut socket| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = socket.read(&mut buffer) {
            let mut piece = buffer[..count].to_vec();
            let goes_on = lie(&mut piece);
            // Who has noticed a lie hangs up.
            let _ = socket.write_all(&piece);
            if !goes_on {
                return;
            }
        }
    })
}

/// Reads a request, whatever it asks for.
pub(crate) fn read_request(socket: &mut TcpStream) {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("the client asks");
        request.push(byte[0]);
    }
}
