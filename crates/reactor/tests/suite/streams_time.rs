//! Timeouts of streams, with a clock that the test moves.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    NextTurn, Reactor, Turn,
    stream::{Connector, DisconnectReason, GRANULE, StreamOptions, Timeout},
};

use crate::{
    Build,
    bed::{HandClock, Log, Shared, drain, idle, readable, ring, run_dry},
    script::{Peer, Said, Script, open, quiet, tcp, turn, unix},
};

const PLAIN: StreamOptions = StreamOptions::new();
const SECOND: Duration = Duration::from_secs(1);
const IDLE: StreamOptions = PLAIN.idle_timeout(Some(SECOND));
const TICK: Duration = Duration::from_millis(1);

fn with_clock(build: Build) -> (Reactor, HandClock) {
    let clock = HandClock::new();
    (build().clock(clock.clone()).build().unwrap(), clock)
}

fn advance(reactor: &mut Reactor, clock: &HandClock, by: Duration) {
    clock.advance(by);
    quiet(reactor);
}

fn an_idle_stream_is_told_not_before_its_time_and_a_granule_late_at_most(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    open(&mut reactor, IDLE, ours, Script::new(&log));
    log.take();
    advance(&mut reactor, &clock, Duration::from_millis(700));
    // Received data extends it.
    peer.write(b"x");
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::data(b"x")]);
    advance(&mut reactor, &clock, SECOND - TICK);
    assert_eq!(log.take(), [], "not before");
    advance(&mut reactor, &clock, TICK + GRANULE);
    let reason = Said::Close(DisconnectReason::IdleTimeout);
    assert_eq!(
        log.take(),
        [Said::Timeout(Timeout::Idle), reason, Said::Dropped],
        "the default is to abort"
    );
    assert_eq!(peer.drain().1, Err(std::io::ErrorKind::ConnectionReset));
}

fn a_stream_that_is_left_open_is_told_again(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(
        &mut reactor,
        IDLE,
        ours,
        Script::new(&log).on_timeout(|stream| stream.send(b"ping").unwrap()),
    );
    log.take();
    for _ in 0..3 {
        advance(&mut reactor, &clock, SECOND + GRANULE);
        assert_eq!(
            (log.take(), peer.read_all()),
            (vec![Said::Timeout(Timeout::Idle)], b"ping".to_vec())
        );
    }
    // Sent data does not extend the idle timeout.
    reactor.stream(key).unwrap().set_idle_timeout(Some(3 * SECOND));
    quiet(&mut reactor);
    advance(&mut reactor, &clock, 2 * SECOND);
    assert_eq!(log.take(), []);
    advance(&mut reactor, &clock, SECOND + GRANULE);
    assert_eq!(log.take(), [Said::Timeout(Timeout::Idle)]);
    reactor.stream(key).unwrap().set_idle_timeout(None);
    advance(&mut reactor, &clock, 100 * SECOND);
    assert_eq!(log.take(), []);
    assert_eq!(reactor.stats().timers, 0, "nothing is left to wait for");
}

fn a_timeout_can_be_set_later_and_shortened(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, _peer) = tcp();
    let key = open(&mut reactor, PLAIN.idle_timeout(Some(100 * SECOND)), ours, Script::new(&log));
    quiet(&mut reactor);
    reactor.stream(key).unwrap().set_idle_timeout(Some(SECOND));
    quiet(&mut reactor);
    log.take();
    advance(&mut reactor, &clock, SECOND + GRANULE);
    assert_eq!(log.take()[0], Said::Timeout(Timeout::Idle));
}

fn a_paused_stream_and_an_ended_one_are_not_idle(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, _peer) = tcp();
    let key = open(&mut reactor, IDLE, ours, Script::new(&log));
    let (ours, ended) = tcp();
    open(&mut reactor, IDLE, ours, Script::new(&log).on_end(|_| {}));
    reactor.stream(key).unwrap().pause();
    ended.finish();
    run_dry(&mut reactor);
    log.take();
    advance(&mut reactor, &clock, 10 * SECOND);
    assert_eq!(log.take(), []);
    reactor.stream(key).unwrap().resume();
    quiet(&mut reactor);
    advance(&mut reactor, &clock, SECOND / 2);
    assert_eq!(log.take(), [], "it begins anew");
    advance(&mut reactor, &clock, SECOND / 2 + GRANULE);
    assert_eq!(log.take()[0], Said::Timeout(Timeout::Idle));
}

