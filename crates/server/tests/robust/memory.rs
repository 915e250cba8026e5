//! The memory budget over all connections (issue 13).

use std::time::Duration;

use windlass_server::{CloseReason, Options, SlowConsumerPolicy};

use crate::{
    fixture::{Fixture, options},
    own_process::{is_own_process, live_bytes, peak_of, used},
    raw_client::{BINARY, RawClient, TEXT, masked, upgrade},
    scale::allow_descriptors,
};

const MIB: usize = 1 << 20;
const PIECE: usize = 64 << 10;

fn with(memory_max: usize) -> Options {
    let mut options = options();
    options.memory_max = Some(memory_max);
    options
}

fn stalled(fixture: &mut Fixture, path: &str) -> RawClient {
    let client = RawClient::with_small_window(fixture.address);
    fixture.handshake(client, path)
}

/// Sends separate messages to a connection that does not read, until this many bytes wait.
fn fill(fixture: &mut Fixture, id: windlass_server::ConnectionId, bytes: usize) {
    while fixture.buffered(id) < bytes {
        fixture.with_hub(move |hub| hub.send(id, &vec![0; PIECE][..])).expect("there is room");
        fixture.settle();
    }
}

/// Advances the clock past the next timer event.
fn run_timer(fixture: &mut Fixture) {
    fixture.advance_time(Duration::from_secs(2));
}

/// Waits for the end of all connections, and checks that none holds memory then.
///
/// The end of a connection that is not read from is noticed by a timer event that finds room. The
/// kernel may report the ends of the others late, so the clock moves until all are reported.
fn expect_empty(fixture: &mut Fixture) {
    fixture.until("all connections end", |fixture| {
        run_timer(fixture);
        (fixture.stats().connections == 0).then_some(())
    });
    fixture.expect_empty();
    run_timer(fixture);
    assert_eq!(fixture.stats().memory, 0, "nothing waits for anybody");
}

#[test]
fn a_thousand_stalled_receivers_take_no_more_than_the_budget() {
    const COUNT: usize = 1000;
    const BUDGET: usize = 64 * MIB;
    if !is_own_process("memory::a_thousand_stalled_receivers_take_no_more_than_the_budget") {
        return;
    }
    allow_descriptors(2 * COUNT + 100);
    let mut fixture = Fixture::new(&with(BUDGET));
    let mut clients = Vec::new();
    for index in 0..COUNT {
        clients.push(stalled(&mut fixture, ["/sink", "/echo"][index % 2]));
    }
    let ids = fixture.log.opened.borrow().clone();
    let mut most = 0;
    for round in 0..40_u8 {
        // Half of the clients are sent separate messages. The others send messages without reading
        // the echoes.
        let to = ids.clone();
        fixture.with_hub(move |hub| {
            for id in to.iter().step_by(2) {
                let _ = hub.send(*id, &vec![round; PIECE][..]);
            }
        });
        for client in clients.iter_mut().skip(1).step_by(2).filter(|client| client.unsent() == 0) {
            client.send_frame(BINARY, vec![round; 16 << 10]);
        }
        fixture.settle();
        most = most.max(used());
        assert!(
            used() <= BUDGET + 64 * MIB,
            "round {round}: {} MiB resident, {:?}",
            used() / MIB,
            fixture.stats()
        );
    }
    let stats = fixture.stats();
    assert!(
        stats.evicted_for_memory > 0 && stats.evicted == stats.evicted_for_memory,
        "it was too much: {stats:?}"
    );
    assert!(most > BUDGET / 2, "the budget was made use of: {} MiB", most / MIB);
    // The remaining clients are served once they read.
    run_timer(&mut fixture);
    let most = bound(&with(BUDGET));
    assert!(fixture.stats().memory_most as usize <= most, "{:?}", fixture.stats());
    println!("{} MiB resident at most; {stats:?}", most / MIB);
    drop(clients);
    expect_empty(&mut fixture);
}

/// The most that one worker may hold, as `docs/server.md` derives it.
fn bound(options: &Options) -> usize {
    options.memory_max.expect("the tests set it") + 2 * options.receiver_buffer_max
}

