//! After all clients have left, no memory and no descriptor is left behind.

use windlass_server::SlowConsumerPolicy;
use windlass_ws::deflate::DeflateConfig;

use crate::{
    fixture::{Fixture, Random, options},
    own_process::{descriptors, is_own_process, live_bytes},
    raw_client::{BINARY, CLOSE, PING, RawClient, TEXT, masked, upgrade},
};

/// One random action of a client.
fn act(fixture: &mut Fixture, random: &mut Random, clients: &mut Vec<RawClient>, flood: &[u8]) {
    let chosen = random.below(clients.len().max(1));
    let offer = ["", "Sec-WebSocket-Extensions: permessage-deflate\r\n"][random.below(2)];
    let path = ["/echo", "/room", "/sink", "/amplify", "/forbidden", "/page"][random.below(6)];
    let size = [0, 1, 125, 126, 5000, 70_000, 300_000][random.below(7)];
    let Some(client) = clients.get_mut(chosen).filter(|_| random.below(8) > 0) else {
        let mut client = match random.below(3) {
            0 => RawClient::with_small_window(fixture.address),
            _ => RawClient::connect(fixture.address),
        };
        let request = upgrade(path, offer);
        let len = if random.below(6) == 0 { random.below(request.len()) } else { request.len() };
        client.send(&request[..len]);
        return clients.push(client);
    };
    match random.below(14) {
        13 => client.send(&masked(TEXT, b"amplify").repeat(random.below(400))),
        12 => {
            for _ in 0..random.below(40) {
                client.send(flood);
            }
        }
        0 | 1 => client.send_frame(TEXT, vec![b'a'; size]),
        2 | 3 => client.send_frame(BINARY, vec![0; size]),
        4 => client.send_frame(PING, b"ping"),
        5 => client.send(&masked(BINARY, &vec![1; size])[..size / 2]),
        6 => client.send_frame(CLOSE, b"\x03\xe8"),
        7 => client.send(b"\xff\xff"),
        8 => clients.swap_remove(chosen).reset(),
        9 => drop(clients.swap_remove(chosen)),
        _ => client.read(),
    }
}

fn round(fixture: &mut Fixture, seed: u64) {
    let mut random = Random::new(seed);
    let (mut clients, flood) = (Vec::new(), masked(BINARY, &[2; 100_000]));
    for _ in 0..400 {
        act(fixture, &mut random, &mut clients, &flood);
        if random.below(3) == 0 {
            fixture.settle();
        }
    }
    // This client certainly does not keep up.
    let slow = RawClient::with_small_window(fixture.address);
    clients.push(fixture.handshake(slow, "/room"));
    let mut speaker = fixture.open("/room");
    for _ in 0..60 {
        speaker.send(&flood);
        fixture.settle();
    }
    fixture.until("all of it is said", |_| {
        speaker.push();
        (speaker.unsent() == 0).then_some(())
    });
    fixture.settle();
    drop((clients, speaker));
    fixture.expect_empty();
    fixture.log.forget();
}

/// Runs random actions with one policy for slow receivers, and measures what is left.
fn leaves_nothing(slow: SlowConsumerPolicy, test: &str) {
    if !is_own_process(test) {
        return;
    }
    let mut options = options();
    options.slow = slow;
    options.receiver_buffer_max = 128 << 10;
    options.limits.message_max = 1 << 20;
    options.deflate = Some(DeflateConfig::DEFAULT);
    options.connections_per_address_max = Some(1000);
    let mut fixture = Fixture::new(&options);
    let descriptors_before = descriptors();
    let mut memory = Vec::with_capacity(9);
    for seed in 0..9 {
        round(&mut fixture, seed % 3);
        assert_eq!(descriptors(), descriptors_before, "descriptors after round {seed}");
        memory.push(live_bytes());
    }
    let stats = fixture.stats();
    let (dropped, evicted) = (stats.dropped > 0, stats.evicted > 0);
    assert_eq!(
        (dropped, evicted),
        (true, slow == SlowConsumerPolicy::Evict),
        "the policy was needed: {stats:?}"
    );
    // The kernel decides how the bytes are cut, and so which buffers are kept and how large they
    // are. The test with five thousand connections (`scale`) shows that each one releases all of
    // its bytes. This test is about messages, of which each round has sent tens of megabytes.
    let (early, late) = (memory[3..6].iter().max(), memory[6..].iter().max());
    assert!(
        late <= early.map(|early| early + (128 << 10)).as_ref(),
        "bytes after each round: {memory:?}"
    );
}

#[test]
fn chaos_with_drop_newest_leaves_no_descriptor_and_no_memory_behind() {
    leaves_nothing(
        SlowConsumerPolicy::DropNewest,
        "leaks::chaos_with_drop_newest_leaves_no_descriptor_and_no_memory_behind",
    );
}

#[test]
fn chaos_with_drop_oldest_leaves_no_descriptor_and_no_memory_behind() {
    leaves_nothing(
        SlowConsumerPolicy::DropOldest,
        "leaks::chaos_with_drop_oldest_leaves_no_descriptor_and_no_memory_behind",
    );
}

#[test]
fn chaos_with_evict_leaves_no_descriptor_and_no_memory_behind() {
    leaves_nothing(
        SlowConsumerPolicy::Evict,
        "leaks::chaos_with_evict_leaves_no_descriptor_and_no_memory_behind",
    );
}

#[test]
fn a_service_whose_reactor_is_dropped_leaves_nothing() {
    if !is_own_process("leaks::a_service_whose_reactor_is_dropped_leaves_nothing") {
        return;
    }
    let run = || {
        let mut fixture = Fixture::new(&options());
        let mut clients: Vec<RawClient> =
            ["/echo", "/room", "/sink"].map(|path| fixture.open(path)).into();
        let small = RawClient::with_small_window(fixture.address);
        clients.push(fixture.handshake(small, "/echo"));
        for client in &mut clients {
            client.send_frame(BINARY, vec![0; 10 << 20]);
        }
        clients.push(RawClient::connect(fixture.address));
        fixture.settle();
        let log = std::rc::Rc::clone(&fixture.log);
        drop(fixture);
        assert_eq!(log.alive(), 0, "the data of all is dropped");
    };
    run();
    let before = (descriptors(), live_bytes());
    run();
    assert_eq!((descriptors(), live_bytes()), before);
}

#[test]
fn a_large_page_takes_memory_only_while_it_is_sent() {
    if !is_own_process("leaks::a_large_page_takes_memory_only_while_it_is_sent") {
        return;
    }
    let mut options = options();
    options.routes = crate::pages::routes();
    let mut fixture = Fixture::new(&options);
    // The first page allocates what all connections share: on a ring, the receive buffers.
    let first = RawClient::connect(fixture.address);
    fixture.settle();
    drop(first);
    fixture.until_connections(0);
    let before = live_bytes();
    let mut client = RawClient::connect(fixture.address);
    client.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
    fixture.head(&mut client);
    assert_eq!(fixture.until("the page", |_| client.bytes(4_000_000)).len(), 4_000_000);
    drop(client);
    fixture.until_connections(0);
    let after = live_bytes();
    assert!(after < before + (128 << 10), "{before} bytes before, {after} after");
}
