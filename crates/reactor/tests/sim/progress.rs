//! The progress watch, in virtual time.

use std::time::Duration;

use windlass::{
    ProgressWatch, Turn, interest,
    sim::{SimFd, ThreadStep},
};

use crate::tools::{Log, calm};

const MS: Duration = Duration::from_millis(1);

#[test]
fn an_eventfd_that_is_never_read_is_found_within_a_hundred_turns() {
    let sim = calm();
    let found = Log::new();
    let noted = found.clone();
    let watch = ProgressWatch::new(100, move |stuck, mut turn: Turn<'_>| {
        noted.note((stuck.turns, stuck.name.as_deref().map(str::to_owned)));
        turn.stop();
    });
    let watch = watch.at_least(Duration::ZERO);
    let mut reactor = sim.builder().progress_watch(watch).build().unwrap();
    let queue = interest().read().with_fd(sim.eventfd(1).unwrap());
    let queue = queue.with_handler(|_: &mut SimFd| {}).with_name("queue");
    queue.register_into(&mut reactor).unwrap();
    reactor.run().unwrap();
    assert_eq!(found.take(), [(100, Some("queue".to_owned()))]);
    assert_eq!(reactor.stats().turns, 100);
}

/// The handler asks nothing of the reactor, and each of the last turns had an event. But the loop
/// slept in between.
#[test]
fn a_loop_that_sleeps_between_the_events_reports_nothing() {
    let sim = calm();
    let found = Log::new();
    let noted = found.clone();
    let watch = ProgressWatch::new(5, move |stuck, _| noted.note(stuck.turns));
    let watch = watch.at_least(Duration::ZERO);
    let mut reactor = sim.builder().progress_watch(watch).build().unwrap();
    let counter = sim.eventfd(0).unwrap();
    let handler = |fd: &mut SimFd| _ = fd.read(&mut [0; 8]);
    let reading = interest().read().with_fd(counter.clone()).with_handler(handler);
    reading.register_into(&mut reactor).unwrap();
    let stop = reactor.stop_handle();
    let mut writes = 0;
    sim.thread(&sim.host([10, 0, 0, 1].into()), move || {
        writes += 1;
        if writes > 100 {
            stop.stop();
            return ThreadStep::End;
        }
        counter.write(&1u64.to_ne_bytes()).unwrap();
        ThreadStep::After(MS)
    });
    reactor.run().unwrap();
    assert!(reactor.stats().events >= 100, "{:?}", reactor.stats());
    assert!(reactor.stats().turns <= reactor.stats().events + 2, "each turn had an event");
    assert_eq!(found.len(), 0);
}
