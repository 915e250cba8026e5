//! The budget of memory over all connections (issue 13).

use std::time::Duration;

use windlass_server::{CloseReason, Options, SlowConsumerPolicy};

use crate::{
    bed::{Bed, options},
    many::allow_descriptors,
    own_process::{is_own_process, live_bytes, used},
    peer::{BINARY, Peer, masked, upgrade},
};

const MIB: usize = 1 << 20;
const PIECE: usize = 64 << 10;

fn with(memory_max: usize) -> Options {
    let mut options = options();
    options.memory_max = Some(memory_max);
    options
}

fn stalled(bed: &mut Bed, path: &str) -> Peer {
    let peer = Peer::with_small_window(bed.address);
    bed.shake(peer, path)
}

/// Sends to a connection that does not read until so much waits for it, in messages of its own.
fn fill(bed: &mut Bed, id: windlass_server::ConnectionId, bytes: usize) {
    while bed.buffered(id) < bytes {
        bed.hub(move |hub| hub.send(id, &vec![0; PIECE][..])).expect("there is room");
        bed.settle();
    }
}

/// The clock stands but for the beat.
fn beat(bed: &mut Bed) {
    bed.pass(Duration::from_secs(2));
}

#[test]
fn a_thousand_stalled_receivers_take_no_more_than_the_budget() {
    const COUNT: usize = 1000;
    const BUDGET: usize = 64 * MIB;
    if !is_own_process("memory::a_thousand_stalled_receivers_take_no_more_than_the_budget") {
        return;
    }
    allow_descriptors(2 * COUNT + 100);
    let mut bed = Bed::new(&with(BUDGET));
    let mut peers = Vec::new();
    for index in 0..COUNT {
        peers.push(stalled(&mut bed, ["/sink", "/echo"][index % 2]));
    }
    let ids = bed.log.opened.borrow().clone();
    let mut most = 0;
    for round in 0..40_u8 {
        // Half of them are sent messages, each its own; the others send without reading what comes
        // back.
        let to = ids.clone();
        bed.hub(move |hub| {
            for id in to.iter().step_by(2) {
                let _ = hub.send(*id, &vec![round; PIECE][..]);
            }
        });
        for peer in peers.iter_mut().skip(1).step_by(2).filter(|peer| peer.unsent() == 0) {
            peer.send_frame(BINARY, vec![round; 16 << 10]);
        }
        bed.settle();
        most = most.max(used());
        assert!(
            used() <= BUDGET + 64 * MIB,
            "round {round}: {} MiB resident, {:?}",
            used() / MIB,
            bed.stats()
        );
    }
    let stats = bed.stats();
    assert!(
        stats.evicted_for_memory > 0 && stats.evicted == stats.evicted_for_memory,
        "it was too much: {stats:?}"
    );
    assert!(most > BUDGET / 2, "the budget was made use of: {} MiB", most / MIB);
    // Those that are left are served once they read.
    beat(&mut bed);
    assert!(bed.stats().memory_most as usize <= BUDGET + 4 * MIB, "{:?}", bed.stats());
    println!("{} MiB resident at most; {stats:?}", most / MIB);
    drop(peers);
    beat(&mut bed);
    bed.expect_empty();
    beat(&mut bed);
    assert_eq!(bed.stats().memory, 0, "nothing waits for anybody");
}

#[test]
fn above_four_fifths_the_largest_is_not_read_from_until_there_is_room() {
    let mut options = with(MIB);
    // What waits is no reason of its own not to read.
    options.receiver_buffer_max = 4 * MIB;
    let mut bed = Bed::new(&options);
    let mut large = stalled(&mut bed, "/sink");
    let id = bed.last_opened();
    let mut other = bed.open("/echo");
    fill(&mut bed, id, 500 << 10);
    large.send_frame(BINARY, "is read");
    bed.exchange(&mut other, b"hello");
    bed.until("half of the budget is no need", |bed| (bed.log.messages.get() == 2).then_some(()));
    assert_eq!(bed.stats().reading_paused, 0);
    fill(&mut bed, id, 840 << 10);
    assert_eq!((bed.stats().reading_paused, bed.stats().evicted), (1, 0));
    large.send_frame(BINARY, "waits");
    bed.exchange(&mut other, b"others are served");
    beat(&mut bed);
    bed.exchange(&mut other, b"others are served");
    assert_eq!(bed.log.messages.get(), 4, "the largest is not read from");
    // It reads at last, and with the next beat it is read from.
    bed.until("all is read", |bed| {
        large.read();
        large.forget();
        (bed.buffered(id) == 0).then_some(())
    });
    beat(&mut bed);
    bed.until("it is read from again", |bed| (bed.log.messages.get() == 5).then_some(()));
    assert_eq!((bed.stats().memory, bed.stats().dropped), (0, 0));
    drop((large, other));
    beat(&mut bed);
    bed.expect_empty();
}

