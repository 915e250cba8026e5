//! Each interest with real descriptors: level-triggered, edge-triggered, one-shot, exclusive,
//! wakeup, and empty.

use std::{
    io::Write,
    os::{
        fd::{AsFd, IntoRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
};

use rustix::event::epoll as raw;
use windlass::{AddReason, Event, Interest, Key, ModifyError, Reactor, Ready, Turn, interest};

use crate::{
    Build,
    bed::{
        Log, NOW, Numbered, Shared, close, drain, duplicate_from, fill, has, idle, own_numbers,
        pair, ready, ring, run_dry,
    },
};

/// Registers a descriptor whose handler records its events and reads nothing.
fn watch<Fd: AsFd + 'static>(
    reactor: &mut Reactor,
    interest: Interest,
    fd: Fd,
    log: &Log<Ready>,
) -> Key {
    let log = log.clone();
    interest
        .with_fd(fd)
        .with_handler(move |event: Event| log.note(event.ready()))
        .register_into(reactor)
        .unwrap()
}

fn a_level_triggered_condition_fires_for_as_long_as_it_lasts(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    watch(&mut reactor, interest().read(), fd.clone(), &log);
    for _ in 0..3 {
        assert_eq!(reactor.run_once(None).unwrap(), 1);
    }
    drain(&fd);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    assert_eq!(log.take(), [Ready::empty().read(); 3]);
}

fn an_edge_triggered_condition_fires_when_it_comes_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    watch(&mut reactor, interest().read().edge_triggered(), fd.clone(), &log);
    assert_eq!(run_dry(&mut reactor), 1);
    // It is not read, but every write is an edge.
    ring(&fd);
    ring(&fd);
    assert_eq!(run_dry(&mut reactor), 1, "edges that nobody fetched are one");
    ring(&fd);
    assert_eq!(run_dry(&mut reactor), 1);
    assert_eq!(log.len(), 3);
}

fn an_equal_change_arms_an_edge_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let wanted = interest().read().edge_triggered();
    let key = watch(&mut reactor, wanted, ready(), &log);
    assert_eq!(run_dry(&mut reactor), 1);
    reactor.modify(key, wanted).unwrap();
    assert_eq!(run_dry(&mut reactor), 1, "the readiness of now is reported");
    // The same from a handler: an edge-triggered change is not merged with another.
    let noted = log.clone();
    let kick = move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        noted.note(Ready::empty());
        turn.modify(key, wanted).unwrap();
    };
    interest()
        .read()
        .edge_triggered()
        .with_fd(ready())
        .with_handler(kick)
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(run_dry(&mut reactor), 2);
}

fn a_one_shot_fires_once_and_again_when_it_is_rearmed(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let key = watch(&mut reactor, interest().read().one_shot(), fd.clone(), &log);
    assert_eq!(run_dry(&mut reactor), 1);
    ring(&fd);
    assert_eq!(run_dry(&mut reactor), 0, "disabled");
    reactor.rearm(key).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
    reactor.modify(key, interest().read().one_shot()).unwrap();
    assert_eq!(run_dry(&mut reactor), 1, "a modify arms it as well");
    reactor.modify(key, interest().read()).unwrap();
    for _ in 0..2 {
        assert_eq!(reactor.run_once(None).unwrap(), 1, "level-triggered from now on");
    }
    drain(&fd);
    assert_eq!(run_dry(&mut reactor), 0);
}

fn a_one_shot_rearms_itself_in_its_handler(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut Shared, event: Event, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        noted.note(event.interest());
        turn.rearm(event.key()).unwrap();
    };
    let fd = ready();
    let wanted = interest().read().one_shot();
    wanted.with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    for _ in 0..3 {
        assert_eq!(run_dry(&mut reactor), 1);
        ring(&fd);
    }
    assert_eq!(log.take(), [wanted; 3]);
}

fn a_fired_one_shot_can_be_deleted_and_taken(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (a, b) = (ready(), ready());
    let key = watch(&mut reactor, interest().read().one_shot(), a.clone(), &log);
    let other = watch(&mut reactor, interest().read().one_shot(), b.clone(), &log);
    assert_eq!(run_dry(&mut reactor), 2);
    reactor.delete(key).unwrap();
    assert!(Rc::ptr_eq(&reactor.take_fd::<Shared>(other).unwrap(), &b));
    assert_eq!((Rc::strong_count(&a), reactor.stats().quarantined), (1, 0));
}

