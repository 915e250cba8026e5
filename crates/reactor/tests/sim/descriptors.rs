//! Handlers of simulated descriptors, and signals.

use std::{sync::Arc, time::Duration};

use windlass::{
    Event, Group, Ready, RegistrationKind, Schedule, Signal, SignalSet, Turn, interest,
    sim::{Faults, SimFd, ThreadStep},
};
use windlass_flow::{Bounds, Latch, mailbox};
use windlass_sim::{RingRequest, mask};

use crate::tools::{Log, address, again, calm};

#[test]
fn an_eventfd_calls_its_handler() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (counter, log) = (sim.eventfd(0).unwrap(), Log::new());
    let noted = log.clone();
    let handler = move |fd: &mut SimFd, event: Event| {
        let mut count = [0; 8];
        assert_eq!(fd.read(&mut count).unwrap(), 8);
        noted.note((event.has_read(), u64::from_ne_bytes(count)));
    };
    let key = interest()
        .read()
        .with_fd(counter.clone())
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    counter.write(&2u64.to_ne_bytes()).unwrap();
    counter.write(&3u64.to_ne_bytes()).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [(true, 5)]);
    reactor.delete(key).unwrap();
    counter.write(&1u64.to_ne_bytes()).unwrap();
    assert_eq!(reactor.run_once(std::time::Duration::from_secs(1)).unwrap(), 0);
    assert_eq!(log.len(), 0, "no handler after its deletion");
}

/// A request of a ring keeps the object of a closed descriptor, and no set may keep the address of
/// its cell with it (rule 2 of the core).
#[test]
fn a_closed_descriptor_that_a_request_holds_is_in_no_set() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (counter, log) = (sim.eventfd(1).unwrap(), Log::new());
    let noted = log.clone();
    let handler = move |_: &mut SimFd| noted.note("called");
    let key = interest()
        .read()
        .with_fd(counter)
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    let kernel = sim.kernel().clone();
    let fd = (0..64).find_map(|slot| kernel.fd_at(slot)).expect("the eventfd");
    let actor = kernel.actor(kernel.host([192, 0, 2, 9].into()), "other");
    let ring = kernel.ring(actor, 8);
    let poll = RingRequest::Poll { fd, mask: mask::PRI, multishot: false };
    ring.submit(1, poll);
    kernel.close(fd).unwrap();
    reactor.delete(key).unwrap();
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 0);
    assert_eq!(log.len(), 0);
}

#[test]
fn a_closed_descriptor_watches_nothing_that_has_its_place() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let closed = sim.eventfd(1).unwrap();
    let kernel = sim.kernel();
    let fd = (0..64).find_map(|slot| kernel.fd_at(slot)).expect("the eventfd");
    kernel.close(fd).unwrap();
    let _other = sim.eventfd(1).unwrap();
    assert!(kernel.fd_at(fd.slot()).is_some_and(|other| other != fd), "the slot is used again");
    let interest = interest().read().with_fd(closed).with_handler(|_: &mut SimFd| {});
    let error = interest.register_into(&mut reactor).unwrap_err();
    assert_eq!(error, windlass::AddReason::BadDescriptor);
}

#[test]
fn modes_of_interest_are_those_of_the_kernel() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    let counter = sim.eventfd(1).unwrap();
    let mut keys = Vec::new();
    for (name, interest) in [
        ("level", interest().read()),
        ("edge", interest().read().edge_triggered()),
        ("once", interest().read().one_shot()),
    ] {
        let (noted, fd) = (log.clone(), sim.eventfd(1).unwrap());
        let handler = move |_: &mut SimFd| noted.note(name);
        keys.push(interest.with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap());
    }
    let again = interest().read().with_fd(counter.clone()).with_handler(|_: &mut SimFd| {});
    again.register_into(&mut reactor).unwrap();
    let twice = interest().read().with_fd(counter).with_handler(|_: &mut SimFd| {});
    assert_eq!(twice.register_into(&mut reactor).unwrap_err(), windlass::AddReason::AlreadyExists);
    for _ in 0..3 {
        reactor.run_once(None).unwrap();
    }
    let mut seen = log.take();
    seen.sort_unstable();
    assert_eq!(seen, ["edge", "level", "level", "level", "once"]);
    for key in &keys {
        reactor.rearm(*key).unwrap();
    }
    reactor.run_once(None).unwrap();
    let mut seen = log.take();
    seen.sort_unstable();
    assert_eq!(seen, ["edge", "level", "once"]);
}

