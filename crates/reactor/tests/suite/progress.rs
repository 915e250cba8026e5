//! The progress watch.

use std::{rc::Rc, time::Duration};

use windlass::{
    Event, Group, Key, NoProgress, ProgressWatch, Reactor, Turn, interest,
    stream::{Input, Stream, StreamHandler, StreamOptions},
};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, Shared, drain, idle, pair, panic_of, readable, ready, ring, slot},
};

const MS: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_secs(1000);
const TURNS: u32 = 10;

/// A stream that does nothing.
struct Quiet;

impl StreamHandler for Quiet {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// A reactor that notes what makes no progress for ten turns, with a clock that stands still.
struct Watched {
    reactor: Reactor,
    clock: HandClock,
    log: Log<NoProgress>,
}

impl Watched {
    fn new(build: Build, with: impl FnOnce(ProgressWatch) -> ProgressWatch) -> Self {
        let (clock, log) = (HandClock::new(), Log::new());
        let noted = log.clone();
        let watch = ProgressWatch::new(TURNS, move |stuck, _| noted.note(stuck));
        let builder = build().clock(clock.clone()).progress_watch(with(watch));
        Self { reactor: builder.build().unwrap(), clock, log }
    }

    /// The number of turns is the only limit.
    fn by_turns(build: Build) -> Self {
        Self::new(build, |watch| watch.at_least(NOW))
    }

