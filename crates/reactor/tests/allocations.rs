//! Rule 12: dispatch does not allocate. This program also measures the memory of a registration.
//!
//! It is a separate program because it replaces the global allocator. The allocator counts the
//! requests of the test's own thread, because the harness runs another thread.

use windlass_testkit::{
    alloc::{Counting, bytes_of_thread, calls_of_thread, signed},
    rings,
};

use std::{cell::Cell, os::fd::OwnedFd, rc::Rc, time::Duration};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{
    Backend, Event, Group, Key, Reactor, Ready, Tick, Turn, interest,
    stream::{Input, Stream, StreamHandler, StreamOptions},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn ready() -> OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn allocations(run: impl FnOnce()) -> usize {
    let before = calls_of_thread();
    run();
    calls_of_thread() - before
}

/// True if the backend is available. Where rings are forbidden, the test program `ring` reports it.
fn is_there(backend: &Backend) -> bool {
    *backend != Backend::Uring || rings::refusal().is_none()
}

#[test]
fn rule_12_dispatch_allocates_nothing_and_a_registration_costs_at_most_64_bytes() {
    for backend in [Backend::Epoll, Backend::Uring, Backend::Poll].into_iter().filter(is_there) {
        dispatch_allocates_nothing(backend);
        a_registration_costs_at_most_64_bytes_beside_its_value(backend);
        a_reactor_gives_its_memory_back(backend);
    }
    for backend in [Backend::Epoll, Backend::Uring].into_iter().filter(is_there) {
        a_streams_echo_allocates_nothing_and_an_idle_stream_holds_little(backend);
    }
    for backend in [Backend::Epoll, Backend::Uring, Backend::Poll].into_iter().filter(is_there) {
        what_comes_and_goes_within_a_turn_holds_no_memory(backend);
    }
    a_small_closure_is_deferred_without_an_allocation();
    deletion_in_a_turn_allocates_nothing_once_warm();
    a_small_timer_is_started_without_an_allocation();
    a_turn_with_a_remote_allocates_nothing_and_a_post_a_box_if_it_is_large();
}

/// Checked for a reactor that has waited with all of its registrations, with some, and never.
fn a_reactor_gives_its_memory_back(backend: Backend) {
    for turns in 0..4 {
        let before = bytes_of_thread();
        let mut reactor = Reactor::builder().backend(backend).build().unwrap();
        let mut keys: Vec<Key> = Vec::new();
        for turn in 0..=turns {
            let fd = move || interest().read().with_fd(ready()).with_handler(|| {});
            keys.extend((0..10).map(|_| fd().register_into(&mut reactor).unwrap()));
            reactor.delete(keys.swap_remove(3)).unwrap();
            if turn < turns {
                reactor.run_once(Duration::ZERO).unwrap();
            }
        }
        drop(keys);
        drop(reactor);
        assert_eq!(
            bytes_of_thread() - before,
            0,
            "{backend} after {turns} turns: so many bytes are left"
        );
    }
}

/// Checks the most bytes that a handler's additions and deletions hold at a time.
fn what_comes_and_goes_within_a_turn_holds_no_memory(backend: Backend) {
    const ROUNDS: usize = 1_000;
    type Large = [u8; 4096];
    let mut reactor = Reactor::builder().backend(backend).build().unwrap();
    let most = Rc::new(Cell::new(isize::MIN));
    let (seen, fd) = (most.clone(), Rc::new(ready()));
    let churn = move |mut turn: Turn<'_, Reactor>| {
        let add = |turn: &mut Turn<'_, Reactor>| {
            let load: Large = [7; 4096];
            let fd = rustix::io::dup(&*fd).unwrap();
            interest()
                .read()
                .with_fd(fd)
                .with_handler(move || assert_eq!(load[9], 7))
                .register_into(turn)
                .unwrap()
        };
        for _ in 0..ROUNDS {
            let first = add(&mut turn);
            let second = add(&mut turn);
            turn.delete(second).unwrap();
            turn.delete(first).unwrap();
            seen.set(seen.get().max(bytes_of_thread()));
        }
    };
    // Deleted in the batch (with and without events behind it) and in a closure.
    let before = bytes_of_thread();
    for _ in 0..3 {
        let churn = churn.clone();
        let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
            churn(turn.reborrow());
            turn.delete(event.key()).unwrap();
        };
        interest()
            .read()
            .with_fd(ready())
            .with_handler(handler)
            .register_into(&mut reactor)
            .unwrap();
    }
    reactor.defer(churn).unwrap();
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 3);
    let held = usize::try_from(most.get() - before).unwrap();
    assert!(held <= 4 * size_of::<Large>(), "{held} bytes are held on {backend}");
    assert_eq!(reactor.stats().subscribers, 0);
}