#[test]
fn above_the_budget_the_largest_is_evicted_and_requests_get_503_until_the_next_beat() {
    let mut bed = Bed::new(&with(MIB));
    let peers = [stalled(&mut bed, "/sink"), stalled(&mut bed, "/sink")];
    let ids = bed.log.opened.borrow().clone();
    let mut witness = bed.open("/echo");
    fill(&mut bed, ids[0], 600 << 10);
    while bed.stats().evicted == 0 {
        let id = ids[1];
        let _ = bed.hub(move |hub| hub.send(id, &vec![0; PIECE][..]));
        bed.settle();
    }
    let (id, reason, _) = bed.log.closed.borrow()[0];
    assert_eq!((id, reason), (ids[0], CloseReason::Evicted), "the largest, and not the last");
    assert_eq!((bed.stats().evicted, bed.stats().evicted_for_memory), (1, 1));
    for path in ["/echo", "/"] {
        let mut late = Peer::connect(bed.address);
        late.send(&upgrade(path, ""));
        let head = bed.head(&mut late);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        bed.rest(late);
    }
    bed.exchange(&mut witness, b"who is there is served");
    beat(&mut bed);
    let mut later = bed.open("/echo");
    bed.exchange(&mut later, b"hello");
    drop((peers, witness, later));
    bed.expect_empty();
    beat(&mut bed);
    assert_eq!(bed.stats().memory, 0);
}

#[test]
fn messages_that_come_in_part_count() {
    let mut bed = Bed::new(&with(8 * MIB));
    let mut witness = bed.open("/echo");
    let part = &masked(BINARY, &vec![1; MIB])[..900 << 10];
    let mut peers: Vec<Peer> = (0..40).map(|_| bed.open("/echo")).collect();
    for peer in &mut peers {
        peer.send(part);
        bed.until("it is taken, or the server has had enough", |bed| {
            peer.push();
            (peer.unsent() == 0 || bed.stats().evicted > 0).then_some(())
        });
        bed.settle();
    }
    let stats = bed.stats();
    assert!(stats.evicted_for_memory > 0, "40 times 900 KiB are more than 8 MiB: {stats:?}");
    beat(&mut bed);
    assert!(bed.stats().memory_most as usize <= 10 * MIB, "{:?}", bed.stats());
    bed.exchange(&mut witness, b"others are served");
    drop((peers, witness));
    // Of those that are not read from the end is not heard before there is room.
    beat(&mut bed);
    bed.expect_empty();
    beat(&mut bed);
    assert_eq!(bed.stats().memory, 0);
}

#[test]
fn requests_that_come_in_part_count() {
    let mut bed = Bed::new(&with(64 << 10));
    let peers: Vec<Peer> = (0..30)
        .map(|_| {
            let mut peer = Peer::connect(bed.address);
            peer.send(b"GET / HTTP/1.1\r\nX: ");
            peer.send(&[b'y'; 7000]);
            bed.settle();
            peer
        })
        .collect();
    bed.until("some are closed", |bed| (bed.stats().evicted_for_memory > 0).then_some(()));
    assert!(bed.stats().connections > 3, "not all");
    drop(peers);
    bed.until_connections(0);
    beat(&mut bed);
    assert_eq!(bed.stats().memory, 0);
}

#[test]
fn what_is_kept_to_be_used_again_is_freed_by_a_beat_without_messages() {
    if !is_own_process("memory::what_is_kept_to_be_used_again_is_freed_by_a_beat_without_messages")
    {
        return;
    }
    let mut bed = Bed::new(&options());
    let mut peer = bed.open("/echo");
    bed.exchange(&mut peer, b"hello");
    beat(&mut bed);
    let message = vec![1; MIB];
    let before = live_bytes();
    bed.exchange(&mut peer, &message);
    drop(peer);
    bed.until_connections(0);
    assert!(live_bytes() > before + MIB, "a buffer is kept for the next one");
    beat(&mut bed);
    assert!(live_bytes() < before + (256 << 10), "{} bytes more", live_bytes() - before);
}

/// One publication that waits for many counts once, with each policy.
#[test]
fn what_many_wait_for_counts_once() {
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut options = with(16 * MIB);
        options.slow = slow;
        let mut bed = Bed::new(&options);
        let peers: Vec<Peer> = (0..100).map(|_| stalled(&mut bed, "/room")).collect();
        let mut dropped = 0;
        for round in 0..100_u8 {
            bed.hub(move |hub| hub.publish("room", &vec![round; PIECE][..]));
            bed.settle();
            dropped = bed.stats().dropped;
        }
        beat(&mut bed);
        let stats = bed.stats();
        assert!(dropped > 0, "{slow:?}: each waits for as much as may be");
        assert_eq!(stats.evicted, 0, "{slow:?}: {stats:?}");
        // Two mebibytes for all of them; of what the kernel has taken a part of each is here still.
        assert!(stats.memory_most < 16 * MIB as u64, "{slow:?}: {stats:?}");
        assert!(stats.memory > MIB as u64, "{slow:?}: {stats:?}");
        drop(peers);
        bed.expect_empty();
        beat(&mut bed);
        assert_eq!(bed.stats().memory, 0, "{slow:?}");
    }
}

/// Sixty rooms with a bomb each: an echo of what is small on the way and large here, to those who
/// do not read (issue 13).
#[test]
fn large_answers_to_those_who_do_not_read_are_bounded() {
    let mut options = with(16 * MIB);
    options.slow = SlowConsumerPolicy::DropNewest;
    let mut bed = Bed::new(&options);
    let mut peers = Vec::new();
    for _ in 0..60 {
        peers.push(stalled(&mut bed, "/amplify"));
    }
    for peer in &mut peers {
        // Each is answered with 16 000 bytes.
        peer.send(&masked(BINARY, &[1; 8]).repeat(200));
        bed.settle();
    }
    let ids = bed.log.opened.borrow().clone();
    for id in ids {
        assert!(bed.buffered(id) <= 2 * MIB);
    }
    beat(&mut bed);
    assert!(bed.stats().memory_most as usize <= 18 * MIB, "{:?}", bed.stats());
    drop(peers);
    bed.expect_empty();
}
