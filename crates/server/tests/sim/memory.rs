//! The budget of memory: how far it is exceeded, and what topics that take most of it do not stop.

use std::{
    cell::{Cell, RefCell},
    io::{Read as _, Write as _},
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use windlass::{
    Reactor, Turn,
    sim::{self, Faults, Kernel, Sim, SimStream},
};
use windlass_server::{
    Connection, ConnectionId, Handler, Hub, Message, Options, Service, SlowConsumerPolicy,
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

const MEMORY_OF_CROWD: usize = 256 << 10;
const BUFFER_OF_CROWD: usize = 32 << 10;
const CROWD: usize = 24;

/// Publishes to all connections from time to time, when they are open.
struct Crowd(Kernel, Rc<Cell<bool>>);

impl Handler for Crowd {
    type Data = ();

    fn on_start(&self, hub: &mut Hub<'_>) {
        let (kernel, is_open) = (self.0.clone(), Rc::clone(&self.1));
        let publish = move |hub: &mut Hub<'_>| {
            for _ in 0..if is_open.get() { kernel.choose(10) } else { 0 } {
                // Most are so short that each receiver has a copy.
                let len = kernel.choose(if kernel.choose(10) == 0 { 4_000 } else { 200 });
                hub.publish("crowd", &vec![7; len as usize][..]);
            }
        };
        hub.every(Duration::from_millis(10), publish).unwrap();
    }

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
        connection.subscribe("crowd").unwrap();
    }

    fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
}

/// Clients that do not read, and that may send a message without its end. Together they would
/// hold much more than the memory. Returns how many were evicted.
fn crowd(sim: &Sim) -> u64 {
    let mut options = options();
    options.memory_max = Some(MEMORY_OF_CROWD);
    options.receiver_buffer_max = BUFFER_OF_CROWD;
    options.write_stall_timeout = None;
    options.slow = match sim.kernel().choose(2) {
        0 => SlowConsumerPolicy::DropNewest,
        _ => SlowConsumerPolicy::DropOldest,
    };
    // Each receiver's own copy of a short message is beside the bound.
    let most = MEMORY_OF_CROWD + 2 * BUFFER_OF_CROWD + 400 * CROWD;
    let mut reactor = Reactor::builder().sim(&sim.host(address().ip())).build().unwrap();
    let check = move |mut turn: Turn<'_>| {
        let memory = turn.stream_memory();
        assert!(memory <= most, "{memory} bytes wait in streams");
    };
    reactor.after_turn(check).unwrap();
    let is_open = Rc::new(Cell::new(false));
    let handler = || Crowd(sim.kernel().clone(), Rc::clone(&is_open));
    let service = again(|| Service::new(handler(), &options, &mut reactor));
    let listener = again(|| options.listener().tcp(address()));
    service.listen(listener, &mut reactor).unwrap();
    sim.spawn(reactor);
    let clients: Vec<_> = (0..CROWD).map(|_| open(sim, "/")).collect();
    is_open.set(sim.kernel().choose(4) > 0);
    // A mask of zeros, and a length of 16 bits: that of the longest message.
    let mut frame = vec![0x82, 0xfe, 0x40, 0, 0, 0, 0, 0];
    frame.resize(16 << 10, 7);
    let longest = sim.kernel().choose(2) << 14;
    let part = |_| &frame[..sim.kernel().choose(1 + longest) as usize];
    let mut left: Vec<&[u8]> = clients.iter().map(part).collect();
    for _ in 0..60 {
        for (client, left) in clients.iter().zip(&mut left) {
            // Of a connection that was evicted, or that is not read from, some is never taken.
            *left = &left[client.try_write(left).unwrap_or(0)..];
        }
        sim.run_for(Duration::from_millis(50)).unwrap();
    }
    let stats = service.stats();
    assert!(stats.memory_most as usize <= most, "{stats:?}");
    stats.evicted_for_memory
}

