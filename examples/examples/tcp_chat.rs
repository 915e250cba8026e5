//! A chat over plain TCP: each line goes to everybody else.
//!
//! `cargo run --example tcp_chat -- 127.0.0.1:9005`, then `nc 127.0.0.1 9005` in two terminals.
//!
//! What to learn:
//! - A `Listener` asks a closure for the handler of each connection; a handler owns its
//!   connection's state.
//! - A stream is reached by its key from any handler. `on_open` notes the key, `on_close` is told
//!   it.
//! - Bytes for many streams are `Shared`: they are copied at most once, however many have to wait.
//! - Nothing grows without a bound: lines have a longest length, and a member that does not read is
//!   sent away.

use std::{cell::RefCell, error::Error, io, net::SocketAddr, rc::Rc};

use windlass::{
    Builder, Key, Reactor, Turn,
    stream::{
        CloseReason, Input, ListenOptions, Peer, SendError, Shared, Stream, StreamHandler,
        StreamOptions,
    },
};

/// The longest line.
const LINE_MAX: usize = 4 << 10;
/// The most output that waits for one member.
const OUTPUT_MAX: usize = 64 << 10;

/// Who is there.
#[derive(Default)]
struct Room {
    members: RefCell<Vec<(Key, String)>>,
    came: RefCell<u64>,
}

impl Room {
    /// Sends a line to all but one of them.
    fn tell(&self, line: &str, but: Key, turn: &mut Turn<'_>) {
        let bytes = format!("{line}\n");
        let shared = Shared::new(bytes.as_bytes());
        // No callback runs in here, so nothing borrows the list while this does.
        for (key, _) in self.members.borrow().iter().filter(|(key, _)| *key != but) {
            let Ok(mut stream) = turn.stream(*key) else { continue };
            if stream.send_shared(&shared) == Err(SendError::Full) {
                // It does not read. `on_close` tells the others.
                stream.abort();
            }
        }
    }

    fn name(&self, of: Key) -> Option<String> {
        self.members.borrow().iter().find(|(key, _)| *key == of).map(|(_, name)| name.clone())
    }
}

/// One connection: the beginning of a line whose end has not come yet.
struct Member {
    room: Rc<Room>,
    line: Vec<u8>,
}

impl StreamHandler for Member {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let number = self.room.came.replace_with(|came| *came + 1) + 1;
        let (key, name) = (stream.key(), format!("guest {number}"));
        let _ = stream.send(format!("* you are {name}\n").as_bytes());
        self.room.tell(&format!("* {name} has come"), key, &mut stream.turn());
        self.room.members.borrow_mut().push((key, name));
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let key = stream.key();
        let Some(name) = self.room.name(key) else { return };
        for piece in input.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > LINE_MAX {
                let _ = stream.send(b"* that line is too long\n");
                return stream.close();
            }
            if let Some(line) = self.line.strip_suffix(b"\n") {
                let line = String::from_utf8_lossy(line);
                self.room.tell(&format!("{name}: {}", line.trim_end()), key, &mut stream.turn());
                self.line.clear();
            }
        }
    }

    fn on_close(&mut self, key: Key, _: CloseReason, mut turn: Turn<'_>) {
        let Some(name) = self.room.name(key) else { return };
        self.room.members.borrow_mut().retain(|(member, _)| *member != key);
        self.room.tell(&format!("* {name} has gone"), key, &mut turn);
    }
}

/// A reactor that serves the chat, and where it listens.
fn start(builder: Builder, address: SocketAddr) -> io::Result<(Reactor, SocketAddr)> {
    let mut reactor = builder.build()?;
    let options = StreamOptions::new().output_max(OUTPUT_MAX);
    let listener = ListenOptions::new().stream(options).connections_max(1000).tcp(address)?;
    let address = listener.local_addr()?.socket_addr().unwrap_or(address);
    let room = Rc::<Room>::default();
    let accept = move |_: &Peer<'_>| Some(Member { room: Rc::clone(&room), line: Vec::new() });
    listener.with_handler(accept).register_into(&mut reactor)?;
    Ok((reactor, address))
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9005".to_owned());
    let (mut reactor, address) = start(windlass_examples::builder()?, address.parse()?)?;
    println!("listening on {address}");
    Ok(reactor.run()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead as _, BufReader, Read as _, Write as _},
        net::TcpStream,
        sync::{
            atomic::{AtomicBool, Ordering::Relaxed},
            mpsc,
        },
        thread::{self, JoinHandle},
    };

    struct Server {
        address: SocketAddr,
        stop: windlass::Stop,
        thread: JoinHandle<()>,
    }

    impl Server {
        fn start() -> Self {
            let (tell, told) = mpsc::channel();
            let thread = thread::spawn(move || {
                let builder = windlass_examples::builder().unwrap();
                let (mut reactor, address) =
                    start(builder, "127.0.0.1:0".parse().unwrap()).unwrap();
                tell.send((address, reactor.stop_handle())).unwrap();
                reactor.run().unwrap();
            });
            let (address, stop) = told.recv().unwrap();
            Self { address, stop, thread }
        }

        /// Somebody who has heard his own name: he is in the room.
        fn join(&self, name: &str) -> Client {
            let mut client = Client(BufReader::new(TcpStream::connect(self.address).unwrap()));
            assert_eq!(client.hear(), format!("* you are {name}"));
            client
        }

        fn end(self) {
            self.stop.stop();
            self.thread.join().unwrap();
        }
    }

    struct Client(BufReader<TcpStream>);

    impl Client {
        fn say(&mut self, text: &str) {
            self.0.get_mut().write_all(text.as_bytes()).unwrap();
        }

        fn hear(&mut self) -> String {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        }
    }

    #[test]
    fn a_line_goes_to_everybody_else_however_it_is_cut() {
        let server = Server::start();
        let mut ada = server.join("guest 1");
        let mut bob = server.join("guest 2");
        assert_eq!(ada.hear(), "* guest 2 has come");
        ada.say("hel");
        ada.say("lo\nand");
        assert_eq!(bob.hear(), "guest 1: hello");
        bob.say("yes?\n");
        assert_eq!(ada.hear(), "guest 2: yes?");
        ada.say(" more\r\n");
        assert_eq!(bob.hear(), "guest 1: and more");
        drop(bob);
        assert_eq!(ada.hear(), "* guest 2 has gone");
        server.end();
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let server = Server::start();
        let mut ada = server.join("guest 1");
        ada.say(&"a".repeat(LINE_MAX + 1));
        assert_eq!(ada.hear(), "* that line is too long");
        assert_eq!(ada.0.read(&mut [0; 1]).unwrap(), 0, "and it is over");
        server.end();
    }

    #[test]
    fn whoever_does_not_read_is_sent_away() {
        let server = Server::start();
        let mut ada = server.join("guest 1");
        let _deaf = server.join("guest 2");
        assert_eq!(ada.hear(), "* guest 2 has come");
        let mut mouth = ada.0.get_ref().try_clone().unwrap();
        let is_gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(ada.hear(), "* guest 2 has gone");
                is_gone.store(true, Relaxed);
            });
            let line = "x".repeat(1000) + "\n";
            while !is_gone.load(Relaxed) {
                mouth.write_all(line.as_bytes()).unwrap();
            }
        });
        server.end();
    }
}
