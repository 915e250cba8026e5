//! Each call of event-manager 0.4.2 and of `windlass-event-manager`: what they return, in which
//! order subscribers are called, and with what.

use std::cell::RefCell;
use std::fmt::Debug;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::EventfdFlags;
use rustix::io::fcntl_dupfd_cloexec;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use windlass_testkit::panics::caught;

/// What a scenario has seen, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, line: impl Debug) {
        self.0.lock().expect("no test panics with it").push(format!("{line:?}"));
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no test panics with it").clone()
    }
}

/// An eventfd that is readable, whose number no other test gets while it is closed: theirs are
/// lower.
fn numbered(lowest: RawFd) -> OwnedFd {
    let fd = rustix::event::eventfd(1, EventfdFlags::CLOEXEC).expect("a descriptor is left");
    fcntl_dupfd_cloexec(fd, lowest).expect("the process may have so many descriptors")
}

fn eventfd(value: u64) -> EventFd {
    let fd = EventFd::new(EFD_NONBLOCK).expect("the process has a descriptor left");
    fd.write(value).expect("the counter is far from full");
    fd
}

/// Compiles functions with each crate, and tests that those of `same` return the same. Those of
/// `different` are called by tests below.
macro_rules! both {
    (
        helpers: $helpers:tt
        same: { $($name:ident $body:block)* }
        different: { $($other:ident $code:block)* }
    ) => {
        mod theirs {
            use super::*;
            use event_manager::*;
            both!(@items $helpers $($name $body)* $($other $code)*);
        }

        mod ours {
            use super::*;
            use windlass_event_manager::*;
            both!(@items $helpers $($name $body)* $($other $code)*);
        }

        $(
            #[test]
            fn $name() {
                let theirs = theirs::$name();
                assert!(!theirs.is_empty());
                assert_eq!(ours::$name(), theirs);
            }
        )*
    };
    (@items { $($helpers:item)* } $($name:ident $body:block)*) => {
        $($helpers)*
        $(pub(super) fn $name() -> Vec<String> $body)*
    };
}

