//! Rule 2: a cell's memory stays until the final completion of every request that carries its
//! address. Also tests that files are released.

use std::{
    cell::Cell,
    io::{ErrorKind, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
};

use windlass::{Event, Interest, Key, Reactor, Subscriber, Turn, interest};

use crate::panics::caught;
use crate::tools::{Log, NOW, builder, counter, fire, heard, noting, run_dry};

/// Records its address when its descriptor is requested. At that time the value is in its block.
struct Placed {
    fd: OwnedFd,
    place: Rc<Cell<usize>>,
}

impl Subscriber for Placed {
    fn fd(&self) -> BorrowedFd<'_> {
        self.place.set(std::ptr::from_ref(self).addr());
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        interest().read()
    }

    fn handle(&mut self, _: Event, _: Turn<'_>) {
        panic!("it is never ready");
    }
}

/// Adds a subscriber that is never ready, and returns its address.
pub(crate) fn placed(reactor: &mut Reactor) -> (Key, usize) {
    let place = Rc::new(Cell::new(0));
    let key = reactor.add(Placed { fd: counter(0), place: place.clone() }).unwrap();
    (key, place.get())
}

pub(crate) fn memory_of_deleted_cells_is_used_again_though_completions_wait() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let fds: Vec<_> = (0..100).map(|_| Rc::new(counter(0))).collect();
    for (who, fd) in fds.iter().enumerate() {
        noting(&mut reactor, fd, interest().read(), who, &log);
    }
    // The deletions are in turns of their own, so that freed memory can be reused.
    // AddressSanitizer's allocator does not reuse it.
    let [alone, beside] = [false, true].map(|has_others| {
        let mut places = Vec::new();
        for _ in 0..50 {
            let (victim, place) = placed(&mut reactor);
            places.push(place);
            run_dry(&mut reactor);
            if has_others {
                // The deletion takes completions of others from the queue. They wait for the next
                // turn.
                fds.iter().for_each(fire);
            }
            reactor
                .defer(move |mut turn: Turn<'_>| turn.delete(victim).unwrap())
                .map_err(drop)
                .unwrap();
            reactor.run_once(NOW).unwrap();
        }
        places.sort_unstable();
        places.dedup();
        places.len()
    });
    assert!(
        beside <= alone + 8,
        "{beside} blocks in use for one cell at a time, and {alone} if nobody else is ready"
    );
}

pub(crate) fn what_has_completed_already_is_not_reported_after_a_deletion() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    for manner in
        [interest().read(), interest().read().edge_triggered(), interest().read().one_shot()]
    {
        let (victim, bystander) = (Rc::new(counter(0)), Rc::new(counter(0)));
        let key = noting(&mut reactor, &victim, manner, 1, &log);
        let other = noting(&mut reactor, &bystander, manner, 2, &log);
        run_dry(&mut reactor);
        fire(&*victim);
        fire(&*bystander);
        // This reaps both completions and keeps them.
        reactor.delete(key).unwrap();
        run_dry(&mut reactor);
        assert_eq!(heard(&log), [2]);
        reactor.delete(other).unwrap();
    }
}

pub(crate) fn what_was_reaped_before_a_change_is_not_reported_after_it() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let (victim, once) = (Rc::new(counter(0)), Rc::new(counter(0)));
    let key = noting(&mut reactor, &victim, interest().read(), 1, &log);
    let armed = noting(&mut reactor, &once, interest().read().one_shot(), 2, &log);
    run_dry(&mut reactor);
    fire(&*once);
    // This also reaps the other subscriber's completion.
    reactor.delete(key).unwrap();
    rustix::io::read(&*once, &mut [0; 8]).unwrap();
    reactor.rearm(armed).unwrap();
    assert_eq!((run_dry(&mut reactor), heard(&log)), (0, vec![]), "it was of the shot before");
    fire(&*once);
    assert_eq!((run_dry(&mut reactor), heard(&log)), (1, vec![2]));
}

fn is_at_its_end(peer: &mut UnixStream) -> bool {
    peer.set_nonblocking(true).unwrap();
    match peer.read(&mut [0; 8]) {
        Ok(0) => true,
        Err(e) if e.kind() == ErrorKind::WouldBlock => false,
        other => panic!("{other:?}"),
    }
}

fn watched_pair(reactor: &mut Reactor) -> (Key, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    let key = interest().read().with_fd(ours).with_handler(|| {}).register_into(reactor).unwrap();
    run_dry(reactor);
    (key, peer)
}

pub(crate) fn a_deletion_outside_a_turn_closes_the_file_at_once() {
    let mut reactor = builder().build().unwrap();
    let (key, mut peer) = watched_pair(&mut reactor);
    assert!(!is_at_its_end(&mut peer));
    reactor.delete(key).unwrap();
    assert!(is_at_its_end(&mut peer), "the poll holds the file no longer");
}

pub(crate) fn the_end_of_a_reactor_lets_go_of_files() {
    let mut reactor = builder().build().unwrap();
    let mut peers: Vec<_> = (0..200).map(|_| watched_pair(&mut reactor).1).collect();
    drop(reactor);
    assert!(peers.iter_mut().all(is_at_its_end));
}

pub(crate) fn a_panic_in_a_turn_lets_go_of_files() {
    let mut reactor = builder().build().unwrap();
    let (key, mut peer) = watched_pair(&mut reactor);
    let angry = move |mut turn: Turn<'_>| {
        turn.delete(key).unwrap();
        panic!("asked for");
    };
    reactor.defer(angry).map_err(drop).unwrap();
    assert!(caught(|| reactor.run_once(NOW)).is_err());
    assert!(is_at_its_end(&mut peer), "nobody knows when the next turn will be");
}

pub(crate) fn a_deleted_cell_is_not_watched_by_the_list_that_names_it() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    for _ in 0..100 {
        // One is added and deleted before any wait. Another has had its event handled, so it is in
        // the list to arm again.
        let fd = Rc::new(counter(1));
        let never = noting(&mut reactor, &fd, interest().read(), 1, &log);
        reactor.delete(never).unwrap();
        let key = noting(&mut reactor, &fd, interest().read(), 2, &log);
        assert_eq!(run_dry(&mut reactor), 1);
        reactor.delete(key).unwrap();
        fire(&*fd);
        assert_eq!(run_dry(&mut reactor), 0);
        assert_eq!(heard(&log), [2]);
    }
}