    /// Registers a descriptor that is always ready.
    fn add(&mut self, mut handler: impl FnMut(Event, Turn<'_>) + 'static) -> (Key, Shared) {
        let fd = ready();
        let handler = move |event: Event, turn: Turn<'_>| handler(event, turn);
        let registration = readable().with_fd(Rc::clone(&fd)).with_handler(handler);
        (registration.register_into(&mut self.reactor).unwrap(), fd)
    }

    /// Runs turns of a millisecond each. None of them waits.
    fn run(&mut self, turns: u32) {
        for _ in 0..turns {
            self.clock.advance(MS);
            self.reactor.run_once(None).unwrap();
        }
    }

    /// The keys that were reported since the last call.
    fn reported(&self) -> Vec<Key> {
        self.log.take().into_iter().map(|stuck| stuck.key).collect()
    }
}

// firecracker #6031, #6074: an eventfd whose handler does not read it.
fn a_handler_that_never_reads_is_reported_after_so_many_turns(build: Build) {
    let mut watched = Watched::by_turns(build);
    let (key, fd) = watched.add(|_, _| {});
    watched.reactor.set_name(key, "net0 tx").unwrap();
    watched.run(TURNS - 1);
    assert_eq!(watched.log.len(), 0);
    watched.run(1);
    let stuck = watched.log.take().pop().unwrap();
    assert_eq!((stuck.key, stuck.name.as_deref()), (key, Some("net0 tx")));
    assert_eq!((stuck.turns, stuck.span), (TURNS.into(), MS * (TURNS - 1)));
    assert_eq!(stuck.fd, std::os::fd::AsRawFd::as_raw_fd(&*fd));
    // The default time is 100 ms.
    let mut watched = Watched::new(build, |watch| watch);
    let (key, _fd) = watched.add(|_, _| {});
    watched.run(100);
    assert_eq!(watched.log.len(), 0, "99 ms have passed since the first turn");
    watched.run(1);
    assert_eq!(watched.reported(), [key]);
}

fn a_report_comes_again_when_both_limits_have_doubled(build: Build) {
    let mut watched = Watched::new(build, |watch| watch.at_least(MS * 20));
    let (key, _fd) = watched.add(|_, _| {});
    let mut at = Vec::new();
    for turn in 1..=100 {
        watched.run(1);
        at.extend(watched.reported().into_iter().map(|it| (it == key, turn)));
    }
    assert_eq!(at, [(true, 21), (true, 41), (true, 81)]);
    // If the time stands still, turns alone are not enough.
    let mut watched = Watched::new(build, |watch| watch);
    watched.add(|_, _| {});
    for _ in 0..1000 {
        watched.reactor.run_once(None).unwrap();
    }
    assert_eq!(watched.log.len(), 0);
}

fn whatever_a_handler_asks_of_the_reactor_is_progress(build: Build) {
    let mut watched = Watched::by_turns(build);
    let (other, _fd) = watched.add(|_, mut turn| turn.made_progress());
    let timer = watched.reactor.after(LATER, || {}).unwrap();
    let (socket, _peer) = pair();
    let stream = StreamOptions::new().with_fd(socket).with_handler(Quiet);
    let stream = stream.register_into(&mut watched.reactor).unwrap();
    let mut descriptors: Vec<Key> = Vec::new();
    let mut timers: Vec<Key> = Vec::new();
    for _ in 0..4 * TURNS {
        let fd = readable().with_fd(idle()).with_handler(|| {});
        descriptors.push(fd.register_into(&mut watched.reactor).unwrap());
        timers.push(watched.reactor.after(LATER, || {}).unwrap());
    }
    let mut groups = Vec::new();
    for _ in 0..4 * TURNS {
        let group = Group::new(()).fd(readable(), idle(), |(): &mut ()| {});
        groups.push(group.register_into(&mut watched.reactor).unwrap().group);
    }
    let (mut running, mut paused) = (groups.clone().into_iter(), groups.into_iter());
    let acts: Vec<Box<dyn FnMut(Event, &mut Turn<'_>)>> = vec![
        Box::new(move |_, turn| turn.pause_group(running.next().unwrap()).unwrap()),
        Box::new(move |_, turn| turn.resume_group(paused.next().unwrap()).unwrap()),
        Box::new(|_, turn| turn.made_progress()),
        Box::new(|_, turn| {
            let fd = readable().with_fd(idle()).with_handler(|| {});
            fd.register_into(turn).unwrap();
        }),
        Box::new(|event, turn| turn.modify(event.key(), readable()).unwrap()),
        Box::new(move |_, turn| turn.rearm(other).unwrap()),
        Box::new(move |_, turn| turn.delete(descriptors.pop().unwrap()).unwrap()),
        Box::new(|_, turn| _ = turn.after(LATER, || {}).unwrap()),
        Box::new(move |_, turn| turn.reset(timer, LATER).unwrap()),
        Box::new(move |_, turn| turn.cancel(timers.pop().unwrap()).unwrap()),
        Box::new(|_, turn| turn.defer(|_| {}).unwrap()),
        Box::new(move |_, turn| turn.stream(stream).unwrap().send(b"x").unwrap()),
        Box::new(|_, turn| {
            let group = Group::new(()).after(LATER, |(): &mut ()| {});
            group.register_into(turn).unwrap();
        }),
    ];
    for (number, mut act) in acts.into_iter().enumerate() {
        let (key, _fd) = watched.add(move |event, mut turn| act(event, &mut turn));
        watched.run(3 * TURNS);
        assert_eq!(watched.reported(), [], "act {number}");
        watched.reactor.delete(key).unwrap();
    }
}

fn what_one_handler_does_is_no_progress_of_another(build: Build) {
    let mut watched = Watched::by_turns(build);
    let (socket, mut peer) = pair();
    let stream = StreamOptions::new().with_fd(socket).with_handler(Quiet);
    let stream = stream.register_into(&mut watched.reactor).unwrap();
    watched.run(1);
    let sends = move |mut turn: Turn<'_>| turn.stream(stream).unwrap().send(b"x").unwrap();
    let (_, _sends) = watched.add(move |_, turn| sends(turn));
    let (stuck, _stuck) = watched.add(|_, _| {});
    let (_, _tells) = watched.add(|_, mut turn| turn.made_progress());
    for _ in 0..TURNS {
        watched.run(1);
        assert_eq!(crate::bed::read_some(&mut peer), b"x", "it is sent when the turn ends");
    }
    assert_eq!(watched.reported(), [stuck]);
}

fn progress_a_gap_or_an_end_begins_anew(build: Build) {
    let mut watched = Watched::by_turns(build);
    let progress = slot();
    let makes = Rc::clone(&progress);
    let (key, fd) = watched.add(move |_, mut turn| {
        if makes.take().is_some() {
            turn.made_progress();
        }
    });
    // Keeps the loop awake.
    let (_, _awake) = watched.add(|_, mut turn| turn.made_progress());
    watched.run(TURNS - 1);
    progress.set(Some(()));
    watched.run(TURNS);
    assert_eq!(watched.log.len(), 0, "progress after nine turns");
    drain(&*fd);
    // On a ring, a poll that was queued before may report it once more.
    watched.run(2);
    ring(&*fd);
    watched.run(TURNS - 1);
    assert_eq!(watched.log.len(), 0, "it was not ready");
    watched.reactor.delete(key).unwrap();
    let (next, _fd) = watched.add(|_, _| {});
    watched.run(TURNS - 1);
    assert_eq!(watched.log.len(), 0, "another one has the slot");
    watched.run(1);
    assert_eq!(watched.reported(), [next]);
}

fn streams_are_not_watched(build: Build) {
    struct Reads(Log<()>);
    impl StreamHandler for Reads {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {
            self.0.note(());
        }
    }
    let mut watched = Watched::by_turns(build);
    let reads = Log::new();
    let (socket, mut peer) = pair();
    let stream = StreamOptions::new().with_fd(socket).with_handler(Reads(reads.clone()));
    stream.register_into(&mut watched.reactor).unwrap();
    watched.reactor.run_once(None).unwrap();
    for _ in 0..3 * TURNS {
        std::io::Write::write_all(&mut peer, b"x").unwrap();
        watched.run(1);
    }
    assert!(reads.len() >= TURNS as usize);
    assert_eq!(watched.log.len(), 0);
}

fn edge_triggered_registrations_are_watched_too(build: Build) {
    let mut watched = Watched::by_turns(build);
    let edge = crate::bed::edge(&watched.reactor, readable());
    let fd = idle();
    let key = edge.with_fd(Rc::clone(&fd)).with_handler(|| {}).register_into(&mut watched.reactor);
    for _ in 0..TURNS {
        ring(&*fd);
        watched.run(1);
    }
    assert_eq!(watched.reported(), [key.unwrap()]);
}

fn the_callback_may_delete_and_panic(build: Build) {
    let keys: Log<Key> = Log::new();
    let (told, all) = (Log::new(), keys.clone());
    let noted = told.clone();
    let watch = ProgressWatch::new(TURNS, move |stuck, mut turn| {
        noted.note(stuck.key);
        for key in all.take() {
            turn.delete(key).unwrap();
            assert!(turn.set_name(key, "gone").is_err());
        }
        panic!("callback");
    });
    let mut reactor = build().progress_watch(watch.at_least(NOW)).build().unwrap();
    let mut add = || {
        let key = readable().with_fd(ready()).with_handler(|| {}).register_into(&mut reactor);
        key.unwrap()
    };
    let (first, second, third) = (add(), add(), add());
    keys.note(first);
    keys.note(second);
    for _ in 1..TURNS {
        assert_eq!(reactor.run_once(None).unwrap(), 3);
    }
    // Whichever is told first, two are gone after that, and one of them at most was told.
    assert_eq!(panic_of(|| reactor.run_once(None)), "callback");
    assert_eq!(reactor.stats().subscribers, 1);
    let mut told = told.take();
    if told != [third] {
        assert_eq!(panic_of(|| reactor.run_once(None)), "callback");
        told.push(third);
    }
    // It works on. Twice as many turns are needed.
    let mut turns = 0;
    let twice = panic_of(|| {
        while turns <= 2 * TURNS {
            turns += 1;
            reactor.run_once(None).unwrap();
        }
    });
    assert_eq!((&*twice, turns > TURNS / 2), ("callback", true), "after {turns} turns");
}

fn a_handler_that_panics_is_not_reported(build: Build) {
    let mut watched = Watched::by_turns(build);
    let (_, _fd) = watched.add(|_, _| panic!("handler"));
    for _ in 0..3 * TURNS {
        assert_eq!(panic_of(|| watched.reactor.run_once(None)), "handler");
    }
    assert_eq!(watched.log.len(), 0);
}

fn a_reactor_that_is_watched_does_all_that_others_do(build: Build) {
    let mut watched = Watched::by_turns(build);
    let log = Log::new();
    let fd = idle();
    crate::bed::noting(&mut watched.reactor, &fd, &log, "event");
    let noted = log.clone();
    watched.reactor.after(MS * 5, move || noted.note("timer")).unwrap();
    watched.clock.advance(MS * 6);
    watched.reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["timer"]);
    ring(&*fd);
    assert_eq!(watched.reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["event"]);
    let remote = watched.reactor.remote();
    let noted = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let called = std::sync::Arc::clone(&noted);
    let posted = std::thread::spawn(move || {
        let call = move |mut turn: Turn<'_>| {
            called.store(true, std::sync::atomic::Ordering::Relaxed);
            turn.stop();
        };
        assert!(remote.try_post(call).is_ok());
    });
    watched.reactor.run().unwrap();
    posted.join().unwrap();
    assert!(noted.load(std::sync::atomic::Ordering::Relaxed));
    let interest_before = interest().read();
    assert_eq!(watched.reactor.registrations().next().unwrap().interest, Some(interest_before));
    assert_eq!(watched.log.len(), 0);
}