/// The loop was busy for longer than the timeout, and data waits in the socket.
fn data_that_waits_comes_instead_of_the_timeout(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).events_per_turn(1).build().unwrap();
    let log = Log::new();
    let mut peers = Vec::new();
    for _ in 0..4 {
        let (ours, peer) = tcp();
        open(&mut reactor, IDLE, ours, Script::new(&log));
        peers.push(peer);
    }
    quiet(&mut reactor);
    log.take();
    for peer in &mut peers {
        peer.write(b"in time");
    }
    advance(&mut reactor, &clock, 2 * SECOND);
    assert_eq!(log.take(), vec![Said::data(b"in time"); 4]);
}

/// Regression: the wheel had removed the stream as due. The data that arrived instead did not
/// schedule it again.
fn data_that_comes_instead_of_the_timeout_begins_it_anew(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    open(&mut reactor, IDLE, ours, Script::new(&log));
    quiet(&mut reactor);
    clock.advance(SECOND + GRANULE);
    // The timer finds it due. Its driver is called in the next turn.
    turn(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
    peer.write(b"late");
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::data(b"late")]);
    advance(&mut reactor, &clock, SECOND - TICK);
    assert_eq!(log.take(), []);
    advance(&mut reactor, &clock, TICK + GRANULE);
    assert_eq!(log.take()[0], Said::Timeout(Timeout::Idle));
}

fn an_end_that_comes_instead_of_the_timeout_is_not_followed_by_it(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    // TCP may take more while time passes.
    let (ours, peer) = unix();
    let options = IDLE.write_stall_timeout(Some(2 * SECOND));
    let key = open(&mut reactor, options, ours, Script::new(&log).on_end(|_| {}));
    reactor.stream(key).unwrap().send(&vec![7; 12 << 20]).unwrap();
    quiet(&mut reactor);
    log.take();
    clock.advance(SECOND + GRANULE);
    turn(&mut reactor);
    peer.finish();
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::End]);
    advance(&mut reactor, &clock, SECOND + GRANULE);
    assert_eq!(
        log.take()[0],
        Said::Timeout(Timeout::WriteStall),
        "the other timeout is not forgotten"
    );
}

/// The scan of the same turn has already found them due.
fn what_is_set_anew_or_paused_is_not_told_of_the_old_timeout(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, _peer) = tcp();
    let idle = open(&mut reactor, IDLE, ours, Script::new(&log));
    let (ours, _other) = tcp();
    let paused = open(&mut reactor, IDLE, ours, Script::new(&log));
    let (ours, _third) = tcp();
    let stalled =
        open(&mut reactor, PLAIN.write_stall_timeout(Some(SECOND)), ours, Script::new(&log));
    reactor.stream(stalled).unwrap().send(&vec![7; 12 << 20]).unwrap();
    quiet(&mut reactor);
    log.take();
    clock.advance(SECOND + GRANULE);
    turn(&mut reactor);
    reactor.stream(idle).unwrap().set_idle_timeout(Some(SECOND));
    reactor.stream(paused).unwrap().pause();
    reactor.stream(stalled).unwrap().set_write_stall_timeout(Some(SECOND));
    quiet(&mut reactor);
    assert_eq!(log.take(), []);
    reactor.stream(paused).unwrap().resume();
    quiet(&mut reactor);
    advance(&mut reactor, &clock, SECOND + GRANULE);
    let told: Vec<_> =
        log.take().into_iter().filter(|said| matches!(said, Said::Timeout(_))).collect();
    assert_eq!(told.len(), 3, "{told:?}");
}

/// Like waiting data: a busy loop must not report a stall if the peer has read meanwhile.
fn a_socket_that_has_room_again_comes_instead_of_the_stall(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN.write_stall_timeout(Some(SECOND)), ours, Script::new(&log));
    reactor.stream(key).unwrap().send(&vec![7; 12 << 20]).unwrap();
    quiet(&mut reactor);
    log.take();
    let before = reactor.stream(key).unwrap().buffered();
    clock.advance(SECOND + GRANULE);
    turn(&mut reactor);
    while peer.read_all().is_empty() {}
    quiet(&mut reactor);
    assert_eq!(log.take(), []);
    let after = reactor.stream(key).unwrap().buffered();
    assert!((1..before).contains(&after), "it has moved, and is not through: {after} of {before}");
    advance(&mut reactor, &clock, SECOND + GRANULE);
    assert_eq!(log.take()[0], Said::Timeout(Timeout::WriteStall), "it began anew");
}

