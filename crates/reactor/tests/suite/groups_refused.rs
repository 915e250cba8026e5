//! Rejected groups: all parts are returned, and nothing stays registered.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
    time::Duration,
};

use windlass::{AddReason, Group, GroupReason, Reactor, TimerReason, Turn};

use crate::{
    Build,
    bed::{Log, NOW, Noted, Numbered, Shared, drain, noting, panic_of, readable, ready, run_dry},
};

const LONG: Duration = Duration::from_secs(3600);

/// A group of an eventfd, a timer, and an eventfd.
fn three(state: Noted<&'static str>, a: &Shared, b: &Shared) -> Group<Noted<&'static str>> {
    let handler = |_: &mut Noted<&'static str>, fd: &mut Shared| _ = drain(fd);
    Group::new(state)
        .fd(readable(), a.clone(), handler)
        .after(LONG, |_: &mut Noted<&'static str>| {})
        .fd(readable(), b.clone(), handler)
}

fn a_group_without_members_is_refused(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let error =
        Group::new(Noted(log.clone(), "state")).try_register_into(&mut reactor).unwrap_err();
    assert_eq!((error.reason, log.len()), (GroupReason::Empty, 0));
    let group =
        error.group.fd(readable(), ready(), |_: &mut Noted<_>, fd: &mut Shared| _ = drain(fd));
    group.register_into(&mut reactor).expect("with a member it is one");
    drop(reactor);
    assert_eq!(log.take(), ["state"]);
    let error = io::Error::from(GroupReason::Empty);
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

fn a_refused_descriptor_gives_the_whole_group_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (a, b) = (ready(), ready());
    let taken = noting(&mut reactor, &b, &log, "taken");
    let error =
        three(Noted(log.clone(), "state"), &a, &b).try_register_into(&mut reactor).unwrap_err();
    assert_eq!(error.reason, GroupReason::Descriptor(2, AddReason::AlreadyExists));
    assert_eq!(io::Error::from(error.reason).kind(), io::ErrorKind::AlreadyExists);
    assert!(error.reason.to_string().contains("member 2"));
    assert_eq!(
        (reactor.stats().subscribers, reactor.stats().timers, log.len()),
        (1, 0, 0),
        "none of it stays"
    );
    assert_eq!(
        (Rc::strong_count(&a), Rc::strong_count(&b)),
        (2, 3),
        "and all of it is in the error"
    );
    assert_eq!(run_dry(&mut reactor), 1);
    assert_eq!(log.take(), ["taken"]);
    reactor.delete(taken).unwrap();
    let registered =
        error.group.register_into(&mut reactor).expect("the very group, when the number is free");
    assert_eq!(registered.members.len(), 3);
    assert_eq!(run_dry(&mut reactor), 1, "a's event; b's has been read");
    reactor.delete_group(registered.group).unwrap();
    assert_eq!((log.take(), Rc::strong_count(&a)), (vec!["state"], 1));
}

fn a_refused_descriptor_in_a_handler_gives_it_back_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let (a, b) = (ready(), ready());
    let theirs = (a.clone(), b.clone());
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        let error = three(Noted(noted.clone(), "state"), &theirs.0, &theirs.0)
            .try_register_into(&mut turn)
            .unwrap_err();
        assert_eq!(error.reason, GroupReason::Descriptor(2, AddReason::AlreadyExists));
        assert_eq!(turn.stats().subscribers, 1);
        drop(error);
        three(Noted(noted.clone(), "second"), &theirs.0, &theirs.1)
            .register_into(&mut turn)
            .expect("both are free");
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(run_dry(&mut reactor), 3);
    assert_eq!(log.take(), ["state"]);
    assert_eq!(Rc::strong_count(&b), 3, "the test's, the handler's, the group's");
}

fn a_refused_timer_gives_the_whole_group_back(build: Build) {
    let mut reactor = build().timers_max(1).build().unwrap();
    let log = Log::new();
    let (a, b) = (ready(), ready());
    let other = reactor.after(LONG, || {}).unwrap();
    let error =
        three(Noted(log.clone(), "state"), &a, &b).try_register_into(&mut reactor).unwrap_err();
    assert_eq!(error.reason, GroupReason::Timer(1, TimerReason::LimitReached));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::QuotaExceeded);
    assert_eq!(log.take(), ["state"], "turned into an io::Error, the group is dropped");
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 1));
    reactor.cancel(other).unwrap();
    let error = three(Noted(log.clone(), "state"), &a, &b)
        .every(NOW, |_: &mut Noted<&'static str>| {})
        .try_register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(
        error.reason,
        GroupReason::Timer(3, TimerReason::ZeroPeriod),
        "each reason has its place"
    );
}