#[test]
fn a_pipe_tells_its_end() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (reader, writer) = sim.pipe().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut SimFd, event: Event, mut turn: Turn<'_, _>| {
        let mut bytes = [0; 16];
        match fd.read(&mut bytes) {
            Ok(0) => {
                noted.note(Vec::new());
                turn.delete(event.key()).unwrap();
                turn.stop();
            }
            Ok(count) => noted.note(bytes[..count].to_vec()),
            Err(error) => panic!("{error}"),
        }
    };
    interest().read().with_fd(reader).with_handler(handler).register_into(&mut reactor).unwrap();
    let host = sim.host([10, 0, 0, 1].into());
    let mut writer = Some(writer);
    sim.thread(&host, move || match writer.take() {
        Some(end) => {
            end.write(b"bytes").unwrap();
            writer = None;
            ThreadStep::End
        }
        None => ThreadStep::End,
    });
    reactor.run().unwrap();
    assert_eq!(log.take(), [b"bytes".to_vec(), Vec::new()]);
}

#[test]
fn datagrams_reach_another_host() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (here, there) = (sim.host([10, 0, 0, 1].into()), sim.host([10, 0, 0, 2].into()));
    let socket = sim.datagram(&here, address("10.0.0.1:53")).unwrap();
    let peer = sim.datagram(&there, address("10.0.0.2:53")).unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut SimFd, mut turn: Turn<'_, _>| {
        let mut bytes = [0; 16];
        let (count, from) = fd.recv_from(&mut bytes).unwrap();
        noted.note((bytes[..count].to_vec(), from));
        turn.stop();
    };
    interest().read().with_fd(socket).with_handler(handler).register_into(&mut reactor).unwrap();
    peer.send_to(b"hello", address("10.0.0.1:53")).unwrap();
    reactor.run().unwrap();
    assert_eq!(log.take(), [(b"hello".to_vec(), address("10.0.0.2:53"))]);
}

/// The mailbox of a handler: threads push at every point, and no wake is lost.
#[test]
fn a_handler_drains_its_mailbox_after_each_wake() {
    windlass::sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let latch = Arc::new(again(windlass::latch));
        let (sender, mut inbox) = mailbox(Bounds::items(8), Arc::clone(&latch));
        let drained = Log::new();
        let noted = drained.clone();
        latch.rearm();
        let handler = move |latch: &mut Arc<Latch>| {
            latch.awake();
            inbox.drain(3).for_each(|item| noted.note(item));
            latch.rearm();
        };
        let edge = interest().read().edge_triggered();
        edge.with_fd(Arc::clone(&latch)).with_handler(handler).register_into(&mut reactor).unwrap();
        sim.spawn(reactor);
        let host = sim.host([10, 0, 0, 1].into());
        for thread in 0..3 {
            let (sender, mut next) = (sender.clone(), 0);
            sim.thread(&host, move || match sender.try_push((thread, next)) {
                Ok(()) if next == 20 => ThreadStep::End,
                Ok(()) => {
                    next += 1;
                    ThreadStep::Again
                }
                Err(_) => ThreadStep::After(Duration::from_micros(7)),
            });
        }
        sim.run_until(|| drained.len() == 63).unwrap();
        let drained = drained.take();
        for thread in 0..3 {
            let of_thread = drained.iter().filter(|item| item.0 == thread).map(|item| item.1);
            assert!(of_thread.eq(0..=20));
        }
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

#[test]
fn a_signal_is_raised_at_one_host() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let signals = SignalSet::new([Signal::TERM, Signal::HUP]).unwrap();
    let handler = move |signals: &mut SignalSet, mut turn: Turn<'_, _>| {
        for signal in signals.read().unwrap().iter() {
            noted.note(signal);
            if signal == Signal::TERM {
                turn.stop();
            }
        }
    };
    interest().read().with_fd(signals).with_handler(handler).register_into(&mut reactor).unwrap();
    let (here, there) = (sim.host([10, 0, 0, 1].into()), sim.host([10, 0, 0, 2].into()));
    sim.raise(&there, Signal::TERM);
    sim.raise(&here, Signal::INT);
    reactor.run_once(std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(log.len(), 0);
    sim.raise(&here, Signal::HUP);
    sim.raise(&here, Signal::HUP);
    sim.raise(&here, Signal::TERM);
    reactor.run().unwrap();
    assert_eq!(log.take(), [Signal::HUP, Signal::TERM]);
}