fn output_that_is_not_taken_is_told_and_progress_begins_anew(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let script = Script::new(&log).on_data(|stream, _| stream.send(&vec![7; 12 << 20]).unwrap());
    let key = open(&mut reactor, PLAIN.write_stall_timeout(Some(SECOND)), ours, script);
    peer.write(b"?");
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open, Said::data(b"?"), Said::Full]);
    let before = reactor.stream(key).unwrap().buffered();
    advance(&mut reactor, &clock, SECOND * 9 / 10);
    while reactor.stream(key).unwrap().buffered() == before {
        peer.read_all();
        run_dry(&mut reactor);
    }
    let after = reactor.stream(key).unwrap().buffered();
    assert!(after > 0, "it has moved, and is not through");
    advance(&mut reactor, &clock, SECOND * 9 / 10);
    assert_eq!(log.take(), []);
    advance(&mut reactor, &clock, SECOND / 10 + GRANULE);
    let reason = Said::Close(DisconnectReason::WriteStall);
    assert_eq!(log.take(), [Said::Timeout(Timeout::WriteStall), reason, Said::Dropped]);
}

/// Calls of other handlers fill the socket.
fn a_stall_of_what_others_send_is_told_too(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, _peer) = tcp();
    let key = open(&mut reactor, PLAIN.write_stall_timeout(Some(SECOND)), ours, Script::new(&log));
    reactor.stream(key).unwrap().send(&vec![7; 12 << 20]).unwrap();
    quiet(&mut reactor);
    log.take();
    advance(&mut reactor, &clock, SECOND + GRANULE);
    assert_eq!(log.take()[0], Said::Timeout(Timeout::WriteStall));
}

fn a_drained_stream_does_not_stall(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN.write_stall_timeout(Some(SECOND)), ours, Script::new(&log));
    reactor.stream(key).unwrap().send(&vec![7; 12 << 20]).unwrap();
    quiet(&mut reactor);
    while reactor.stream(key).unwrap().buffered() > 0 {
        peer.read_all();
        run_dry(&mut reactor);
    }
    log.take();
    advance(&mut reactor, &clock, 10 * SECOND);
    assert_eq!(log.take(), []);
}

fn many_streams_time_out_in_one_look(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let mut peers = Vec::new();
    // No deadline is at the very end of a granule, so all expire at the end of the same one.
    clock.advance(TICK);
    for _ in 0..50 {
        let (ours, peer) = tcp();
        open(&mut reactor, IDLE, ours, Script::new(&log).on_timeout(|stream| stream.close()));
        clock.advance(Duration::from_micros(200));
        peers.push(peer);
    }
    quiet(&mut reactor);
    log.take();
    let fired = reactor.stats().timers_fired;
    advance(&mut reactor, &clock, SECOND - Duration::from_millis(10));
    for _ in 0..(GRANULE.as_millis() + 10) {
        advance(&mut reactor, &clock, TICK);
    }
    assert_eq!(log.take(), vec![Said::Timeout(Timeout::Idle); 50]);
    let fired = reactor.stats().timers_fired - fired;
    assert_eq!(fired, 1, "their deadlines are within one granule of the reactor's time");
    drop(peers);
    quiet(&mut reactor);
    let closed = log
        .take()
        .into_iter()
        .filter(|said| *said == Said::Close(DisconnectReason::IdleTimeout))
        .count();
    assert_eq!(closed, 50, "the reason is the timeout however the handler ends it");
}

fn a_stream_without_timeouts_reads_no_clock(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let (ours, mut peer) = tcp();
    open(&mut reactor, PLAIN, ours, Script::echo(&log));
    run_dry(&mut reactor);
    clock.reads();
    for _ in 0..10 {
        peer.write(b"x");
        run_dry(&mut reactor);
    }
    assert_eq!((clock.reads(), log.len()), (0, 11));
}

fn a_clock_that_panics_costs_one_stream(build: Build) {
    let bad: Rc<std::cell::Cell<bool>> = Rc::default();
    let (told, hand) = (bad.clone(), HandClock::new());
    let clock = move || {
        assert!(!told.get(), "no time");
        windlass::Clock::now(&hand)
    };
    let mut reactor = build().clock(clock).build().unwrap();
    let log = Log::new();
    let (ours, mut first) = tcp();
    open(&mut reactor, PLAIN, ours, Script::echo(&log));
    let (ours, _second) = tcp();
    IDLE.register(ours, Script::new(&log), &mut reactor).unwrap();
    bad.set(true);
    assert_eq!(crate::bed::panic_of(|| run_dry(&mut reactor)), "no time");
    bad.set(false);
    first.write(b"fine");
    quiet(&mut reactor);
    assert_eq!(first.read_all(), b"fine");
    assert_eq!(reactor.stats().subscribers, 1);
}