fn dispatch_allocates_nothing(backend: Backend) {
    let mut reactor = Reactor::builder().backend(backend).build().unwrap();
    for _ in 0..10 {
        interest()
            .read()
            .with_fd(ready())
            .with_handler(|_: &mut OwnedFd, _: Event| {})
            .register_into(&mut reactor)
            .unwrap();
    }
    let toggled =
        interest().read().with_fd(ready()).with_handler(|event: Event, mut turn: Turn<'_, _>| {
            turn.modify(
                event.key(),
                if event.has_write() { interest().read() } else { interest().read().write() },
            )
            .unwrap();
        });
    toggled.register_into(&mut reactor).unwrap();
    let idle = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let kicked =
        interest().read().with_fd(idle).with_handler(|event: Event, mut turn: Turn<'_, _>| {
            turn.kick(event.key(), Ready::empty().read()).unwrap();
        });
    let kicked = kicked.register_into(&mut reactor).unwrap();
    reactor.kick(kicked, Ready::empty().read()).unwrap();
    Group::new(0u64)
        .fd(interest().read(), ready(), |count: &mut u64| *count += 1)
        .every(Duration::from_nanos(1), |count: &mut u64| *count += 1)
        .after(Duration::ZERO, |count: &mut u64, tick: Tick, mut turn: Turn<'_, _>| {
            *count += 1;
            turn.reset(tick.key, Duration::ZERO).unwrap();
        })
        .register_into(&mut reactor)
        .map(drop)
        .unwrap();
    for _ in 0..10 {
        reactor.run_once(None).unwrap();
    }
    let count = allocations(|| {
        for _ in 0..100 {
            assert_eq!(reactor.run_once(None).unwrap(), 13);
        }
    });
    assert_eq!(count, 0, "events, merged changes, kicks, timers");
    assert!(reactor.stats().timers_fired > 100);
}

/// A handler of four words is stored in the table of timers. A larger one needs a box.
fn a_small_timer_is_started_without_an_allocation() {
    fn round<const WORDS: usize>(reactor: &mut Reactor) -> usize {
        let captured = [7_u64; WORDS];
        let handler = move || assert_eq!(captured[WORDS - 1], 7);
        allocations(|| {
            for _ in 0..10 {
                let key = reactor.after(Duration::from_secs(3600), handler).unwrap();
                reactor.reset(key, Duration::from_secs(7200)).unwrap();
                reactor.cancel(key).unwrap();
                reactor.after(Duration::ZERO, handler).unwrap();
                reactor.run_once(Duration::ZERO).unwrap();
            }
        })
    }
    let mut reactor = Reactor::new().unwrap();
    round::<4>(&mut reactor);
    assert_eq!(round::<4>(&mut reactor), 0);
    assert_eq!(round::<5>(&mut reactor), 20);
    assert_eq!(reactor.stats().timers_fired, 30);
}