fn the_host_of_an_embedded_reactor_may_sleep_between_its_turns(build: Build) {
    let log = Log::new();
    let noted = log.clone();
    let watch = ProgressWatch::new(TURNS, move |stuck, _| noted.note(stuck.key)).at_least(NOW);
    let mut guest = build().progress_watch(watch).build().unwrap().embed().unwrap();
    let (fd, read) = (idle(), Log::new());
    guest.with(|reactor| crate::bed::noting(reactor, &fd, &read, ()));
    for _ in 0..3 * TURNS {
        ring(&*fd);
        while guest.is_due() {
            guest.run_once(NOW).unwrap();
        }
    }
    assert_eq!((read.len(), log.len()), (3 * TURNS as usize, 0));
    let stuck = readable().with_fd(ready()).with_handler(|| {}).register_into(&mut guest).unwrap();
    for _ in 0..=TURNS {
        guest.run_once(NOW).unwrap();
    }
    assert_eq!(log.take(), [stuck]);
}

/// Registers a handler that reads only if it is told to, and counts its calls.
fn counting(watched: &mut Watched) -> (Key, Shared, Log<()>, Rc<std::cell::Cell<bool>>) {
    let (calls, reads) = (Log::new(), Rc::new(std::cell::Cell::new(false)));
    let (noted, may_read) = (calls.clone(), Rc::clone(&reads));
    let fd = ready();
    let handler = move |fd: &mut Shared| {
        noted.note(());
        if may_read.get() {
            drain(fd);
        }
    };
    let key = readable().with_fd(Rc::clone(&fd)).with_handler(handler);
    (key.register_into(&mut watched.reactor).unwrap(), fd, calls, reads)
}