/// An address that does not answer: the backlog of a listener without accepts is full.
fn a_connection_that_nobody_answers_times_out(build: Build) {
    let (mut reactor, clock) = with_clock(build);
    let log = Log::new();
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let to = std::net::SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let connector = Connector::tcp(to).timeout(Some(SECOND));
    // With a backlog of zero the kernel still completes one connection, sometimes two.
    let scripts = 4;
    for _ in 0..scripts {
        connector.connect(Script::new(&log), &mut reactor).unwrap();
    }
    quiet(&mut reactor);
    let opened = log.take().len();
    assert!(opened < scripts, "{opened}");
    advance(&mut reactor, &clock, SECOND - TICK);
    assert_eq!(log.take(), []);
    advance(&mut reactor, &clock, TICK + GRANULE);
    let expected = [Said::Close(DisconnectReason::ConnectTimeout), Said::Dropped];
    assert_eq!(log.take(), vec![expected; scripts - opened].concat());
}

/// Twelve messages arrive together, and each keeps its handler busy. The first answers are sent
/// before the last message is handled.
fn answers_do_not_wait_for_a_long_turn(build: Build) {
    const STREAMS: usize = 12;
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (peers, handled) = (Rc::new(RefCell::new(Vec::<Peer>::new())), Rc::new(Cell::new(0)));
    let answered = Rc::new(Cell::new(0));
    for _ in 0..STREAMS {
        let (ours, peer) = unix();
        peers.borrow_mut().push(peer);
        let (peers, handled, answered) = (peers.clone(), handled.clone(), answered.clone());
        let script = Script::new(&log).on_data(move |stream, input| {
            // It works for far longer than an answer may be delayed to gather more.
            let start = Instant::now();
            while start.elapsed() < TICK {}
            handled.set(handled.get() + 1);
            if handled.get() == STREAMS {
                let mut peers = peers.borrow_mut();
                answered.set(
                    peers.iter_mut().filter_map(|peer| peer.try_read(&mut [0; 8]).ok()).count(),
                );
            }
            stream.reply(input, ..).unwrap();
        });
        open(&mut reactor, PLAIN, ours, script);
    }
    peers.borrow_mut().iter_mut().for_each(|peer| peer.write(b"?"));
    let turns = reactor.stats().turns;
    while handled.get() < STREAMS {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(reactor.stats().turns, turns + 1, "they come together");
    assert!(answered.get() >= STREAMS / 2, "{} are answered", answered.get());
}

/// What keeps a turn busy after a reply.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Descriptors,
    Timers,
    Closures,
}