/// Deleted cells are kept until the end of the turn, in lists that have grown before.
fn deletion_in_a_turn_allocates_nothing_once_warm() {
    let mut reactor = Reactor::new().unwrap();
    let round = |reactor: &mut Reactor| {
        for _ in 0..8 {
            interest()
                .read()
                .with_fd(ready())
                .with_handler(|event: Event, mut turn: Turn<'_, Reactor>| {
                    turn.delete(event.key()).unwrap()
                })
                .register_into(reactor)
                .unwrap();
        }
        allocations(|| assert_eq!(reactor.run_once(None).unwrap(), 8))
    };
    // On a ring, the cells that one round deletes may be freed only in the next round.
    (0..3).for_each(|_| _ = round(&mut reactor));
    assert_eq!(round(&mut reactor), 0);
}

/// A caller that gathers output uses such a closure to send it at the end of the turn.
fn a_small_closure_is_deferred_without_an_allocation() {
    let mut reactor = Reactor::new().unwrap();
    let runs = std::rc::Rc::new(Cell::new(0));
    let defer = |reactor: &mut Reactor, times| {
        for _ in 0..times {
            let (runs, key) = (std::rc::Rc::clone(&runs), [1_u64, 2]);
            let closure = move |_: Turn<'_>| runs.set(runs.get() + key[0]);
            assert!(reactor.defer(closure).is_ok());
            reactor.run_once(Duration::ZERO).unwrap();
        }
    };
    defer(&mut reactor, 4);
    assert_eq!(allocations(|| defer(&mut reactor, 100)), 0);
    assert_eq!(runs.get(), 104);
}

fn a_registration_costs_at_most_64_bytes_beside_its_value(backend: Backend) {
    const COUNT: usize = 5_000;
    let mut reactor = Reactor::builder().backend(backend).build().unwrap();
    let value = Rc::new(());
    let fds: Vec<OwnedFd> = (0..COUNT).map(|_| ready()).collect();
    let before = bytes_of_thread();
    let mut keys: Vec<Key> = Vec::new();
    for fd in fds {
        let value = value.clone();
        let add = interest().with_fd(fd).with_handler(move || drop(value.clone()));
        keys.push(add.register_into(&mut reactor).unwrap());
    }
    // On a ring the first wait arms all polls from a list, which it then frees.
    for _ in 0..2 {
        reactor.run_once(Duration::ZERO).unwrap();
        reactor.modify(keys[0], interest().write()).unwrap();
    }
    reactor.run_once(Duration::ZERO).unwrap();
    let ours = keys.capacity() * size_of::<Key>();
    let held = usize::try_from(bytes_of_thread() - before).unwrap() - ours;
    // The value: a closure of one pointer, the descriptor, and the interest it was registered with.
    let beside = held / COUNT - 16;
    // poll(2) needs a table of its own. The other backends keep this data in the kernel.
    let bound = if backend == Backend::Poll { 104 } else { 64 };
    assert!(beside <= bound, "{beside} bytes beside the value on {backend}");
}