/// Clients that send a message without its end, to a server whose memory is large beside the buffer
/// of a receiver. Returns how many were evicted.
fn unfinished(sim: &Sim) -> u64 {
    const MEMORY: usize = 2 << 20;
    const BUFFER: usize = 17 << 10;
    const CLIENTS: usize = 180;
    let mut options = options();
    options.memory_max = Some(MEMORY);
    options.receiver_buffer_max = BUFFER;
    let mut reactor = Reactor::builder().sim(&sim.host(address().ip())).build().unwrap();
    let service = again(|| Service::new(Topics, &options, &mut reactor));
    let listener = again(|| options.listener().tcp(address()));
    service.listen(listener, &mut reactor).unwrap();
    sim.spawn(reactor);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| open(sim, "/")).collect();
    // A mask of zeros, and a length of 16 bits: that of the longest message.
    let mut frame = vec![0x82, 0xfe, 0x40, 0, 0, 0, 0, 0];
    frame.resize((16 << 10) - sim.kernel().choose(4_000) as usize, 7);
    let mut left = [&frame[..]; CLIENTS];
    for _ in 0..20 {
        for (client, left) in clients.iter_mut().zip(&mut left) {
            // Of a connection that was evicted, or that is not read from, some is never taken.
            *left = &left[client.try_write(left).unwrap_or(0)..];
        }
        sim.run_for(Duration::from_millis(5)).unwrap();
    }
    sim.run_for(Duration::from_secs(2)).unwrap();
    let stats = service.stats();
    assert!(stats.memory_most as usize <= MEMORY + 2 * BUFFER, "{stats:?}");
    stats.evicted_for_memory
}

#[test]
fn a_large_memory_is_exceeded_by_no_part_of_it() {
    let evicted = AtomicU64::new(0);
    let count = |sim: &mut Sim| _ = evicted.fetch_add(unfinished(sim), Ordering::Relaxed);
    sim::check(count).seeds(10).faults(Faults::rough()).run();
    assert!(evicted.into_inner() > 0, "the memory is enough");
}

/// Sends a message to each connection in one turn, when all are open.
struct Burst(Kernel, Rc<RefCell<Vec<ConnectionId>>>);

const BURST: usize = 60;
const MEMORY_OF_BURST: usize = 64 << 10;
const MOST_OF_BURST: usize = MEMORY_OF_BURST + 2 * BUFFER_OF_CROWD;

impl Handler for Burst {
    type Data = ();

    fn on_start(&self, hub: &mut Hub<'_>) {
        let (kernel, ids) = (self.0.clone(), Rc::clone(&self.1));
        let send = move |hub: &mut Hub<'_>| {
            if ids.borrow().len() < BURST {
                return;
            }
            let ids = ids.take();
            for id in &ids {
                let _ = hub.send(*id, &vec![7; 3_000 + kernel.choose(1_000) as usize][..]);
            }
            let waiting: usize = ids.iter().map(|id| hub.buffered(*id)).sum();
            assert!(waiting <= MOST_OF_BURST, "{waiting} bytes wait at the end of the turn");
        };
        hub.every(Duration::from_millis(10), send).unwrap();
    }

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
        self.1.borrow_mut().push(connection.id());
    }

    fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
}

/// Nothing waits for the receivers before. Returns how many were evicted.
fn burst(sim: &Sim) -> u64 {
    let mut options = options();
    options.memory_max = Some(MEMORY_OF_BURST);
    options.receiver_buffer_max = BUFFER_OF_CROWD;
    let mut reactor = Reactor::builder().sim(&sim.host(address().ip())).build().unwrap();
    let handler = || Burst(sim.kernel().clone(), Rc::default());
    let service = again(|| Service::new(handler(), &options, &mut reactor));
    let listener = again(|| options.listener().tcp(address()));
    service.listen(listener, &mut reactor).unwrap();
    sim.spawn(reactor);
    let _clients: Vec<_> = (0..BURST).map(|_| open(sim, "/")).collect();
    sim.run_for(Duration::from_secs(3)).unwrap();
    let stats = service.stats();
    assert!(stats.memory_most as usize <= MOST_OF_BURST, "{stats:?}");
    stats.evicted_for_memory
}

#[test]
fn what_one_turn_sends_to_many_receivers_takes_no_more_than_the_memory() {
    let evicted = AtomicU64::new(0);
    let count = |sim: &mut Sim| _ = evicted.fetch_add(burst(sim), Ordering::Relaxed);
    let narrow = Faults { buffer_min: 1 << 10, buffer_max: 2 << 10, ..Faults::rough() };
    sim::check(count).seeds(20).faults(narrow).run();
    assert!(evicted.into_inner() > 0, "the memory is enough");
}

#[test]
fn a_crowd_that_does_not_read_takes_no_more_than_the_memory() {
    let evicted = AtomicU64::new(0);
    let narrow = Faults { buffer_max: 8 << 10, ..Faults::rough() };
    // The buffers of all receivers double at once.
    let even = Faults { buffer_min: 4 << 10, buffer_max: 4 << 10, ..Faults::calm() };
    for faults in [narrow, even] {
        let count = |sim: &mut Sim| _ = evicted.fetch_add(crowd(sim), Ordering::Relaxed);
        sim::check(count).seeds(20).faults(faults).run();
    }
    assert!(evicted.into_inner() > 0, "the memory is enough");
}