impl Watched {
    /// Runs turns of a millisecond each, which do not wait.
    fn poll(&mut self, turns: u32) {
        for _ in 0..turns {
            self.clock.advance(MS);
            self.reactor.run_once(NOW).unwrap();
        }
    }
}

fn a_registration_that_is_backed_off_leaves_the_loop_idle(build: Build) {
    let mut watched = Watched::new(build, |watch| watch.at_least(NOW).back_off(MS * 500));
    let (key, fd, calls, reads) = counting(&mut watched);
    watched.poll(TURNS);
    let found = watched.log.take();
    assert_eq!((found.len(), found[0].key, found[0].silenced), (1, key, Some(MS * 10)));
    assert_eq!(calls.take().len(), TURNS as usize);
    watched.poll(10_000);
    // A silence of 10 ms, then of 20 ms, up to 500 ms, and two calls after each.
    let (said, called) = (watched.log.take(), calls.take().len());
    let silences: Vec<_> = said.iter().map(|stuck| stuck.silenced.unwrap()).collect();
    assert_eq!(silences, [20, 40, 80, 160, 320, 500].map(|ms| MS * ms));
    assert!((30..=60).contains(&called), "{called} calls in 10,000 turns");
    // It reads: the next time it is called as before.
    reads.set(true);
    watched.poll(600);
    assert!((1..=2).contains(&calls.take().len()));
    for _ in 0..2 * TURNS {
        ring(&*fd);
        watched.poll(3);
        assert!((1..=2).contains(&calls.take().len()), "it is not silenced any more");
    }
    assert_eq!(watched.log.len(), 0);
}

