//! Adding and deleting: rejected registrations, returned values, and valid keys.

use std::{
    cell::Cell,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    rc::Rc,
};

use windlass::{
    AddReason, Event, Interest, Key, ModifyError, NotFound, Reactor, Ready, Subscriber, Turn,
    interest,
};

use crate::{
    Build,
    bed::{
        Log, NOW, Numbered, Shared, counter, drain, duplicate_from, edge, idle, noting,
        own_numbers, readable, ready, ring, run_dry, slot,
    },
};

/// A hand-written subscriber.
struct ByHand {
    fd: Shared,
    interest: Interest,
    log: Log<Ready>,
}

impl Subscriber for ByHand {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    fn handle(&mut self, event: Event, _: Turn<'_>) {
        drain(&self.fd);
        self.log.note(event.ready());
    }
}

fn a_registered_descriptor_is_called_for_what_it_is_ready_for(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let key =
        reactor.add(ByHand { fd: fd.clone(), interest: readable(), log: log.clone() }).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    ring(&fd);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [Ready::empty().read()]);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0, "the handler has drained it");
    reactor.delete(key).unwrap();
    ring(&fd);
    assert_eq!((run_dry(&mut reactor), log.len()), (0, 0), "deleted means silent");
}

// eventp: duplicate fd. polling: double insert.
fn a_number_that_is_registered_is_refused_and_its_subscriber_comes_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let (fd, log) = (idle(), Log::new());
    let first = noting(&mut reactor, &fd, &log, "first");
    let second = ByHand { fd: fd.clone(), interest: readable(), log: Log::new() };
    let error = reactor.try_add(second).unwrap_err();
    assert_eq!(error.reason, AddReason::AlreadyExists);
    assert_eq!(io::Error::from(error.reason).kind(), io::ErrorKind::AlreadyExists);
    assert!(Rc::ptr_eq(&error.subscriber.fd, &fd), "the very subscriber comes back");

    let error = readable()
        .with_fd(fd.clone())
        .with_handler(|| {})
        .try_register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(error.reason, AddReason::AlreadyExists);
    let (was, theirs, _) = error.subscriber.into_parts();
    assert_eq!(was, readable());
    assert!(Rc::ptr_eq(&theirs, &fd));

    ring(&fd);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), ["first"], "the first registration is unharmed");
    reactor.delete(first).unwrap();
    reactor.add(error_free(&fd)).expect("the number is free again");
}

fn error_free(fd: &Shared) -> ByHand {
    ByHand { fd: fd.clone(), interest: readable(), log: Log::new() }
}

// Two numbers of one file are two registrations.
fn two_numbers_of_one_file_both_fire(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let a = ready();
    let b = Rc::new(rustix::io::dup(&a).unwrap());
    for (fd, name) in [(&a, 'a'), (&b, 'b')] {
        let log = log.clone();
        let handler = move || log.note(name);
        readable().with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    assert_eq!(reactor.run_once(NOW).unwrap(), 2);
    let mut names = log.take();
    names.sort_unstable();
    assert_eq!(names, ['a', 'b']);
}

// eventp: unknown fd.
fn a_descriptor_that_is_not_open_is_refused(build: Build) {
    let mut reactor = build().build().unwrap();
    // No process opens a number as large as this.
    let error = readable()
        .with_fd(Numbered(0x7fff_0000))
        .with_handler(|| {})
        .register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(error, AddReason::BadDescriptor);
    assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::EBADF));
    assert_eq!(reactor.stats().subscribers, 0);
}

fn a_regular_file_cannot_be_polled(build: Build) {
    let mut reactor = build().build().unwrap();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let error =
        readable().with_fd(file).with_handler(|| {}).try_register_into(&mut reactor).unwrap_err();
    assert_eq!(error.reason, AddReason::NotPollable);
    let (_, file, _) = error.subscriber.into_parts();
    assert!(file.metadata().unwrap().len() > 0, "the file comes back open");
}

fn keys_that_name_nothing_are_not_found(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let stale = noting(&mut reactor, &fd, &log, 1);
    reactor.delete(stale).unwrap();
    let alive = noting(&mut reactor, &fd, &log, 2);
    assert_ne!(stale, alive, "a key never comes again");
    let timer = reactor.after(std::time::Duration::from_secs(3600), || {}).unwrap();
    let mut wrong = vec![stale, timer];
    // A live key with one bit flipped, and random numbers.
    wrong.extend((0..64).map(|bit| Key::from_bits(alive.to_bits() ^ (1 << bit))));
    wrong.extend([0, 1, u64::MAX, u64::MAX >> 1, 1 << 63, 0x5eed].map(Key::from_bits));
    for key in wrong {
        if key == alive {
            continue;
        }
        assert_eq!(reactor.delete(key), Err(NotFound), "{key:?}");
        assert_eq!(reactor.modify(key, interest().read()), Err(ModifyError::NotFound), "{key:?}");
        assert_eq!(reactor.rearm(key), Err(ModifyError::NotFound), "{key:?}");
        assert_eq!(reactor.take_boxed(key).err(), Some(windlass::TakeError::NotFound), "{key:?}");
    }
    assert_eq!(reactor.cancel(alive), Err(NotFound), "a descriptor's key is no timer's");
    ring(&fd);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), [2]);
    reactor.cancel(timer).unwrap();
}

