//! Keys and descriptors: rule 6, and the errors for stale and wrong keys.

use std::{
    cell::Cell,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use windlass::{AddReason, Key, ModifyError, NotFound, TakeError, interest};

use crate::{
    Build,
    tools::{Pair, counter, edge, on_ready, ready, turn},
};

fn a_stale_key_names_nothing_even_when_its_place_is_taken_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let old = on_ready(&mut reactor, Pair::new().take(), |_, _| {});
    reactor.delete(old).unwrap();
    let new = on_ready(&mut reactor, Pair::new().take(), |_, _| {});
    assert_ne!(old, new);
    assert_eq!(reactor.delete(old), Err(NotFound));
    assert_eq!(reactor.modify(old, interest()), Err(ModifyError::NotFound));
    assert_eq!(reactor.rearm(old), Err(ModifyError::NotFound));
    assert_eq!(reactor.take_fd::<OwnedFd>(old).unwrap_err(), TakeError::NotFound);
    assert_eq!(reactor.delete(new), Ok(()));
}

fn a_key_of_another_kind_or_of_another_reactor_or_made_up_names_nothing(build: Build) {
    let (mut reactor, mut other) = (build().build().unwrap(), build().build().unwrap());
    let fd = on_ready(&mut reactor, Pair::new().take(), |_, _| {});
    let timer = reactor.after(Duration::from_secs(60), || {}).unwrap();
    assert_eq!(reactor.cancel(fd), Err(NotFound));
    assert_eq!(reactor.reset(fd, Duration::ZERO), Err(NotFound));
    assert_eq!(reactor.delete(timer), Err(NotFound));
    assert_eq!(reactor.modify(timer, interest()), Err(ModifyError::NotFound));
    on_ready(&mut other, Pair::new().take(), |_, _| {});
    other.after(Duration::from_secs(60), || {}).unwrap();
    assert_eq!(other.delete(fd), Err(NotFound));
    assert_eq!(other.cancel(timer), Err(NotFound));
    for bits in [0, 1, u64::MAX, fd.to_bits() ^ 1 << 40, fd.to_bits() ^ 1 << 31] {
        assert_eq!(reactor.delete(Key::from_bits(bits)), Err(NotFound), "{bits:#x}");
    }
    assert_eq!(Key::from_bits(fd.to_bits()), fd);
    assert_eq!((reactor.delete(fd), reactor.cancel(timer)), (Ok(()), Ok(())));
}

fn the_reactors_own_subscriber_has_no_key(build: Build) {
    let mut reactor = build().build().unwrap();
    let first = on_ready(&mut reactor, Pair::new().take(), |_, _| {});
    // Slots are assigned in order, so the one before the first user's belongs to the reactor
    // itself.
    for index in 0..4u64 {
        let guess = Key::from_bits(first.to_bits() & !0xffff_ffff | index);
        if guess != first {
            assert_eq!(reactor.delete(guess), Err(NotFound));
            assert_eq!(reactor.take_boxed(guess).err(), Some(TakeError::NotFound));
        }
    }
    assert_eq!(reactor.into_subscribers().len(), 1);
}

/// Returns another descriptor on every call.
struct Fickle {
    fds: [OwnedFd; 2],
    asked: Cell<usize>,
}

impl AsFd for Fickle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let asked = self.asked.replace(self.asked.get() + 1);
        self.fds[asked % 2].as_fd()
    }
}

fn rule_6_a_descriptor_that_changes_its_mind_is_asked_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let (a, b) = (Pair::new(), Pair::new());
    let fds = [a.ours.try_clone().unwrap(), b.ours.try_clone().unwrap()];
    let (count, seen) = counter();
    let fickle = Fickle { fds, asked: Cell::new(0) };
    let handler = move |fickle: &mut Fickle| count.set(count.get() + fickle.asked.get());
    let key =
        edge(&reactor).with_fd(fickle).with_handler(handler).register_into(&mut reactor).unwrap();
    a.fire();
    b.fire();
    assert_eq!((turn(&mut reactor), seen.get()), (1, 1), "asked once, and only that one fires");
    reactor.modify(key, interest().read().write()).unwrap();
    reactor.delete(key).unwrap();
    // The number that was noted is free again. If `as_fd` had been called again, this would be
    // AlreadyExists or leave a stale entry.
    assert_eq!(reactor.stats().quarantined, 0);
}

fn the_same_descriptor_twice_is_refused_and_comes_back_open(build: Build) {
    let mut reactor = build().build().unwrap();
    let shared = std::rc::Rc::new(ready());
    interest()
        .read()
        .with_fd(shared.clone())
        .with_handler(|| {})
        .register_into(&mut reactor)
        .unwrap();
    let refused = interest()
        .write()
        .with_fd(shared.clone())
        .with_handler(|| {})
        .try_register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(refused.reason, AddReason::AlreadyExists);
    let (interest, fd, _) = refused.subscriber.into_parts();
    assert!(interest.has_write());
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8), "still open");
}

fn what_cannot_be_polled_comes_back_with_the_reason(build: Build) {
    let mut reactor = build().build().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let refused = interest()
        .read()
        .with_fd(file)
        .with_handler(|| {})
        .register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(refused, AddReason::NotPollable);
    let invalid = interest().read().one_shot().exclusive().with_fd(ready()).with_handler(|| {});
    assert_eq!(invalid.register_into(&mut reactor).unwrap_err(), AddReason::InvalidInterest);
    let mut small = build().subscribers_max(1).build().unwrap();
    on_ready(&mut small, ready(), |_, _| {});
    let third = interest()
        .read()
        .with_fd(ready())
        .with_handler(|| {})
        .register_into(&mut small)
        .unwrap_err();
    assert_eq!(third, AddReason::LimitReached);
}

scenarios! {
    a_stale_key_names_nothing_even_when_its_place_is_taken_again,
    a_key_of_another_kind_or_of_another_reactor_or_made_up_names_nothing,
    the_reactors_own_subscriber_has_no_key,
    rule_6_a_descriptor_that_changes_its_mind_is_asked_once,
    the_same_descriptor_twice_is_refused_and_comes_back_open,
    #[cfg_attr(miri, ignore = "Miri's epoll takes no files, not even to refuse them")]
    what_cannot_be_polled_comes_back_with_the_reason,
}