// A one-shot that is armed again while its event is in this batch fires twice: for that event, and
// for the new arming. A rebuild of the epoll set in between (rule 7) must not mix them up.
fn a_one_shot_armed_again_before_its_event_came_survives_a_rebuild(build: Build) {
    for rebuild in [false, true] {
        let mut reactor = build().quarantine_max(0).build().unwrap();
        let log = Log::new();
        let keys: Rc<std::cell::RefCell<Vec<Key>>> = Rc::default();
        for place in 0..2 {
            let (log, all) = (log.clone(), keys.clone());
            let handler = move |mut turn: Turn<'_, Reactor>| {
                if log.len() == 0 {
                    turn.rearm(all.borrow()[1 - place]).unwrap();
                }
                log.note(place);
            };
            let registration = interest().read().one_shot().with_fd(ready()).with_handler(handler);
            keys.borrow_mut().push(registration.register_into(&mut reactor).unwrap());
        }
        assert_eq!(reactor.run_once(None).unwrap(), 2);
        let second = log.take()[1];
        log.note(9);
        if rebuild {
            let file = idle();
            let number = duplicate_from(&file, own_numbers()).into_raw_fd();
            let key = watch(&mut reactor, interest().read(), Numbered(number), &Log::new());
            close(number);
            reactor.delete(key).unwrap();
        }
        assert_eq!(run_dry(&mut reactor), 1, "armed: {rebuild}");
        assert_eq!((log.take(), reactor.stats().rebuilds), (vec![9, second], u64::from(rebuild)));
    }
}

fn read_write_and_both(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut theirs) = pair();
    let key = watch(&mut reactor, interest().write(), ours, &log);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Ready::empty().write()]);
    reactor.modify(key, interest().read()).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    theirs.write_all(b"x").unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Ready::empty().read()], "only what was asked for");
    reactor.modify(key, interest().read().write()).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Ready::empty().read().write()], "one event for both");
}

fn a_full_stream_is_writable_again_when_the_peer_reads(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (mut ours, theirs) = pair();
    let sum = fill(&mut ours);
    watch(&mut reactor, interest().write(), ours, &log);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    let mut read = 0;
    let mut buffer = vec![0; 1 << 16];
    while read < sum {
        read += rustix::io::read(&theirs, &mut buffer).unwrap();
    }
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [Ready::empty().write()]);
}

fn the_two_ends_of_a_pipe(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    let input = watch(&mut reactor, interest().read(), reading, &log);
    let output = watch(&mut reactor, interest().write(), writing, &log);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [Ready::empty().write()]);
    // The writing end has an error when its reader is gone. The reading end has a hang-up when its
    // writer is gone.
    reactor.delete(input).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Ready::empty().write().error()]);
    reactor.delete(output).unwrap();
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    watch(&mut reactor, interest().read(), reading, &log);
    drop(writing);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Ready::empty().hangup()]);
}

fn hangup_and_error_come_unasked(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, theirs) = pair();
    watch(&mut reactor, interest().read(), ours, &log);
    drop(theirs);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Ready::empty().read().hangup()]);
    assert_eq!(reactor.run_once(None).unwrap(), 1, "for as long as it lasts");
}

// A loop with an empty interest must not spin because of a closed peer.
fn an_empty_interest_hears_of_a_closed_peer_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut theirs) = pair();
    watch(&mut reactor, interest(), ours, &log);
    theirs.write_all(b"x").unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0, "data is not what it asked for");
    drop(theirs);
    assert_eq!(run_dry(&mut reactor), 1);
    assert!(log.take()[0].has_hangup());
}

fn an_interest_that_became_empty_does_not_spin_either(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let (ours, theirs) = pair();
    let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
        noted.note(event.ready());
        if !event.interest().is_empty() {
            turn.modify(event.key(), interest()).unwrap();
        }
    };
    interest().read().with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
    drop(theirs);
    assert_eq!(run_dry(&mut reactor), 2, "the change reports it once more, and no more");
    assert!(log.take().iter().all(|ready| ready.has_hangup()));
}

fn an_interest_that_names_hangup_hears_of_it_as_long_as_it_lasts(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, theirs) = pair();
    watch(&mut reactor, interest().hangup().error(), ours, &log);
    drop(theirs);
    for _ in 0..3 {
        assert_eq!(reactor.run_once(None).unwrap(), 1);
    }
    assert_eq!(log.take(), [Ready::empty().hangup(); 3]);
}

fn read_hangup_tells_of_a_half_closed_peer(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, theirs) = pair();
    watch(&mut reactor, interest().read_hangup(), ours, &log);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(
        log.take(),
        [Ready::empty().read_hangup()],
        "the other direction is open: no hang-up"
    );
}

/// Another epoll set that watches one eventfd exclusively.
fn another_set_over(fd: &OwnedFd) -> OwnedFd {
    let set = raw::create(raw::CreateFlags::CLOEXEC).unwrap();
    let flags = raw::EventFlags::IN | raw::EventFlags::EXCLUSIVE;
    raw::add(&set, fd, raw::EventData::new_u64(0), flags).unwrap();
    set
}