fn a_key_of_another_reactor_is_not_found(build: Build) {
    let (mut ours, mut theirs) = (build().build().unwrap(), build().build().unwrap());
    let log = Log::new();
    let foreign = noting(&mut theirs, &idle(), &log, ());
    let own = noting(&mut ours, &idle(), &log, ());
    assert_ne!(foreign, own);
    assert_eq!(ours.delete(foreign), Err(NotFound));
    assert_eq!(ours.stats().subscribers, 1);
    theirs.delete(foreign).unwrap();
}

fn a_key_survives_the_way_through_a_number(build: Build) {
    let mut reactor = build().build().unwrap();
    let key = noting(&mut reactor, &idle(), &Log::new(), ());
    assert_eq!(Key::from_bits(key.to_bits()), key);
    reactor.delete(Key::from_bits(key.to_bits())).unwrap();
}

fn the_event_carries_the_key_and_the_interest(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let wanted = edge(&reactor, interest().read());
    let key = wanted
        .with_fd(ready())
        .with_handler({
            let log = log.clone();
            move |interest: Interest, event: Event| {
                log.note((event.key(), event.interest(), interest, event.ready()))
            }
        })
        .register_into(&mut reactor)
        .unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), [(key, wanted, wanted, Ready::empty().read())]);
}

fn the_limit_of_subscribers_is_kept_and_a_deletion_makes_room(build: Build) {
    let mut reactor = build().subscribers_max(2).build().unwrap();
    let log = Log::new();
    let (a, b, c) = (ready(), ready(), ready());
    let key = noting(&mut reactor, &a, &log, 'a');
    noting(&mut reactor, &b, &log, 'b');
    let error =
        readable().with_fd(c.clone()).with_handler(|| {}).register_into(&mut reactor).unwrap_err();
    assert_eq!(error, AddReason::LimitReached);
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::QuotaExceeded);
    reactor.delete(key).unwrap();
    noting(&mut reactor, &c, &log, 'c');
    run_dry(&mut reactor);
    let mut names = log.take();
    names.sort_unstable();
    assert_eq!(names, ['b', 'c']);
}

// mio: dropping a source cancels its interest.
fn deleting_closes_the_descriptor_and_leaves_nothing_behind(build: Build) {
    let mut reactor = build().build().unwrap();
    let owned = duplicate_from(counter(1), own_numbers());
    let number = owned.as_raw_fd();
    let key = readable().with_fd(owned).with_handler(|| {}).register_into(&mut reactor).unwrap();
    reactor.delete(key).unwrap();
    assert_eq!(
        rustix::io::fcntl_getfd(Numbered(number)),
        Err(rustix::io::Errno::BADF),
        "closed by the deletion"
    );
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    assert_eq!(reactor.stats().quarantined, 0);
}

// event-manager: reuse of a descriptor number.
fn a_number_that_comes_again_belongs_to_the_new_registration(build: Build) {
    let from = own_numbers();
    let mut first = None;
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let mut keys = Vec::new();
    for round in 0..5 {
        let owned = Rc::new(duplicate_from(counter(1), from));
        let number = owned.as_raw_fd();
        assert_eq!(*first.get_or_insert(number), number, "the number comes again");
        let key = noting(&mut reactor, &owned, &log, round);
        drop(owned);
        assert_eq!(reactor.run_once(NOW).unwrap(), 1);
        reactor.delete(key).unwrap();
        keys.push(key);
    }
    assert_eq!(log.take(), [0, 1, 2, 3, 4]);
    keys.sort_unstable_by_key(|key| key.to_bits());
    keys.dedup();
    assert_eq!(keys.len(), 5, "each registration has a key of its own");
}

// polling: many connections.
fn many_registrations_are_all_served_and_deleted_in_any_order(build: Build) {
    const COUNT: usize = if cfg!(miri) { 20 } else { 200 };
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fds: Vec<Shared> = (0..COUNT).map(|_| idle()).collect();
    let keys: Vec<Key> =
        fds.iter().enumerate().map(|(i, fd)| noting(&mut reactor, fd, &log, i)).collect();
    // Every second one, from the end.
    for fd in fds.iter().rev().step_by(2) {
        ring(fd);
    }
    assert_eq!(run_dry(&mut reactor), COUNT / 2);
    let mut served = log.take();
    served.sort_unstable();
    assert_eq!(served, (1..COUNT).step_by(2).collect::<Vec<_>>());
    // A stride that is coprime to the count visits each index once.
    for i in (0..COUNT).map(|i| i * 7 % COUNT) {
        ring(&fds[i]);
        reactor.delete(keys[i]).unwrap();
        assert_eq!(reactor.delete(keys[i]), Err(NotFound));
    }
    assert_eq!((run_dry(&mut reactor), log.len(), reactor.stats().subscribers), (0, 0, 0));
}