/// Clients that do not read, and that are subscribed to a topic each: `0`, `1` and so on.
fn stalled_with_topics(fixture: &mut Fixture, count: usize) -> Vec<RawClient> {
    let clients = (0..count).map(|topic| {
        let mut client = stalled(fixture, "/names");
        client.send_frame(TEXT, topic.to_string());
        fixture.until("it is subscribed", |fixture| {
            (fixture.stats().topics > topic as u64).then_some(())
        });
        client
    });
    clients.collect()
}

/// One turn sends far more than the budget, to receivers for which nothing waits before.
#[test]
fn what_one_turn_sends_to_many_receivers_takes_no_more_than_the_budget() {
    const COUNT: usize = 50;
    if !is_own_process(
        "memory::what_one_turn_sends_to_many_receivers_takes_no_more_than_the_budget",
    ) {
        return;
    }
    for way in ["Hub::send", "Hub::publish", "Sender::publish"] {
        let mut options = with(16 * MIB);
        options.sender_bounds = windlass_flow::Bounds::items(4096).bytes(1 << 30);
        let mut fixture = Fixture::new(&options);
        let clients = stalled_with_topics(&mut fixture, COUNT);
        let (ids, message) = (fixture.log.opened.borrow().clone(), vec![7; 700 << 10]);
        let sender = fixture.service.sender();
        let peak = peak_of(|| {
            fixture.with_hub(move |hub| {
                // The kernel takes some of it. Receivers that were evicted meanwhile are gone.
                for (at, id) in ids.iter().cycle().take(5 * COUNT).enumerate() {
                    let topic = (at % COUNT).to_string();
                    match way {
                        "Hub::send" => _ = hub.send(*id, &message[..]),
                        "Hub::publish" => _ = hub.publish(&topic, &message[..]),
                        _ => sender.try_publish(&topic, &message[..]).expect("there is room"),
                    }
                }
            });
            fixture.settle();
        });
        run_timer(&mut fixture);
        let stats = fixture.stats();
        assert!(stats.evicted_for_memory > 0, "{way}: it was too much: {stats:?}");
        assert!(stats.memory_most as usize <= bound(&options), "{way}: {stats:?}");
        let queued = if way == "Sender::publish" { 5 * COUNT * (700 << 10) } else { 0 };
        assert!(peak <= bound(&options) + queued + 4 * MIB, "{way}: {peak} bytes were allocated");
        drop(clients);
        expect_empty(&mut fixture);
    }
}

/// Output that was only collected in a turn does not wait for its receiver.
#[test]
pub(crate) fn what_the_kernel_takes_evicts_nobody() {
    let mut fixture = Fixture::new(&with(4 * MIB));
    let mut clients: Vec<RawClient> = (0..100).map(|_| fixture.open("/sink")).collect();
    let ids = fixture.log.opened.borrow().clone();
    fixture.with_hub(move |hub| {
        for id in &ids {
            hub.send(*id, &vec![0; PIECE][..]).expect("there is room");
        }
    });
    for client in &mut clients {
        assert_eq!(fixture.frame(client).payload.len(), PIECE);
    }
    let stats = fixture.stats();
    assert_eq!((stats.evicted, stats.dropped, stats.reading_paused), (0, 0, 0), "{stats:?}");
    drop(clients);
    expect_empty(&mut fixture);
}

/// The budget is much larger than what one step adds.
#[test]
pub(crate) fn the_budget_is_exceeded_by_one_step_and_not_by_a_part_of_it() {
    let mut options = with(16 * MIB);
    options.receiver_buffer_max = 128 << 10;
    let mut fixture = Fixture::new(&options);
    let clients: Vec<RawClient> = (0..200).map(|_| stalled(&mut fixture, "/sink")).collect();
    let ids = fixture.log.opened.borrow().clone();
    while fixture.stats().evicted == 0 {
        let to = ids.clone();
        fixture.with_hub(move |hub| {
            for id in &to {
                let _ = hub.send(*id, &[0; 8 << 10][..]);
            }
        });
        fixture.settle();
    }
    run_timer(&mut fixture);
    let stats = fixture.stats();
    assert!(stats.memory_most as usize <= bound(&options), "{stats:?}");
    drop(clients);
    expect_empty(&mut fixture);
}