both! {
helpers: {
    type Act = Box<dyn FnMut(&mut u64, Events, &mut EventOps<'_>) + Send>;

    /// Watches what it is given, and does what it is told for each event.
    struct Probe {
        watched: Vec<Events>,
        calls: u64,
        act: Act,
    }

    impl Probe {
        fn new(
            watched: impl IntoIterator<Item = Events>,
            act: impl FnMut(&mut u64, Events, &mut EventOps<'_>) + Send + 'static,
        ) -> Self {
            Self { watched: watched.into_iter().collect(), calls: 0, act: Box::new(act) }
        }
    }

    impl MutEventSubscriber for Probe {
        fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
            self.calls += 1;
            (self.act)(&mut self.calls, events, ops);
        }

        fn init(&mut self, ops: &mut EventOps<'_>) {
            for &events in &self.watched {
                ops.add(events).expect("it can be watched");
            }
        }
    }

    /// What an event says, without the descriptor's number.
    fn said(events: Events) -> (u32, EventSet) {
        (events.data(), events.event_set())
    }
}

same: {

events_have_their_parts {
    let fd = eventfd(0);
    let number = fd.as_raw_fd();
    let log = Log::default();
    let all = [
        Events::empty(&fd),
        Events::empty_raw(number),
        Events::new(&fd, EventSet::IN),
        Events::new_raw(number, EventSet::OUT | EventSet::EDGE_TRIGGERED),
        Events::with_data(&fd, 7, EventSet::IN),
        Events::with_data_raw(number, u32::MAX, EventSet::all()),
    ];
    for events in all {
        assert_eq!(events.fd(), number);
        log.say((said(events), events.epoll_event().events(), events.epoll_event().data() >> 32));
        assert_eq!(events.epoll_event().fd(), number);
        log.say(all.map(|other| other == events));
    }
    log.lines()
}

a_watch_that_is_added_in_a_run_fires_in_the_next {
    let (log, one, two) = (Log::default(), eventfd(1), eventfd(1));
    let mut manager = EventManager::new().expect("a manager");
    let (seen, second) = (log.clone(), Events::with_data(&two, 2, EventSet::IN));
    let probe = Probe::new([Events::with_data(&one, 1, EventSet::IN)], move |calls, events, ops| {
        seen.say(said(events));
        if *calls == 1 {
            seen.say(ops.add(second));
        }
    });
    let id = manager.add_subscriber(probe);
    log.say(manager.run());
    log.say(manager.run());
    log.say(manager.subscriber_mut(id).map(|probe| probe.calls));
    log.say(manager.run_with_timeout(0));
    log.lines()
}

a_removed_watch_fires_no_more_although_its_event_is_fetched {
    let (log, one, two) = (Log::default(), eventfd(1), eventfd(1));
    let mut manager = EventManager::new().expect("a manager");
    let both = [Events::new(&one, EventSet::IN), Events::new(&two, EventSet::IN)];
    for (mine, other) in [(both[0], both[1]), (both[1], both[0])] {
        let seen = log.clone();
        manager.add_subscriber(Probe::new([mine], move |_, events, ops| {
            seen.say(events == mine);
            // A subscriber may end the watch of another one.
            seen.say(ops.remove(other));
        }));
    }
    log.say(manager.run());
    log.say(manager.run());
    log.lines()
}

a_watch_that_is_made_again_does_not_get_the_fetched_event {
    let (log, fds) = (Log::default(), [eventfd(1), eventfd(1), eventfd(1)]);
    let watched = fds.each_ref().map(|fd| Events::new(fd, EventSet::IN));
    let mut manager = EventManager::new().expect("a manager");
    let seen = log.clone();
    manager.add_subscriber(Probe::new(watched, move |calls, events, ops| {
        seen.say(said(events));
        if *calls == 1 {
            for events in watched {
                seen.say((ops.remove(events), ops.add(events)));
            }
        }
    }));
    log.say(manager.run());
    log.say(manager.run());
    log.lines()
}

a_modified_watch_has_the_new_conditions_and_number {
    let (log, fd) = (Log::default(), eventfd(1));
    let mut manager = EventManager::new().expect("a manager");
    let (seen, changed) = (log.clone(), Events::with_data(&fd, 9, EventSet::OUT));
    let probe = Probe::new([Events::with_data(&fd, 1, EventSet::IN)], move |_, events, ops| {
        seen.say(said(events));
        seen.say(ops.modify(changed));
    });
    let id = manager.add_subscriber(probe);
    log.say(manager.run());
    log.say(manager.run());
    let ops = manager.event_ops(id).expect("it is there");
    log.say(ops.modify(Events::empty(&fd)));
    log.say(manager.run_with_timeout(0));
    log.lines()
}

errors_are_those_of_the_kernel {
    let (log, fd) = (Log::default(), eventfd(0));
    let mut manager = EventManager::new().expect("a manager");
    let one = manager.add_subscriber(Probe::new([Events::new(&fd, EventSet::IN)], |_, _, _| {}));
    let two = manager.add_subscriber(Probe::new([], |_, _, _| {}));
    let file = File::open("/proc/self/exe").expect("it is there");
    let closed = numbered(900).as_raw_fd();
    for id in [one, two] {
        let mut ops = manager.event_ops(id).expect("it is there");
        log.say(ops.add(Events::new(&fd, EventSet::OUT)));
        log.say(ops.add(Events::new(&file, EventSet::IN)));
        for fd in [closed, -1] {
            log.say(ops.add(Events::new_raw(fd, EventSet::IN)));
        }
        let other = eventfd(0);
        let unknown = Events::new(&other, EventSet::IN);
        log.say((ops.modify(unknown), ops.remove(unknown)));
    }
    let invalid = EventSet::IN | EventSet::EXCLUSIVE | EventSet::ONE_SHOT;
    let other = eventfd(0);
    let mut ops = manager.event_ops(one).expect("it is there");
    log.say(ops.add(Events::new(&other, invalid)));
    log.say(ops.add(Events::new(&other, EventSet::IN | EventSet::EXCLUSIVE)));
    log.lines()
}

an_identifier_names_one_subscriber_for_ever {
    let (log, fd) = (Log::default(), eventfd(1));
    let mut manager = EventManager::new().expect("a manager");
    let watched = Events::new(&fd, EventSet::IN);
    let first = manager.add_subscriber(Probe::new([watched], |_, _, _| {}));
    log.say(manager.remove_subscriber(first).map(|probe| probe.calls));
    log.say(manager.run_with_timeout(0));
    let second = manager.add_subscriber(Probe::new([watched], |_, _, _| {}));
    assert_ne!(first, second);
    log.say(manager.remove_subscriber(first).map(drop));
    log.say(manager.subscriber_mut(first).map(drop));
    log.say(manager.event_ops(first).map(drop));
    log.say(manager.run());
    log.say(manager.remove_subscriber(second).map(|probe| probe.calls));
    log.lines()
}

a_hang_up_is_told_as_long_as_it_lasts {
    let (log, (stream, peer)) = (Log::default(), UnixStream::pair().expect("a pair"));
    let mut manager = EventManager::new().expect("a manager");
    let seen = log.clone();
    let probe =
        Probe::new([Events::empty(&stream)], move |_, events, _| seen.say(said(events)));
    manager.add_subscriber(probe);
    log.say(manager.run_with_timeout(0));
    drop(peer);
    log.say(manager.run());
    log.say(manager.run());
    log.lines()
}

modes_are_those_of_epoll {
    let (log, (mut stream, mut peer)) = (Log::default(), UnixStream::pair().expect("a pair"));
    for mode in [EventSet::EDGE_TRIGGERED, EventSet::ONE_SHOT, EventSet::empty()] {
        let mut manager = EventManager::new().expect("a manager");
        let watched = Events::new(&stream, EventSet::IN | EventSet::READ_HANG_UP | mode);
        let id = manager.add_subscriber(Probe::new([watched], |_, _, _| {}));
        for _ in 0..2 {
            peer.write_all(b"x").expect("there is room");
            log.say((manager.run_with_timeout(0), manager.run_with_timeout(0)));
        }
        log.say(manager.event_ops(id).expect("it is there").modify(watched));
        log.say((manager.run_with_timeout(0), manager.run_with_timeout(0)));
        stream.read_exact(&mut [0; 2]).expect("two were sent");
    }
    log.lines()
}

a_run_takes_as_many_events_as_the_capacity {
    let (log, fds) = (Log::default(), [eventfd(1), eventfd(1), eventfd(1), eventfd(1)]);
    let mut manager = EventManager::new_with_capacity(3).expect("a manager");
    let watched = fds.each_ref().map(|fd| Events::new(fd, EventSet::IN | EventSet::ONE_SHOT));
    manager.add_subscriber(Probe::new(watched, |_, _, _| {}));
    log.say([(); 3].map(|()| manager.run_with_timeout(0)));
    for capacity in [1, MAX_READY_EVENTS_CAPACITY + 1, usize::MAX] {
        log.say(EventManager::<Probe>::new_with_capacity(capacity).map(drop));
    }
    log.say(MAX_READY_EVENTS_CAPACITY);
    log.lines()
}

pointers_and_locks_are_subscribers {
    /// Is called by a shared reference.
    struct Shared(EventFd, Log);

    impl EventSubscriber for Shared {
        fn process(&self, events: Events, _: &mut EventOps<'_>) {
            self.1.say(said(events));
        }

        fn init(&self, ops: &mut EventOps<'_>) {
            ops.add(Events::new(&self.0, EventSet::IN)).expect("it can be watched");
        }
    }

    fn run<T: MutEventSubscriber>(subscriber: T, log: &Log) {
        let mut manager = EventManager::new().expect("a manager");
        manager.add_subscriber(subscriber);
        log.say(manager.run());
    }

    let log = Log::default();
    let shared = || Shared(eventfd(1), log.clone());
    let fd = eventfd(1);
    let probe = || {
        let seen = log.clone();
        let watched = [Events::with_data(&fd, 3, EventSet::IN)];
        Probe::new(watched, move |calls, events, _| seen.say((*calls, said(events))))
    };
    run(Arc::new(shared()), &log);
    run(Rc::new(shared()), &log);
    run::<Arc<dyn EventSubscriber>>(Arc::new(Box::new(shared())), &log);
    run::<Box<dyn MutEventSubscriber>>(Box::new(probe()), &log);
    run(Arc::new(Mutex::new(probe())), &log);
    run(Rc::new(RefCell::new(probe())), &log);
    run(Mutex::new(probe()), &log);
    run(RefCell::new(probe()), &log);
    log.lines()
}

a_manager_changes_threads_between_runs {
    let (log, fd) = (Log::default(), eventfd(1));
    let mut manager = EventManager::new().expect("a manager");
    let seen = log.clone();
    let watched = [Events::new(&fd, EventSet::IN)];
    let id = manager.add_subscriber(Probe::new(watched, move |calls, events, ops| {
        seen.say((*calls, said(events), ops.modify(watched_again(events))));
    }));
    for _ in 0..3 {
        log.say(manager.run());
        manager = thread::spawn(move || {
            manager.run().expect("an event is there");
            manager
        })
        .join()
        .expect("no panic");
    }
    thread::spawn(move || drop(manager.remove_subscriber(id))).join().expect("no panic");
    fn watched_again(events: Events) -> Events {
        Events::with_data_raw(events.fd(), events.data() + 1, EventSet::IN)
    }
    log.lines()
}

calls_from_another_thread_come_after_the_events {
    let (log, fd) = (Log::default(), eventfd(1));
    let mut manager = EventManager::new().expect("a manager");
    let endpoint = manager.remote_endpoint();
    let seen = log.clone();
    let watched = [Events::new(&fd, EventSet::IN | EventSet::ONE_SHOT)];
    let id = manager.add_subscriber(Probe::new(watched, move |_, _, _| seen.say("event")));
    let (caller, seen) = (endpoint.clone(), log.clone());
    caller
        .fire(move |ops| seen.say(ops.subscriber_mut(id).map(|probe| probe.calls)))
        .expect("fired");
    log.say(manager.run());
    let calling = thread::spawn(move || {
        let remove = || {
            caller.call_blocking(move |ops| ops.remove_subscriber(id).map(|probe| probe.calls))
        };
        let (added, again) = (remove(), remove());
        caller.kick().expect("kicked");
        (added, again)
    });
    // The two calls and the kick: each comes after what was before it.
    let mut events = 0;
    loop {
        let is_over = calling.is_finished();
        let count = manager.run_with_timeout(1).expect("no error");
        events += count;
        if is_over && count == 0 {
            break;
        }
    }
    log.say(events);
    log.say(calling.join().expect("no panic"));
    drop(manager);
    log.say(endpoint.fire(|_| {}));
    log.say(endpoint.call_blocking(|_| Ok::<(), Error>(())));
    log.lines()
}

a_call_that_waits_when_the_manager_goes_has_an_error {
    let log = Log::default();
    let manager = EventManager::<Probe>::new().expect("a manager");
    let endpoint = manager.remote_endpoint();
    let (sender, receiver) = channel::<()>();
    endpoint.fire(move |_| drop(sender)).expect("the manager is there");
    log.say(receiver.try_recv());
    // The call is in the queue, or finds that the manager is gone.
    let calling = thread::spawn(move || endpoint.call_blocking(|_| Ok::<(), Error>(())));
    drop(manager);
    log.say(receiver.recv());
    let error = calling.join().expect("no panic").expect_err("nobody has run it");
    assert!([Error::ChannelRecv, Error::ChannelSend].contains(&error), "{error:?}");
    log.lines()
}

}

different: {

without_capacity {
    let log = Log::default();
    log.say(EventManager::<Probe>::new_with_capacity(0).map(|mut it| it.run_with_timeout(0)));
    log.lines()
}

closed_descriptor {
    let log = Log::default();
    let mut manager = EventManager::new().expect("a manager");
    let id = manager.add_subscriber(Probe::new([], |_, _, _| {}));
    let number = numbered(950);
    let watched = Events::new(&number, EventSet::IN);
    let mut ops = manager.event_ops(id).expect("it is there");
    ops.add(watched).expect("it can be watched");
    drop(number);
    log.say(ops.remove(watched));
    let again = numbered(950);
    assert_eq!(again.as_raw_fd(), watched.fd());
    log.say(ops.add(watched));
    log.lines()
}

panic_of_a_subscriber {
    let (log, fds) = (Log::default(), [eventfd(1), eventfd(1)]);
    let mut manager = EventManager::new().expect("a manager");
    let watched = fds.each_ref().map(|fd| Events::new(fd, EventSet::IN | EventSet::EDGE_TRIGGERED));
    let id = manager.add_subscriber(Probe::new(watched, |calls, _, _| {
        assert_ne!(*calls, 1, "the first call fails");
    }));
    caught(|| manager.run()).expect_err("the subscriber panics");
    log.say(manager.run_with_timeout(0));
    log.say(manager.subscriber_mut(id).map(|probe| probe.calls));
    log.lines()
}

panic_of_a_call {
    let log = Log::default();
    let mut manager = EventManager::<Probe>::new().expect("a manager");
    let endpoint = manager.remote_endpoint();
    let seen = log.clone();
    endpoint.fire(|_| panic!("the first call fails")).expect("fired");
    endpoint.fire(move |_| seen.say("second")).expect("fired");
    caught(|| manager.run()).expect_err("the call panics");
    log.say(manager.run_with_timeout(0));
    log.lines()
}

call_in_a_call {
    let log = Log::default();
    let mut manager = EventManager::<Probe>::new().expect("a manager");
    let endpoint = manager.remote_endpoint();
    let (seen, inner) = (log.clone(), endpoint.clone());
    endpoint
        .fire(move |_| {
            seen.say("outer");
            let also = seen.clone();
            inner.fire(move |_| also.say("inner")).expect("fired");
        })
        .expect("fired");
    log.say(manager.run());
    log.say(manager.run_with_timeout(0));
    log.lines()
}

number_that_changes_after_the_event {
    let (log, fds) = (Log::default(), [eventfd(1), eventfd(1)]);
    let mut manager = EventManager::new().expect("a manager");
    let watched = fds.each_ref().map(|fd| Events::with_data(fd, 1, EventSet::IN));
    let (seen, numbers) = (log.clone(), watched.map(|events| events.fd()));
    manager.add_subscriber(Probe::new(watched, move |_, events, ops| {
        seen.say(events.data());
        for fd in numbers {
            ops.modify(Events::with_data_raw(fd, 2, EventSet::IN)).expect("it is watched");
        }
    }));
    log.say(manager.run());
    log.lines()
}

calls_without_a_run {
    let log = Log::default();
    let manager = EventManager::<Probe>::new().expect("a manager");
    let endpoint = manager.remote_endpoint();
    for _ in 0..65_536 {
        endpoint.fire(|_| {}).expect("fired");
    }
    log.say(endpoint.fire(|_| {}));
    log.lines()
}
}
}

/// The rows of `docs/event-manager-interface.md` with a test.
mod differences {
    use super::{ours, theirs};

    #[track_caller]
    fn differ(theirs: Vec<String>, expected: &[&str], ours: Vec<String>, here: &[&str]) {
        assert_eq!(theirs, expected);
        assert_eq!(ours, here);
    }

    #[test]
    fn a_capacity_of_zero_is_invalid_at_once() {
        differ(
            theirs::without_capacity(),
            &["Ok(Err(Epoll(Error(22))))"],
            ours::without_capacity(),
            &["Err(InvalidCapacity)"],
        );
    }

    #[test]
    fn the_watch_of_a_closed_descriptor_ends() {
        differ(
            theirs::closed_descriptor(),
            &["Err(Epoll(Error(9)))", "Err(FdAlreadyRegistered)"],
            ours::closed_descriptor(),
            &["Ok(())", "Ok(())"],
        );
    }

    #[test]
    fn a_panic_costs_one_event() {
        differ(
            theirs::panic_of_a_subscriber(),
            &["Ok(0)", "Ok(1)"],
            ours::panic_of_a_subscriber(),
            &["Ok(1)", "Ok(2)"],
        );
    }

    #[test]
    fn a_panic_costs_one_call() {
        differ(
            theirs::panic_of_a_call(),
            &["Ok(0)"],
            ours::panic_of_a_call(),
            &["\"second\"", "Ok(1)"],
        );
    }

    #[test]
    fn a_call_that_a_call_makes_runs_in_the_next_run() {
        differ(
            theirs::call_in_a_call(),
            &["\"outer\"", "\"inner\"", "Ok(1)", "Ok(1)"],
            ours::call_in_a_call(),
            &["\"outer\"", "Ok(1)", "\"inner\"", "Ok(1)"],
        );
    }

    #[test]
    fn a_number_that_is_changed_is_that_of_fetched_events_too() {
        differ(
            theirs::number_that_changes_after_the_event(),
            &["1", "1", "Ok(2)"],
            ours::number_that_changes_after_the_event(),
            &["1", "2", "Ok(2)"],
        );
    }

    #[test]
    fn the_queue_of_calls_has_a_limit() {
        differ(
            theirs::calls_without_a_run(),
            &["Ok(())"],
            ours::calls_without_a_run(),
            &["Err(ChannelSend)"],
        );
    }
}
