//! Topics that take most of the memory keep no connection from being read.

use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use windlass::{
    Reactor,
    sim::{self, Faults, Sim, SimStream},
};
use windlass_server::{
    Connection, Handler, Message, Options, Service,
    http::{Accept, Reject, UpgradeRequest},
};

use crate::bed::{address, again};

const MEMORY_MAX: usize = 400 << 10;

/// Together with their names more than four fifths of the memory.
const TOPICS: usize = 820;

/// Subscribes the connections at `/topics`, and sends messages back.
struct Topics;

impl Handler for Topics {
    /// Whether it is such a connection.
    type Data = bool;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<bool>, Reject> {
        Ok(Accept::new(request.path() == "/topics"))
    }

    fn on_open(&self, connection: &mut Connection<'_>, has_topics: &mut bool) {
        for topic in 0..if *has_topics { TOPICS } else { 0 } {
            connection.subscribe(&format!("{topic:0>200}")).unwrap();
        }
    }

    fn on_message(&self, connection: &mut Connection<'_>, _: &mut bool, message: Message<'_>) {
        let _ = connection.reply_in_place(message);
    }
}

fn options() -> Options {
    let mut options = crate::bed::options();
    options.memory_max = Some(MEMORY_MAX);
    (options.ping_interval, options.idle_timeout) = (None, None);
    options
}

/// Opens a WebSocket, and reads the response.
fn open(sim: &Sim, path: &str) -> SimStream {
    let mut client = again(|| sim.connect(address()));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    client.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    client
}

/// A message whose parts come one after the other is answered.
fn message_in_parts(sim: &Sim) {
    let mut reactor = Reactor::builder().sim(&sim.host(address().ip())).build().unwrap();
    let service = again(|| Service::new(Topics, &options(), &mut reactor));
    let listener = again(|| options().listener().tcp(address()));
    service.listen(listener, &mut reactor).unwrap();
    sim.spawn(reactor);
    let _holder = open(sim, "/topics");
    let mut client = open(sim, "/");
    sim.run_for(Duration::from_secs(3)).unwrap();
    let memory = service.stats().memory as usize;
    assert!(memory > MEMORY_MAX / 5 * 4 && memory < MEMORY_MAX, "{memory} bytes");
    // A mask of zeros, and a length of 16 bits.
    let mut frame = vec![0x82, 0xfe, 0x0f, 0xa0, 0, 0, 0, 0];
    frame.resize(8 + 4_000, 7);
    for part in frame.chunks(1_000) {
        client.write_all(part).unwrap();
        sim.run_for(Duration::from_secs(1)).unwrap();
    }
    sim.run_for(Duration::from_secs(20)).unwrap();
    let (mut answer, mut room) = (Vec::new(), vec![0; 5_000]);
    // A fault may interrupt a read.
    for _ in 0..20 {
        let count = client.try_read(&mut room).unwrap_or(0);
        answer.extend_from_slice(&room[..count]);
        sim.run_for(Duration::from_secs(1)).unwrap();
    }
    assert_eq!((answer.len(), answer.last()), (4 + 4_000, Some(&7)), "it is not answered");
}

#[test]
fn topics_that_take_most_of_the_memory_stop_no_reading() {
    sim::check(|sim| message_in_parts(sim)).seeds(20).faults(Faults::rough()).run();
}