// asio #902: an exclusive registration that can be modified.
fn an_exclusive_registration_fires_and_can_be_modified(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let _other = another_set_over(&fd);
    let key = watch(&mut reactor, interest().read().exclusive(), fd.clone(), &log);
    ring(&fd);
    assert_eq!(
        reactor.run_once(NOW).unwrap(),
        1,
        "nobody waits in the other set, so this one hears of it"
    );
    drain(&fd);
    reactor.modify(key, interest().write().exclusive()).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 1, "an eventfd takes writes");
    reactor.modify(key, interest().read()).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    reactor.modify(key, interest().read().exclusive()).unwrap();
    ring(&fd);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1, "and back to exclusive");
    assert_eq!(log.take(), [Ready::empty().read(), Ready::empty().write(), Ready::empty().read()]);
    reactor.delete(key).unwrap();
    assert_eq!((run_dry(&mut reactor), reactor.stats().quarantined), (0, 0));
}

fn an_exclusive_registration_modifies_itself_in_its_handler(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut Shared, event: Event, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        noted.note(event.interest().has_exclusive());
        let next = interest().read();
        turn.modify(
            event.key(),
            if event.interest().has_exclusive() { next } else { next.exclusive() },
        )
        .unwrap();
    };
    let fd = ready();
    interest()
        .read()
        .exclusive()
        .with_fd(fd.clone())
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    for _ in 0..4 {
        assert_eq!(run_dry(&mut reactor), 1);
        ring(&fd);
    }
    assert_eq!(log.take(), [true, false, true, false]);
}

fn what_the_kernel_does_not_take_together_with_exclusive_is_refused(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let exclusive = interest().read().exclusive();
    for bad in [exclusive.one_shot(), exclusive.priority(), exclusive.read_hangup()] {
        let error =
            bad.with_fd(idle()).with_handler(|| {}).register_into(&mut reactor).unwrap_err();
        assert_eq!(error, AddReason::InvalidInterest, "{bad:?}");
    }
    let fd = ready();
    let key = watch(&mut reactor, interest().read(), fd, &log);
    assert_eq!(reactor.modify(key, exclusive.one_shot()), Err(ModifyError::InvalidInterest));
    assert_eq!(reactor.run_once(NOW).unwrap(), 1, "the old interest stays in force");
    for good in [
        exclusive.write(),
        exclusive.edge_triggered(),
        exclusive.hangup().error(),
        exclusive.wakeup(),
    ] {
        reactor.modify(key, good).unwrap();
    }
}

fn wakeup_is_taken_with_or_without_the_capability(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let wanted = interest().read().wakeup();
    let key = watch(&mut reactor, wanted, ready(), &log);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    reactor.modify(key, wanted.one_shot()).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
}

fn a_registration_may_change_its_manner_again_and_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let key = watch(&mut reactor, interest().read(), fd.clone(), &log);
    let read = interest().read();
    for manner in [
        read.edge_triggered(),
        read.one_shot(),
        read.edge_triggered().one_shot(),
        interest(),
        read.exclusive(),
    ] {
        if !has(&reactor, manner) {
            assert_eq!(reactor.modify(key, manner), Err(ModifyError::Unsupported));
            continue;
        }
        reactor.modify(key, manner).unwrap();
        log.take();
        let fires = reactor.run_once(NOW).unwrap();
        assert_eq!(fires, usize::from(manner.has_read()), "{manner:?}");
        assert_eq!(log.len(), fires);
    }
    reactor.modify(key, read).unwrap();
    drain(&fd);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

// The documentation of `Backend` says which backend supports which manner.
fn a_manner_that_the_backend_does_not_have_is_refused(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let read = interest().read();
    let manners = [
        read.edge_triggered(),
        interest().edge_triggered(),
        read.exclusive(),
        read.edge_triggered().one_shot(),
    ];
    for manner in manners {
        assert_eq!(reactor.supports(manner), has(&reactor, manner));
        let expected = if has(&reactor, manner) { Ok(()) } else { Err(AddReason::Unsupported) };
        let added = manner.with_fd(ready()).with_handler(|| {}).register_into(&mut reactor);
        assert_eq!(added.map(|key| reactor.delete(key).unwrap()), expected, "{manner:?}");
        let key = watch(&mut reactor, read, fd.clone(), &log);
        let modified = reactor.modify(key, manner);
        assert_eq!(modified, expected.map_err(|_| ModifyError::Unsupported), "{manner:?}");
        if modified.is_err() {
            assert_eq!(
                (reactor.run_once(NOW).unwrap(), log.take().len()),
                (1, 1),
                "the old interest stays in force"
            );
        }
        reactor.delete(key).unwrap();
    }
    let has_edges = has(&reactor, read.edge_triggered());
    assert_eq!(has_edges, reactor.backend() != windlass::Backend::Poll);
}