/// Each receiver copies a short publication, and the memory of all copies doubles at once.
#[test]
fn a_publication_that_doubles_the_memory_of_many_receivers_is_bounded() {
    const COUNT: usize = 1000;
    if !is_own_process("memory::a_publication_that_doubles_the_memory_of_many_receivers_is_bounded")
    {
        return;
    }
    allow_descriptors(2 * COUNT + 100);
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut options = with(8 * MIB);
        options.receiver_buffer_max = 64 << 10;
        options.slow = slow;
        let mut fixture = Fixture::new(&options);
        let clients: Vec<RawClient> = (0..COUNT).map(|_| stalled(&mut fixture, "/room")).collect();
        let ids = fixture.log.opened.borrow().clone();
        let publish = |fixture: &mut Fixture, len: usize| {
            fixture.with_hub(move |hub| hub.publish("room", &vec![1; len][..]));
            fixture.settle();
        };
        // The kernel may take what has waited already. Then it takes less the next time.
        while fixture.stats().evicted_for_memory == 0 {
            let mut waits = false;
            while !waits && fixture.stats().evicted_for_memory == 0 {
                publish(&mut fixture, 4 << 10);
                let all = ids.clone();
                waits = fixture.with_hub(move |hub| all.iter().all(|id| hub.buffered(*id) > 0));
            }
            for _ in 0..100 {
                publish(&mut fixture, 200);
            }
            run_timer(&mut fixture);
        }
        let stats = fixture.stats();
        // Each receiver's own copy is beside the bound.
        let most = bound(&options) + 400 * COUNT;
        assert!(stats.memory_most as usize <= most, "{slow:?}: {stats:?}");
        drop(clients);
        expect_empty(&mut fixture);
    }
}

/// A receiver that reads loses nothing when a publication to others takes the rest of the budget:
/// what was only collected for it does not wait.
#[test]
fn above_the_budget_a_receiver_that_reads_gets_each_message() {
    const COUNT: usize = 250;
    if !is_own_process("memory::above_the_budget_a_receiver_that_reads_gets_each_message") {
        return;
    }
    allow_descriptors(2 * COUNT + 100);
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::Evict] {
        let mut options = with(2 * MIB);
        options.receiver_buffer_max = 64 << 10;
        options.slow = slow;
        let mut fixture = Fixture::new(&options);
        let clients: Vec<RawClient> = (0..COUNT).map(|_| stalled(&mut fixture, "/room")).collect();
        let mut reader = fixture.open("/room");
        let id = fixture.last_opened();
        let ids = fixture.log.opened.borrow()[..COUNT].to_vec();
        let mut round = |len: usize| {
            let ids = ids.clone();
            let all_wait = fixture.with_hub(move |hub| {
                hub.send(id, "to it alone").expect("it reads");
                hub.publish("room", &vec![1; len][..]);
                hub.publish("room", &vec![2; len][..]);
                ids.iter().all(|id| hub.buffered(*id) > 0)
            });
            for len in [11, len, len] {
                let got = fixture.frame(&mut reader).payload.len();
                assert_eq!(got, len, "{slow:?}: {:?}", fixture.stats());
            }
            fixture.settle();
            (all_wait, fixture.stats())
        };
        while !round(2 << 10).0 {}
        // Each receiver copies short publications.
        let stats = (0..200).map(|_| round(100).1).find(|stats| stats.dropped > 0);
        let stats = stats.expect("a publication is lost");
        let evicts = slow == SlowConsumerPolicy::Evict;
        assert_eq!(evicts, stats.dropped <= stats.evicted, "{stats:?}");
        assert!(stats.evicted == stats.evicted_for_memory, "{stats:?}");
        assert!(fixture.log.closed.borrow().iter().all(|(closed, ..)| *closed != id));
        drop((clients, reader));
        expect_empty(&mut fixture);
    }
}