fn the_limit_of_subscribers_counts_members(build: Build) {
    let mut reactor = build().subscribers_max(2).build().unwrap();
    let log = Log::new();
    let (a, b) = (ready(), ready());
    let one = noting(&mut reactor, &ready(), &log, "one");
    let error =
        three(Noted(log.clone(), "state"), &a, &b).try_register_into(&mut reactor).unwrap_err();
    assert_eq!(error.reason, GroupReason::Descriptor(2, AddReason::LimitReached));
    reactor.delete(one).unwrap();
    error.group.register_into(&mut reactor).expect("there is room for two");
}

fn the_limit_of_subscribers_counts_groups(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let timers =
        |reactor: &mut Reactor| Group::new(()).after(LONG, |(): &mut ()| {}).register_into(reactor);
    let first = timers(&mut reactor).unwrap();
    assert_eq!(timers(&mut reactor).unwrap_err(), GroupReason::LimitReached);
    reactor.delete_group(first.group).unwrap();
    timers(&mut reactor).unwrap();
}

fn a_group_of_another_reactor_is_not_found(build: Build) {
    let (mut ours, mut theirs) = (build().build().unwrap(), build().build().unwrap());
    let group =
        Group::new(1u32).after(LONG, |_: &mut u32| {}).register_into(&mut theirs).unwrap().group;
    assert_eq!(ours.delete_group(group), Err(windlass::NotFound));
    assert_eq!(ours.group_mut(group), None);
    assert_eq!(theirs.group_mut(group), Some(&mut 1));
}

// If one state were in two reactors, two of its handlers could run at once, one inside the other.
fn members_begun_in_one_reactor_do_not_join_in_another(build: Build) {
    let (mut ours, mut theirs) = (build().build().unwrap(), build().build().unwrap());
    let log = Log::new();
    let group =
        Group::new(1u32).after(LONG, |_: &mut u32| {}).register_into(&mut ours).unwrap().group;
    let begun: Rc<Cell<Option<Group<u32>>>> = Rc::new(Cell::new(None));
    let to = begun.clone();
    ours.defer(move |mut turn: Turn<'_, Reactor>| to.set(Some(turn.group(group).unwrap())))
        .unwrap();
    ours.run_once(None).unwrap();
    let members = begun.take().unwrap().after(LONG, |_: &mut u32| {});
    let error = members.try_register_into(&mut theirs).unwrap_err();
    assert_eq!((error.reason, theirs.stats().timers), (GroupReason::NotFound, 0));
    let joined = error.group.register_into(&mut ours).expect("in its own reactor it joins");
    log.note(());
    assert_eq!((joined.group, ours.stats().timers, log.len()), (group, 2, 1));
}

fn a_bad_descriptor_is_told_by_its_place(build: Build) {
    let mut reactor = build().build().unwrap();
    let error = Group::new(())
        .after(LONG, |(): &mut ()| {})
        .fd(readable(), Numbered(0x7fff_0001), |(): &mut ()| {})
        .try_register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(error.reason, GroupReason::Descriptor(1, AddReason::BadDescriptor));
    assert_eq!(reactor.stats().timers, 0);
}

/// Panics when its descriptor is requested.
struct Shy;

impl AsFd for Shy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("shy")
    }
}

fn a_descriptor_that_panics_at_registration_leaves_no_sibling_behind(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let a = ready();
    let group = Group::new(Noted(log.clone(), "state"))
        .fd(readable(), a.clone(), |_: &mut Noted<&'static str>, fd: &mut Shared| _ = drain(fd))
        .after(LONG, |_: &mut Noted<&'static str>| {})
        .fd(readable(), Shy, |_: &mut Noted<&'static str>| {});
    assert_eq!(panic_of(|| group.register_into(&mut reactor)), "shy");
    assert_eq!(
        (reactor.stats().subscribers, reactor.stats().timers),
        (0, 0),
        "all members or none"
    );
    assert_eq!(run_dry(&mut reactor), 0);
    assert_eq!((log.take(), Rc::strong_count(&a)), (vec!["state"], 1));
}

scenarios! {
    a_group_without_members_is_refused,
    a_refused_descriptor_gives_the_whole_group_back,
    a_refused_descriptor_in_a_handler_gives_it_back_too,
    a_refused_timer_gives_the_whole_group_back,
    the_limit_of_subscribers_counts_members,
    the_limit_of_subscribers_counts_groups,
    a_group_of_another_reactor_is_not_found,
    members_begun_in_one_reactor_do_not_join_in_another,
    a_bad_descriptor_is_told_by_its_place,
    a_descriptor_that_panics_at_registration_leaves_no_sibling_behind,
}