/// The virtual time of a turn with a kick does not go on to the next timer.
#[test]
fn a_kick_is_told_in_a_turn_that_takes_no_time() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (log, noted) = (Log::new(), Log::new());
    let seen = noted.clone();
    let once = interest().read().write().one_shot();
    let key = once
        .with_fd(sim.eventfd(0).unwrap())
        .with_handler(move |event: Event| seen.note(event.ready()))
        .register_into(&mut reactor)
        .unwrap();
    let timer = log.clone();
    reactor.after(Duration::from_secs(1), move || timer.note("timer")).unwrap();
    let read = Ready::empty().read();
    reactor.kick(key, read).unwrap();
    let begin = sim.now();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!((noted.take(), log.len()), (vec![read], 0));
    assert!(sim.now() - begin < Duration::from_millis(1));
    // It was writable all the time: the kick was the one event.
    assert_eq!((reactor.run_once(None).unwrap(), log.len()), (0, 1));
    reactor.rearm(key).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(noted.take(), [Ready::empty().write()]);
}

/// What is ready in a paused group does not keep the virtual time from going on.
#[test]
fn a_paused_group_waits_for_its_resume() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (counter, log) = (sim.eventfd(1).unwrap(), Log::new());
    let group = Group::new(log.clone())
        .fd(interest().read(), counter, |log: &mut Log<&str>, fd: &mut SimFd| {
            fd.read(&mut [0; 8]).unwrap();
            log.note("read");
        })
        .after(Duration::from_secs(1), |log: &mut Log<&str>| log.note("timer"));
    let key = group.register_into(&mut reactor).unwrap().group;
    reactor.pause_group(key).unwrap();
    reactor
        .after(Duration::from_secs(5), move |mut turn: Turn<'_>| turn.resume_group(key).unwrap())
        .unwrap();
    let begin = sim.now();
    assert_eq!((reactor.run_once(None).unwrap(), log.len()), (0, 0));
    assert!(sim.now() - begin >= Duration::from_secs(5));
    reactor.run_once(None).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take().len(), 2);
    assert!(sim.now() - begin < Duration::from_secs(6));
}

#[test]
fn registrations_are_named_and_listed_by_their_simulated_numbers() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let counter = sim.eventfd(0).unwrap();
    let queue = interest().read().with_fd(counter).with_handler(|_: &mut SimFd| {});
    let queue = queue.with_name("queue").register_into(&mut reactor).unwrap();
    let timer = Schedule::After(Duration::from_secs(1)).with_handler(|| {}).with_name("timer");
    let timer = timer.register_into(&mut reactor).unwrap();
    let said: Vec<_> = reactor
        .registrations()
        .map(|one| (one.key, one.kind, one.fd.is_some(), one.name))
        .collect();
    assert_eq!(
        said,
        [
            (queue, RegistrationKind::Descriptor, true, Some("queue")),
            (timer, RegistrationKind::Timer, false, Some("timer")),
        ]
    );
    reactor.remove(queue).unwrap();
    assert_eq!(reactor.registrations().count(), 1);
}