/// One round: the queue is filled once and drained by one turn.
fn post_bytes<const BYTES: usize>(reactor: &mut Reactor, remote: &windlass::Remote, posts: usize) {
    let mut value = [7u8; BYTES];
    for _ in 0..posts {
        value[0] = value[0].wrapping_add(1);
        assert!(remote.try_post(move |_: Turn<'_>| assert!(value[BYTES - 1] == 7)).is_ok());
    }
    assert!(remote.try_post(|_: Turn<'_>| {}).is_err(), "it is full");
    assert_eq!(reactor.run_once(None).unwrap(), 1);
}

fn a_turn_with_a_remote_allocates_nothing_and_a_post_a_box_if_it_is_large() {
    const POSTS: usize = 100;
    let mut reactor = Reactor::builder().remote_max(POSTS).build().unwrap();
    let remote = reactor.remote();
    let fd = interest().read().with_fd(ready()).with_handler(|_: &mut OwnedFd| {});
    fd.register_into(&mut reactor).unwrap();
    // The queue grows with its first items, and keeps its memory.
    for _ in 0..4 {
        post_bytes::<32>(&mut reactor, &remote, POSTS);
    }
    assert_eq!(
        allocations(|| post_bytes::<32>(&mut reactor, &remote, POSTS)),
        0,
        "four words are posted in place"
    );
    assert_eq!(
        allocations(|| post_bytes::<33>(&mut reactor, &remote, POSTS)),
        POSTS,
        "one box a post"
    );
    let turns = || {
        for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(1))] {
            for _ in 0..10 {
                assert_eq!(reactor.run_once(timeout).unwrap(), 1);
            }
        }
    };
    assert_eq!(allocations(turns), 0, "turns with a remote that nobody uses");
}

/// Answers in every way: from the buffer, gathered, to itself, and through another stream.
struct Answering {
    other: Option<Key>,
}

impl StreamHandler for Answering {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let mut copy = [0; 4];
        copy.copy_from_slice(&input[..4]);
        stream.send(&copy).unwrap();
        stream.send(&copy).unwrap();
        stream.reply(input, ..4).unwrap();
        stream.send(&copy).unwrap();
        if let Some(other) = self.other {
            let mut turn = stream.turn();
            let mut other = turn.stream(other).unwrap();
            other.send(&copy).unwrap();
            other.send(&[7; 20_000]).unwrap();
        }
    }
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
    let (domain, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
    rustix::net::socketpair(domain, kind, flags, None).unwrap()
}

/// Reads exactly `count` bytes, which have arrived already.
fn read_exactly(from: &OwnedFd, count: usize) {
    let mut buffer = [0; 32 << 10];
    assert_eq!(rustix::io::read(from, &mut buffer), Ok(count));
}

fn a_streams_echo_allocates_nothing_and_an_idle_stream_holds_little(backend: Backend) {
    let mut reactor = Reactor::builder().backend(backend).build().unwrap();
    let options = StreamOptions::new().idle_timeout(Some(Duration::from_secs(60)));
    let (ours, sink) = socket_pair();
    let other = options.register(ours, Answering { other: None }, &mut reactor).unwrap();
    let (ours, peer) = socket_pair();
    let answering = Answering { other: Some(other) };
    options.register(ours, answering, &mut reactor).unwrap();
    let mut round = || {
        rustix::io::write(&peer, b"ping").unwrap();
        reactor.run_once(None).unwrap();
        reactor.run_once(Duration::ZERO).unwrap();
        read_exactly(&peer, 16);
        read_exactly(&sink, 20_004);
    };
    // The reactor makes its alarm after some turns beside a timer.
    for _ in 0..20 {
        round();
    }
    let count = allocations(|| {
        for _ in 0..100 {
            round();
        }
    });
    assert_eq!(count, 0, "received, answered, gathered, sent by another");

    const COUNT: usize = 400;
    let pairs: Vec<_> = (0..COUNT).map(|_| socket_pair()).collect();
    let mut peers = Vec::with_capacity(COUNT);
    let before = bytes_of_thread();
    for (ours, peer) in pairs {
        options.register(ours, Answering { other: None }, &mut reactor).unwrap();
        peers.push(peer);
    }
    for _ in 0..3 {
        reactor.run_once(Duration::ZERO).unwrap();
    }
    // Every stream has been busy once, and keeps no memory from that.
    for peer in &peers {
        rustix::io::write(peer, b"ping").unwrap();
    }
    reactor.run_once(None).unwrap();
    // The array of pairs has been freed, but it was counted in `before`.
    let held = bytes_of_thread() - before + signed(COUNT * size_of::<(OwnedFd, OwnedFd)>());
    let each = usize::try_from(held).unwrap() / COUNT;
    // Header and place of the registration 64, its handler 16 and index 8, its place in the table
    // 64, its place in the wheel 24. The lists have spare capacity on top of that.
    println!("an idle stream with a timeout, {backend}: {each} bytes");
    // A ring also has lists for the completions and sends of the largest turn. They take 48 and 80
    // bytes each, plus spare capacity.
    let most = if backend == Backend::Uring { 400 } else { 256 };
    assert!(each <= most, "{each} bytes");
}