#[test]
pub(crate) fn above_four_fifths_the_largest_is_not_read_from_until_there_is_room() {
    let mut options = with(MIB);
    // The waiting bytes alone are no reason to stop reading.
    options.receiver_buffer_max = 4 * MIB;
    let mut fixture = Fixture::new(&options);
    let mut large = stalled(&mut fixture, "/sink");
    let id = fixture.last_opened();
    let mut other = fixture.open("/echo");
    fill(&mut fixture, id, 500 << 10);
    large.send_frame(BINARY, "is read");
    fixture.exchange(&mut other, b"hello");
    fixture.until("half of the budget is no need", |fixture| {
        (fixture.log.messages.get() == 2).then_some(())
    });
    assert_eq!(fixture.stats().reading_paused, 0);
    fill(&mut fixture, id, 840 << 10);
    assert_eq!((fixture.stats().reading_paused, fixture.stats().evicted), (1, 0));
    large.send_frame(BINARY, "waits");
    fixture.exchange(&mut other, b"others are served");
    run_timer(&mut fixture);
    fixture.exchange(&mut other, b"others are served");
    assert_eq!(fixture.log.messages.get(), 4, "the largest is not read from");
    // The client reads everything. After the next timer event the server reads from it again.
    fixture.until("all is read", |fixture| {
        large.read();
        large.forget();
        (fixture.buffered(id) == 0).then_some(())
    });
    run_timer(&mut fixture);
    fixture
        .until("it is read from again", |fixture| (fixture.log.messages.get() == 5).then_some(()));
    assert_eq!((fixture.stats().memory, fixture.stats().dropped), (0, 0));
    drop((large, other));
    expect_empty(&mut fixture);
}

#[test]
pub(crate) fn above_the_budget_the_largest_is_evicted_and_requests_get_503() {
    let mut fixture = Fixture::new(&with(MIB));
    let clients = [stalled(&mut fixture, "/sink"), stalled(&mut fixture, "/sink")];
    let ids = fixture.log.opened.borrow().clone();
    let mut witness = fixture.open("/echo");
    fill(&mut fixture, ids[0], 600 << 10);
    while fixture.stats().evicted == 0 {
        let id = ids[1];
        let _ = fixture.with_hub(move |hub| hub.send(id, &vec![0; PIECE][..]));
        fixture.settle();
    }
    let (id, reason, _) = fixture.log.closed.borrow()[0];
    assert_eq!((id, reason), (ids[0], CloseReason::Evicted), "the largest, and not the last");
    assert_eq!((fixture.stats().evicted, fixture.stats().evicted_for_memory), (1, 1));
    for path in ["/echo", "/"] {
        let mut late = RawClient::connect(fixture.address);
        late.send(&upgrade(path, ""));
        let head = fixture.head(&mut late);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        fixture.read_to_end(late);
    }
    fixture.exchange(&mut witness, b"who is there is served");
    run_timer(&mut fixture);
    let mut later = fixture.open("/echo");
    fixture.exchange(&mut later, b"hello");
    drop((clients, witness, later));
    fixture.expect_empty();
    run_timer(&mut fixture);
    assert_eq!(fixture.stats().memory, 0);
}

#[test]
pub(crate) fn messages_that_come_in_part_count() {
    let mut fixture = Fixture::new(&with(8 * MIB));
    let mut witness = fixture.open("/echo");
    let part = &masked(BINARY, &vec![1; MIB])[..900 << 10];
    let mut clients: Vec<RawClient> = (0..40).map(|_| fixture.open("/echo")).collect();
    for client in &mut clients {
        client.send(part);
        fixture.until("it is taken, or the server has had enough", |fixture| {
            client.push();
            (client.unsent() == 0 || fixture.stats().evicted > 0).then_some(())
        });
        fixture.settle();
    }
    fixture.until("40 times 900 KiB are more than 8 MiB", |fixture| {
        (fixture.stats().evicted_for_memory > 0).then_some(())
    });
    run_timer(&mut fixture);
    assert!(fixture.stats().memory_most as usize <= 10 * MIB, "{:?}", fixture.stats());
    fixture.exchange(&mut witness, b"others are served");
    drop((clients, witness));
    expect_empty(&mut fixture);
}