fn a_change_of_a_descriptor_that_was_closed_is_refused_by_the_kernel(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _theirs) = pair();
    // The subscriber does not own the number, so the test may close it.
    let number = duplicate_from(ours, own_numbers()).into_raw_fd();
    let key = watch(&mut reactor, interest().read(), Numbered(number), &log);
    close(number);
    assert!(matches!(reactor.modify(key, interest().write()), Err(ModifyError::Os(_))));
    reactor.delete(key).unwrap();
    assert_eq!((run_dry(&mut reactor), log.len()), (0, 0));
}

fn a_merged_change_that_the_kernel_refuses_comes_as_an_error_event(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _theirs) = pair();
    let number = duplicate_from(ours, own_numbers()).into_raw_fd();
    let key = watch(&mut reactor, interest().read(), Numbered(number), &log);
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        close(number);
        turn.modify(key, interest().write())
            .expect("the key is good, and the kernel is asked later");
    };
    interest().read().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(
        reactor.run_once(None).unwrap(),
        1,
        "the error does not wait for something else to come"
    );
    assert_eq!(log.take(), [Ready::empty().error()]);
    assert_eq!(run_dry(&mut reactor), 0, "once");
    reactor.delete(key).unwrap();
}

fn spurious_is_nothing_to_a_stream_that_is_read_by_two(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut theirs) = pair();
    let twin = ours.try_clone().unwrap();
    for fd in [ours, twin] {
        let log = log.clone();
        let handler = move |stream: &mut UnixStream| {
            let mut buffer = [0; 8];
            log.note(std::io::Read::read(stream, &mut buffer).map_err(|e| e.kind()));
        };
        interest().read().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    theirs.write_all(b"x").unwrap();
    assert_eq!(run_dry(&mut reactor), 2);
    assert_eq!(
        log.take(),
        [Ok(1), Err(std::io::ErrorKind::WouldBlock)],
        "the event was fetched before the first read"
    );
}

scenarios! {
    a_level_triggered_condition_fires_for_as_long_as_it_lasts,
    an_edge_triggered_condition_fires_when_it_comes_again
        except [poll "poll(2) tells of states, not of changes"],
    an_equal_change_arms_an_edge_again except [poll "poll(2) tells of states, not of changes"],
    a_one_shot_fires_once_and_again_when_it_is_rearmed,
    a_one_shot_rearms_itself_in_its_handler,
    a_fired_one_shot_can_be_deleted_and_taken,
    #[cfg_attr(miri, ignore = "Miri's epoll forgets what is closed while a duplicate lives")]
    a_one_shot_armed_again_before_its_event_came_survives_a_rebuild except [
        poll "poll(2) keeps no state, so nothing is rebuilt",
        uring "a ring has no stale entries, so nothing is rebuilt"
    ],
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    read_write_and_both,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_full_stream_is_writable_again_when_the_peer_reads,
    #[cfg_attr(miri, ignore = "Miri's pipes hang up otherwise")]
    the_two_ends_of_a_pipe,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    hangup_and_error_come_unasked,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    an_empty_interest_hears_of_a_closed_peer_once,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    an_interest_that_became_empty_does_not_spin_either,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    an_interest_that_names_hangup_hears_of_it_as_long_as_it_lasts,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    read_hangup_tells_of_a_half_closed_peer,
    #[cfg_attr(miri, ignore = "Miri's epoll knows no exclusive")]
    an_exclusive_registration_fires_and_can_be_modified
        except [poll "all waiters of poll(2) are woken"],
    #[cfg_attr(miri, ignore = "Miri's epoll knows no exclusive")]
    an_exclusive_registration_modifies_itself_in_its_handler
        except [poll "all waiters of poll(2) are woken"],
    #[cfg_attr(miri, ignore = "Miri's epoll knows no exclusive")]
    what_the_kernel_does_not_take_together_with_exclusive_is_refused
        except [poll "all waiters of poll(2) are woken"],
    #[cfg_attr(miri, ignore = "Miri's epoll knows no wakeup")]
    wakeup_is_taken_with_or_without_the_capability,
    #[cfg_attr(miri, ignore = "Miri's epoll knows no exclusive")]
    a_manner_that_the_backend_does_not_have_is_refused,
    a_registration_may_change_its_manner_again_and_again,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_change_of_a_descriptor_that_was_closed_is_refused_by_the_kernel except [
        uring "a ring gets changes when the next wait begins; the error is an event then"
    ],
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_merged_change_that_the_kernel_refuses_comes_as_an_error_event,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    spurious_is_nothing_to_a_stream_that_is_read_by_two,
}