fn a_change_ends_a_silence_and_a_deletion_leaves_nothing(build: Build) {
    let mut watched = Watched::new(build, |watch| watch.at_least(NOW).back_off(LATER));
    let (key, _fd, calls, _reads) = counting(&mut watched);
    watched.poll(TURNS + 3);
    assert_eq!(calls.take().len(), TURNS as usize);
    // The timer that ends the silence is the reactor's own.
    assert_eq!(watched.reactor.registrations().count(), 1);
    watched.reactor.modify(key, readable()).unwrap();
    watched.poll(2);
    assert_eq!(calls.take().len(), 2);
    watched.reactor.delete(key).unwrap();
    watched.poll(100);
    assert_eq!((watched.reactor.stats().timers, calls.len()), (0, 0));
    assert_eq!(watched.reactor.registrations().count(), 0);
}

/// The end of the silence would arm it once more.
fn a_one_shot_that_a_change_has_made_in_a_silence_fires_once(build: Build) {
    let mut watched = Watched::new(build, |watch| watch.at_least(NOW).back_off(LATER));
    let (key, _fd, calls, _reads) = counting(&mut watched);
    watched.poll(TURNS + 3);
    assert_eq!(calls.take().len(), TURNS as usize);
    watched.reactor.modify(key, readable().one_shot()).unwrap();
    watched.poll(2);
    assert_eq!((calls.take().len(), watched.reactor.stats().timers), (1, 1));
    watched.poll(100);
    assert_eq!((calls.len(), watched.reactor.stats().timers), (0, 0), "the silence is over");
}

fn the_end_of_a_silence_does_not_end_a_pause(build: Build) {
    let mut watched = Watched::new(build, |watch| watch.at_least(NOW).back_off(LATER));
    let calls = Log::new();
    let (noted, fd) = (calls.clone(), ready());
    let group = Group::new(()).fd(readable(), fd, move |(): &mut ()| noted.note(()));
    let group = group.register_into(&mut watched.reactor).unwrap().group;
    watched.poll(TURNS);
    assert_eq!((watched.log.take().len(), calls.take().len()), (1, TURNS as usize));
    watched.reactor.pause_group(group).unwrap();
    watched.poll(100);
    assert_eq!(calls.len(), 0);
    watched.reactor.resume_group(group).unwrap();
    watched.poll(2);
    assert_eq!(calls.take().len(), 2);
}

fn a_registration_that_is_demoted_comes_last(build: Build) {
    let mut watched = Watched::new(build, |watch| watch.at_least(NOW).demote());
    let order = Log::new();
    let mut fds = Vec::new();
    for number in 0..3 {
        let noted = order.clone();
        let (_, fd) = watched.add(move |_, mut turn| {
            noted.note(number);
            if number != 1 {
                turn.made_progress();
            }
        });
        fds.push(fd);
    }
    watched.run(TURNS);
    assert_eq!(watched.log.len(), 1);
    order.take();
    for _ in 0..2 * TURNS {
        watched.run(1);
        let called = order.take();
        assert_eq!((called.len(), called.last()), (3, Some(&1)));
    }
}

scenarios! {
    a_registration_that_is_backed_off_leaves_the_loop_idle,
    a_change_ends_a_silence_and_a_deletion_leaves_nothing,
    a_one_shot_that_a_change_has_made_in_a_silence_fires_once,
    the_end_of_a_silence_does_not_end_a_pause,
    a_registration_that_is_demoted_comes_last,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    the_host_of_an_embedded_reactor_may_sleep_between_its_turns
        except [poll "a wait of poll(2) has no descriptor"],
    a_handler_that_never_reads_is_reported_after_so_many_turns,
    a_report_comes_again_when_both_limits_have_doubled,
    whatever_a_handler_asks_of_the_reactor_is_progress,
    what_one_handler_does_is_no_progress_of_another,
    progress_a_gap_or_an_end_begins_anew,
    streams_are_not_watched,
    edge_triggered_registrations_are_watched_too,
    the_callback_may_delete_and_panic,
    a_handler_that_panics_is_not_reported,
    a_reactor_that_is_watched_does_all_that_others_do,
}
