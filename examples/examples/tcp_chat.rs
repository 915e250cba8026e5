//! A chat over plain TCP: each line goes to all other members.
//!
//! `cargo run --example tcp_chat -- 127.0.0.1:9005`, then `nc 127.0.0.1 9005` in two terminals.
//!
//! It shows:
//! - The chat is one group, which grows while it runs: its listener, and all connections that this
//!   accepts. Each callback gets the state of the room, without a lock. The handler itself owns the
//!   state of its connection.
//! - Any handler can reach a stream by its key. `on_open` stores the key, and `on_close` gets it.
//! - Bytes for many streams are `SharedBytes`: they are copied at most once, for all streams that
//!   wait.
//! - Every buffer is bounded: lines have a maximum length, and a member that does not read is
//!   disconnected.

use std::{collections::BTreeMap, error::Error, io, net::SocketAddr};

use windlass::{
    Builder, Group, Key, Reactor, Turn,
    stream::{
        DisconnectReason, Input, ListenOptions, MemberStreamHandler, SharedBytes, Stream,
        StreamOptions, StreamWriteError,
    },
};

/// Maximum length of a line.
const LINE_MAX: usize = 4 << 10;
/// Maximum buffered output of one member.
const OUTPUT_MAX: usize = 64 << 10;

/// The state of the group: the names of the members.
#[derive(Default)]
struct Room {
    names: BTreeMap<Key, String>,
    joined: u64,
}

impl Room {
    /// Sends a line to all members except one.
    fn tell(&self, line: &str, but: Key, turn: &mut Turn<'_>) {
        let bytes = format!("{line}\n");
        let shared = SharedBytes::new(bytes.as_bytes());
        for key in self.names.keys().filter(|key| **key != but) {
            let Ok(mut stream) = turn.stream(*key) else { continue };
            if stream.send_shared(&shared) == Err(StreamWriteError::Full) {
                // It does not read. `on_close` tells the others.
                stream.abort();
            }
        }
    }
}

/// One connection: the beginning of an incomplete line.
#[derive(Default)]
struct Member(Vec<u8>);

impl MemberStreamHandler<Room> for Member {
    fn on_open(&mut self, room: &mut Room, stream: &mut Stream<'_>) {
        room.joined += 1;
        let (key, name) = (stream.key(), format!("guest {}", room.joined));
        let _ = stream.send(format!("* you are {name}\n").as_bytes());
        room.tell(&format!("* {name} has joined"), key, &mut stream.turn());
        room.names.insert(key, name);
    }

    fn on_data(&mut self, room: &mut Room, stream: &mut Stream<'_>, input: Input<'_>) {
        let (key, line) = (stream.key(), &mut self.0);
        let Some(name) = room.names.get(&key) else { return };
        for piece in input.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.len() > LINE_MAX {
                let _ = stream.send(b"* this line is too long\n");
                return stream.close();
            }
            if let Some(text) = line.strip_suffix(b"\n") {
                let text = String::from_utf8_lossy(text);
                room.tell(&format!("{name}: {}", text.trim_end()), key, &mut stream.turn());
                line.clear();
            }
        }
    }

    fn on_close(&mut self, room: &mut Room, key: Key, _: DisconnectReason, mut turn: Turn<'_>) {
        let Some(name) = room.names.remove(&key) else { return };
        room.tell(&format!("* {name} has left"), key, &mut turn);
    }
}

/// Creates a reactor that serves the chat. Returns it with its address.
fn start(builder: Builder, address: SocketAddr) -> io::Result<(Reactor, SocketAddr)> {
    let mut reactor = builder.build()?;
    let options = StreamOptions::new().output_max(OUTPUT_MAX);
    let listener = ListenOptions::new().stream(options).connections_max(1000).tcp(address)?;
    let address = listener.local_addr()?.socket_addr().unwrap_or(address);
    Group::new(Room::default())
        .listener(listener, |_: &mut Room, _| Some(Member::default()))
        .register_into(&mut reactor)?;
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

        /// Connects a member and waits until it has received its own name, so that it is in the
        /// room.
        fn join(&self, name: &str) -> Client {
            let mut client = Client(BufReader::new(TcpStream::connect(self.address).unwrap()));
            assert_eq!(client.next_line(), format!("* you are {name}"));
            client
        }

        fn end(self) {
            self.stop.stop();
            self.thread.join().unwrap();
        }
    }

    struct Client(BufReader<TcpStream>);

    impl Client {
        fn send(&mut self, text: &str) {
            self.0.get_mut().write_all(text.as_bytes()).unwrap();
        }

        fn next_line(&mut self) -> String {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        }
    }

    #[test]
    fn a_line_goes_to_all_others_however_it_is_cut() {
        let server = Server::start();
        let mut ada = server.join("guest 1");
        let mut bob = server.join("guest 2");
        assert_eq!(ada.next_line(), "* guest 2 has joined");
        ada.send("hel");
        ada.send("lo\nand");
        assert_eq!(bob.next_line(), "guest 1: hello");
        bob.send("yes?\n");
        assert_eq!(ada.next_line(), "guest 2: yes?");
        ada.send(" more\r\n");
        assert_eq!(bob.next_line(), "guest 1: and more");
        drop(bob);
        assert_eq!(ada.next_line(), "* guest 2 has left");
        server.end();
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let server = Server::start();
        let mut ada = server.join("guest 1");
        ada.send(&"a".repeat(LINE_MAX + 1));
        assert_eq!(ada.next_line(), "* this line is too long");
        assert_eq!(ada.0.read(&mut [0; 1]).unwrap(), 0, "and it is over");
        server.end();
    }

    #[test]
    fn whoever_does_not_read_is_sent_away() {
        let server = Server::start();
        let mut ada = server.join("guest 1");
        let _deaf = server.join("guest 2");
        assert_eq!(ada.next_line(), "* guest 2 has joined");
        let mut mouth = ada.0.get_ref().try_clone().unwrap();
        let is_gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(ada.next_line(), "* guest 2 has left");
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