/// A stream replies, and other handlers of the same turn take long. The peer has the reply before
/// the last of them has ended.
fn a_reply_does_not_wait_for_the_other_handlers_of_its_turn(build: Build) {
    const OTHERS: usize = 12;
    let all = [Busy::Descriptors, Busy::Timers, Busy::Closures];
    // The watchdog has a loop of its own.
    for (busy, is_watched) in all.map(|busy| (busy, false)).into_iter().chain([(all[0], true)]) {
        let clock = HandClock::new();
        let builder = build().clock(clock.clone()).watchdog(is_watched);
        let mut reactor = builder.build().unwrap();
        let (ours, peer) = unix();
        let (peer, calls) = (Rc::new(RefCell::new(peer)), Rc::new(Cell::new(0)));
        let is_answered = Rc::new(Cell::new(false));
        let work = {
            let (peer, calls, is_answered) = (peer.clone(), calls.clone(), is_answered.clone());
            move || {
                let start = Instant::now();
                while start.elapsed() < TICK {}
                calls.set(calls.get() + 1);
                if calls.get() == OTHERS {
                    is_answered.set(peer.borrow_mut().try_read(&mut [0; 8]).is_ok());
                }
            }
        };
        let closure = work.clone();
        let script = Script::new(&Log::new()).on_data(move |stream, input| {
            stream.reply(input, ..).unwrap();
            if matches!(busy, Busy::Closures) {
                for _ in 0..OTHERS {
                    let closure = closure.clone();
                    stream.turn().defer(move |_: Turn<'_>| closure()).unwrap();
                }
            }
        });
        open(&mut reactor, PLAIN, ours, script);
        let descriptors: Vec<_> = (0..OTHERS).map(|_| idle()).collect();
        for fd in &descriptors {
            let work = work.clone();
            let watch = readable().with_fd(Rc::clone(fd)).with_handler(move |fd: &mut Shared| {
                drain(fd);
                work();
            });
            watch.register_into(&mut reactor).unwrap();
        }
        quiet(&mut reactor);
        // The stream's event comes first.
        peer.borrow_mut().write(b"?");
        match busy {
            Busy::Descriptors => descriptors.iter().for_each(ring),
            Busy::Timers => {
                (0..OTHERS).for_each(|_| _ = reactor.after(SECOND, work.clone()).unwrap());
                clock.advance(2 * SECOND);
            }
            Busy::Closures => {}
        }
        let turns = reactor.stats().turns;
        while calls.get() < OTHERS {
            reactor.run_once(None).unwrap();
        }
        assert_eq!(reactor.stats().turns, turns + 1, "they come together");
        assert!(is_answered.get(), "{busy:?} hold the reply up, watched: {is_watched}");
    }
}

/// The driver may take long too. A ring submits before each call, after a turn of slow handlers.
fn a_reply_does_not_wait_for_the_driver(build: Build) {
    const OTHERS: usize = 12;
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = unix();
    let (calls, replies) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let count = Rc::clone(&replies);
    let script = Script::new(&Log::new()).on_data(move |stream, input| {
        stream.reply(input, ..).unwrap();
        count.set(count.get() + 1);
    });
    open(&mut reactor, PLAIN, ours, script);
    let descriptors: Vec<_> = (0..OTHERS).map(|_| idle()).collect();
    for fd in &descriptors {
        let calls = Rc::clone(&calls);
        let watch = readable().with_fd(Rc::clone(fd)).with_handler(move |fd: &mut Shared| {
            drain(fd);
            let start = Instant::now();
            while start.elapsed() < TICK {}
            calls.set(calls.get() + 1);
        });
        watch.register_into(&mut reactor).unwrap();
    }
    quiet(&mut reactor);
    peer.write(b"?");
    descriptors.iter().for_each(ring);
    let mut answered = Ok(0);
    let mut driver = |_: Turn<'_>| {
        if replies.get() == 1 && calls.replace(0) == OTHERS {
            peer.write(b"?");
        }
        if replies.get() < 2 {
            return NextTurn::Wait;
        }
        answered = peer.try_read(&mut [0; 8]);
        NextTurn::Stop
    };
    reactor.run_with(&mut driver).unwrap();
    assert_eq!(answered, Ok(2));
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_reply_does_not_wait_for_the_driver,
    #[cfg_attr(miri, ignore = "sockets")]
    answers_do_not_wait_for_a_long_turn,
    #[cfg_attr(miri, ignore = "sockets")]
    a_reply_does_not_wait_for_the_other_handlers_of_its_turn,
    #[cfg_attr(miri, ignore = "sockets")]
    an_idle_stream_is_told_not_before_its_time_and_a_granule_late_at_most,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_that_is_left_open_is_told_again,
    #[cfg_attr(miri, ignore = "sockets")]
    a_timeout_can_be_set_later_and_shortened,
    #[cfg_attr(miri, ignore = "sockets")]
    a_paused_stream_and_an_ended_one_are_not_idle,
    #[cfg_attr(miri, ignore = "sockets")]
    data_that_waits_comes_instead_of_the_timeout,
    #[cfg_attr(miri, ignore = "sockets")]
    data_that_comes_instead_of_the_timeout_begins_it_anew,
    #[cfg_attr(miri, ignore = "sockets")]
    an_end_that_comes_instead_of_the_timeout_is_not_followed_by_it,
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_set_anew_or_paused_is_not_told_of_the_old_timeout,
    #[cfg_attr(miri, ignore = "sockets")]
    a_socket_that_has_room_again_comes_instead_of_the_stall,
    #[cfg_attr(miri, ignore = "sockets")]
    output_that_is_not_taken_is_told_and_progress_begins_anew,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stall_of_what_others_send_is_told_too,
    #[cfg_attr(miri, ignore = "sockets")]
    a_drained_stream_does_not_stall,
    #[cfg_attr(miri, ignore = "sockets")]
    many_streams_time_out_in_one_look,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_without_timeouts_reads_no_clock,
    #[cfg_attr(miri, ignore = "sockets")]
    a_clock_that_panics_costs_one_stream,
    #[cfg_attr(miri, ignore = "sockets")]
    a_connection_that_nobody_answers_times_out,
}