#[test]
pub(crate) fn requests_that_come_in_part_count() {
    let mut fixture = Fixture::new(&with(64 << 10));
    let clients: Vec<RawClient> = (0..30)
        .map(|_| {
            let mut client = RawClient::connect(fixture.address);
            client.send(b"GET / HTTP/1.1\r\nX: ");
            client.send(&[b'y'; 7000]);
            fixture.settle();
            client
        })
        .collect();
    fixture
        .until("some are closed", |fixture| (fixture.stats().evicted_for_memory > 0).then_some(()));
    assert!(fixture.stats().connections > 3, "not all");
    drop(clients);
    fixture.until_connections(0);
    run_timer(&mut fixture);
    assert_eq!(fixture.stats().memory, 0);
}

#[test]
fn spare_memory_is_freed_after_a_tick_without_messages() {
    if !is_own_process("memory::spare_memory_is_freed_after_a_tick_without_messages") {
        return;
    }
    let mut fixture = Fixture::new(&options());
    let mut client = fixture.open("/echo");
    fixture.exchange(&mut client, b"hello");
    run_timer(&mut fixture);
    let message = vec![1; MIB];
    let before = live_bytes();
    fixture.exchange(&mut client, &message);
    drop(client);
    fixture.until_connections(0);
    assert!(live_bytes() > before + MIB, "a buffer is kept for the next one");
    run_timer(&mut fixture);
    assert!(live_bytes() < before + (256 << 10), "{} bytes more", live_bytes() - before);
}

/// A publication that waits for many receivers counts once, with each policy.
#[test]
pub(crate) fn a_publication_for_many_receivers_counts_once() {
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut options = with(16 * MIB);
        options.slow = slow;
        let mut fixture = Fixture::new(&options);
        let clients: Vec<RawClient> = (0..100).map(|_| stalled(&mut fixture, "/room")).collect();
        let mut dropped = 0;
        for round in 0..100_u8 {
            fixture.with_hub(move |hub| hub.publish("room", &vec![round; PIECE][..]));
            fixture.settle();
            dropped = fixture.stats().dropped;
        }
        run_timer(&mut fixture);
        let stats = fixture.stats();
        assert!(dropped > 0, "{slow:?}: each waits for as much as may be");
        assert_eq!(stats.evicted, 0, "{slow:?}: {stats:?}");
        // All receivers share two mebibytes. Each also holds a part of a message that the kernel
        // has partly accepted.
        assert!(stats.memory_most < 16 * MIB as u64, "{slow:?}: {stats:?}");
        assert!(stats.memory > MIB as u64, "{slow:?}: {stats:?}");
        drop(clients);
        fixture.expect_empty();
        run_timer(&mut fixture);
        assert_eq!(fixture.stats().memory, 0, "{slow:?}");
    }
}

/// Sixty rooms with an amplified echo each, for clients that do not read (issue 13).
#[test]
pub(crate) fn large_answers_to_clients_that_do_not_read_are_bounded() {
    let mut options = with(16 * MIB);
    options.slow = SlowConsumerPolicy::DropNewest;
    let mut fixture = Fixture::new(&options);
    let mut clients = Vec::new();
    for _ in 0..60 {
        clients.push(stalled(&mut fixture, "/amplify"));
    }
    for client in &mut clients {
        // Each message is answered with 16 000 bytes.
        client.send(&masked(BINARY, &[1; 8]).repeat(200));
        fixture.settle();
    }
    let ids = fixture.log.opened.borrow().clone();
    for id in ids {
        assert!(fixture.buffered(id) <= 2 * MIB);
    }
    run_timer(&mut fixture);
    assert!(fixture.stats().memory_most as usize <= 18 * MIB, "{:?}", fixture.stats());
    drop(clients);
    fixture.expect_empty();
}