// eventp: zero-sized subscribers.
fn a_handler_without_state_and_a_subscriber_without_size_work(build: Build) {
    /// The number of its descriptor is stored elsewhere.
    struct Nothing;
    thread_local! {
        static NUMBER: Cell<i32> = const { Cell::new(-1) };
    }
    impl AsFd for Nothing {
        fn as_fd(&self) -> BorrowedFd<'_> {
            // SAFETY: the test keeps the number open throughout the life of the reactor.
            unsafe { BorrowedFd::borrow_raw(NUMBER.get()) }
        }
    }
    impl Subscriber for Nothing {
        fn fd(&self) -> BorrowedFd<'_> {
            self.as_fd()
        }
        fn interest(&self) -> Interest {
            interest().read()
        }
        fn handle(&mut self, event: Event, mut turn: Turn<'_>) {
            drain(&*self);
            turn.delete(event.key()).unwrap();
        }
    }
    const { assert!(size_of::<Nothing>() == 0) };
    let open = counter(1);
    NUMBER.set(open.as_raw_fd());
    let mut reactor = build().build().unwrap();
    reactor.add(Nothing).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
    assert_eq!(drain(&open), 0, "the handler has read it");
    assert_eq!(reactor.stats().subscribers, 0);
    ring(&open);
    readable().with_fd(Nothing).with_handler(drain_nothing).register_into(&mut reactor).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);

    fn drain_nothing(nothing: &mut Nothing) {
        drain(&*nothing);
    }
}

// eventp: alignments 8 to 64.
fn values_of_every_alignment_stand_where_they_must(build: Build) {
    macro_rules! aligned {
        ($reactor:ident, $log:ident, $($align:literal)*) => { $({
            #[repr(align($align))]
            struct Aligned(Shared, [u8; 3]);
            impl AsFd for Aligned {
                fn as_fd(&self) -> BorrowedFd<'_> { self.0.as_fd() }
            }
            let log = $log.clone();
            let state = Aligned(ready(), [$align; 3]);
            let handler = move |fd: &mut Aligned| {
                assert_eq!((&raw const *fd).addr() % $align, 0);
                assert_eq!(fd.1, [$align; 3]);
                drain(&*fd);
                log.note($align);
            };
            readable().with_fd(state).with_handler(handler).register_into(&mut $reactor).unwrap();
        })* };
    }
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    aligned!(reactor, log, 2 4 8 16 32 64 128);
    run_dry(&mut reactor);
    let mut seen = log.take();
    seen.sort_unstable();
    assert_eq!(seen, [2u8, 4, 8, 16, 32, 64, 128]);
}

fn a_handler_registers_with_its_turn_in_both_orders(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, keys) = (Log::new(), slot());
    let (a, b) = (ready(), ready());
    readable()
        .with_handler({
            let (log, keys) = (log.clone(), keys.clone());
            move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
                drain(fd);
                let first = readable().with_fd(a.clone()).with_handler({
                    let log = log.clone();
                    move |fd: &mut Shared| {
                        drain(fd);
                        log.note('a');
                    }
                });
                let a = first.register_into(&mut turn).unwrap();
                let second = ByHand { fd: b.clone(), interest: readable(), log: Log::new() };
                keys.set(Some((a, turn.add(second).unwrap())));
            }
        })
        .with_fd(ready())
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(run_dry(&mut reactor), 3);
    assert_eq!(log.take(), ['a']);
    let (a, b) = keys.take().unwrap();
    reactor.delete(a).unwrap();
    reactor.take::<ByHand>(b).unwrap();
}

fn the_same_descriptor_is_refused_from_a_handler_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let handler = {
        let (log, fd) = (log.clone(), fd.clone());
        move |mut turn: Turn<'_, _>| {
            drain(&fd);
            log.note(turn.add(error_free(&fd)).unwrap_err());
        }
    };
    readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [AddReason::AlreadyExists]);
}

scenarios! {
    a_registered_descriptor_is_called_for_what_it_is_ready_for,
    a_number_that_is_registered_is_refused_and_its_subscriber_comes_back,
    two_numbers_of_one_file_both_fire,
    a_descriptor_that_is_not_open_is_refused,
    #[cfg_attr(miri, ignore = "Miri's epoll knows no regular files")]
    a_regular_file_cannot_be_polled,
    keys_that_name_nothing_are_not_found,
    a_key_of_another_reactor_is_not_found,
    a_key_survives_the_way_through_a_number,
    the_event_carries_the_key_and_the_interest,
    the_limit_of_subscribers_is_kept_and_a_deletion_makes_room,
    deleting_closes_the_descriptor_and_leaves_nothing_behind,
    a_number_that_comes_again_belongs_to_the_new_registration,
    many_registrations_are_all_served_and_deleted_in_any_order,
    a_handler_without_state_and_a_subscriber_without_size_work,
    values_of_every_alignment_stand_where_they_must,
    a_handler_registers_with_its_turn_in_both_orders,
    the_same_descriptor_is_refused_from_a_handler_too,
}