/// Names of topics of this length, from a number on, as one message for `/names`.
fn names(from: usize, count: usize, len: usize) -> String {
    let names: Vec<_> = (from..from + count).map(|name| format!("{name:0len$}")).collect();
    names.join(" ")
}

/// Strangers choose names in many applications (issue 29).
#[test]
fn names_of_topics_count_with_what_they_take() {
    const COUNT: usize = 9000;
    if !is_own_process("memory::names_of_topics_count_with_what_they_take") {
        return;
    }
    for len in [20, 250] {
        let mut fixture = Fixture::new(&with(64 * MIB));
        let mut client = fixture.open("/names");
        client.send_frame(TEXT, names(0, 1, len));
        fixture.until("the first is there", |fixture| (fixture.stats().topics == 1).then_some(()));
        run_timer(&mut fixture);
        let (held, live) = (fixture.stats().memory as usize, live_bytes());
        for from in (1..COUNT).step_by(100) {
            client.send_frame(TEXT, names(from, 100, len));
            fixture.until("they are there", |fixture| {
                client.push();
                (fixture.stats().topics == (from + 100) as u64).then_some(())
            });
        }
        run_timer(&mut fixture);
        let (stats, live) = (fixture.stats(), live_bytes() - live);
        let held = stats.memory as usize - held;
        println!("{} names of {len} bytes: {held} counted, {live} allocated", stats.topics);
        assert!(stats.topics > COUNT as u64, "{stats:?}");
        assert!(live <= held && held <= 2 * live, "{held} counted, {live} allocated");
        drop(client);
        fixture.expect_empty();
        run_timer(&mut fixture);
        assert_eq!(fixture.stats().memory, 0, "the names are gone with their subscriber");
    }
}

#[test]
pub(crate) fn topics_above_the_high_watermark_pause_nobody() {
    let mut fixture = Fixture::new(&with(MIB));
    let mut witness = fixture.open("/echo");
    let mut client = fixture.open("/names");
    let mut count = 0;
    while (fixture.stats().memory as usize) < MIB / 100 * 85 {
        client.send_frame(TEXT, names(count, 10, 250));
        count += 10;
        fixture.until("they are there", |fixture| {
            (fixture.stats().topics == count as u64).then_some(())
        });
        run_timer(&mut fixture);
    }
    let frame = masked(BINARY, &vec![1; 20_000]);
    for part in frame.chunks(10_000) {
        witness.send(part);
        fixture.until("it is taken", |fixture| {
            witness.push();
            fixture.advance(Duration::from_millis(100));
            (witness.unsent() == 0).then_some(())
        });
        run_timer(&mut fixture);
    }
    assert_eq!(fixture.frame(&mut witness).payload.len(), 20_000);
    assert_eq!((fixture.stats().reading_paused, fixture.stats().evicted), (0, 0));
    drop((client, witness));
    expect_empty(&mut fixture);
}

#[test]
pub(crate) fn a_client_with_too_many_names_is_closed_and_others_are_served() {
    let mut fixture = Fixture::new(&with(MIB));
    let mut witness = fixture.open("/echo");
    let mut client = fixture.open("/names");
    for from in (0..100_000).step_by(10) {
        client.send_frame(TEXT, names(from, 10, 250));
        // A connection that has sent a part of a message may have to wait for a timer event.
        fixture.until("they are there, or too many", |fixture| {
            client.push();
            fixture.advance(Duration::from_millis(100));
            let stats = fixture.stats();
            (stats.topics == (from + 10) as u64 || stats.evicted_for_memory > 0).then_some(())
        });
        if fixture.stats().evicted_for_memory > 0 {
            break;
        }
    }
    fixture.exchange(&mut witness, b"others are served");
    run_timer(&mut fixture);
    let stats = fixture.stats();
    assert_eq!(fixture.log.closed(), [CloseReason::Evicted], "{stats:?}");
    assert!(stats.memory_most as usize <= MIB + PIECE, "{stats:?}");
    assert_eq!(stats.topics, 0, "its names are gone");
    drop((client, witness));
    expect_empty(&mut fixture);
}
