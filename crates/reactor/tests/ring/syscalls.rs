//! The number of system calls of a turn. The parent counts them with ptrace(2) in a child.

use std::{
    cell::RefCell,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    rc::Rc,
    time::Duration,
};

use windlass::{
    Key, NextTurn, Reactor, RingFeatures, Turn, interest,
    stream::{Input, SharedBytes, Stream, StreamHandler, StreamOptions},
};

use crate::{
    ptrace::{calls_between_marks, mark},
    tools::{Log, NOW, builder, counter, fire, heard, noting, run_dry},
};

/// Changes, deletes and adds subscribers in a turn.
fn meddle(reactor: &mut Reactor, keys: &Rc<RefCell<Vec<Key>>>) {
    let keys = keys.clone();
    let meddling = move |mut turn: Turn<'_>| {
        let mut keys = keys.borrow_mut();
        turn.modify(keys[0], interest().read().read_hangup()).unwrap();
        turn.modify(keys[0], interest().read()).unwrap();
        turn.rearm(keys[1]).unwrap();
        turn.delete(keys.remove(2)).unwrap();
    };
    reactor.defer(meddling).map_err(drop).unwrap();
}

pub(crate) fn a_turn_is_one_system_call_and_a_deletion_another() {
    const TURNS: usize = 20;
    let body = || {
        let mut reactor = builder().build().unwrap();
        let log = Log::default();
        let fds: Vec<_> = (0..40).map(|_| Rc::new(counter(0))).collect();
        let manners =
            [interest().read(), interest().read().edge_triggered(), interest().read().one_shot()];
        let keys: Vec<Key> = fds
            .iter()
            .enumerate()
            .map(|(who, fd)| noting(&mut reactor, fd, manners[who % 3], who, &log))
            .collect();
        let keys = Rc::new(RefCell::new(keys));
        run_dry(&mut reactor);
        for turn in 0..TURNS {
            fire(&*fds[0]);
            fire(&*fds[1]);
            if turn % 2 == 1 {
                meddle(&mut reactor, &keys);
            }
            mark();
            // After a deferred closure the turn does not wait, whatever its timeout is.
            let timeout = [None, None, Some(Duration::from_secs(10)), Some(NOW)][turn % 4];
            assert!(reactor.run_once(timeout).unwrap() > 0);
            mark();
            heard(&log);
        }
        mark();
    };
    let Some(spans) = calls_between_marks(body) else {
        return eprintln!("nobody may be traced here");
    };
    let turns: Vec<_> = spans.iter().step_by(2).take(TURNS).collect();
    assert_eq!(turns.len(), TURNS);
    for (turn, calls) in turns.into_iter().enumerate() {
        let enters = calls.iter().filter(|call| **call == libc::SYS_io_uring_enter).count();
        // The meddling handler deletes a subscriber. A separate call releases its file.
        assert_eq!(enters, 1 + turn % 2, "turn {turn}: {calls:?}");
        // The handlers read their descriptors, and the deleted one's file is closed. The other
        // calls come from the allocator.
        let expected = [
            libc::SYS_io_uring_enter,
            libc::SYS_read,
            libc::SYS_close,
            libc::SYS_mmap,
            libc::SYS_munmap,
            libc::SYS_madvise,
            libc::SYS_brk,
        ];
        let others = calls.iter().filter(|call| !expected.contains(call));
        assert_eq!(others.count(), 0, "turn {turn}: {calls:?}");
    }
}

/// Without care, a poll that is armed again while a byte is unread would complete again and again.
pub(crate) fn who_waits_for_priority_alone_sleeps_beside_plain_data() {
    let body = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let mut reactor = builder().build().unwrap();
        interest()
            .priority()
            .with_fd(ours)
            .with_handler(|| panic!("nothing"))
            .register_into(&mut reactor)
            .unwrap();
        run_dry(&mut reactor);
        for _ in 0..3 {
            theirs.write_all(b"x").unwrap();
            mark();
            assert_eq!(reactor.run_once(Duration::from_millis(20)).unwrap(), 0);
            mark();
        }
        mark();
    };
    let Some(spans) = calls_between_marks(body) else {
        return eprintln!("nobody may be traced here");
    };
    for calls in spans.iter().step_by(2).take(3) {
        // The turn looks at the new event, arms what it watches, and sleeps.
        assert!(calls.len() <= 10, "{calls:?}");
    }
}

struct Silent;

impl StreamHandler for Silent {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// A full queue is submitted as a whole, and then takes as many sends again.
pub(crate) fn more_sends_than_the_queue_holds_make_few_system_calls() {
    const STREAMS: usize = 1000;
    let body = || {
        let mut reactor = builder().build().unwrap();
        let (mut peers, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let registration = StreamOptions::new().with_fd(ours).with_handler(Silent);
            keys.push(registration.register_into(&mut reactor).unwrap());
            peers.push(theirs);
        }
        run_dry(&mut reactor);
        let publish = move |mut turn: Turn<'_>| {
            let bytes = SharedBytes::new(b"to all of them");
            for key in &keys {
                assert_eq!(turn.stream(*key).unwrap().write_shared(&bytes), Ok(0));
            }
        };
        assert!(reactor.defer(publish).is_ok());
        mark();
        reactor.run_once(NOW).unwrap();
        run_dry(&mut reactor);
        mark();
    };
    let Some(spans) = calls_between_marks(body) else {
        return eprintln!("nobody may be traced here");
    };
    assert!(spans[0].len() <= 50, "{} calls", spans[0].len());
}

/// What a driver writes to streams is submitted by the call that waits.
pub(crate) fn sends_of_a_driver_go_with_the_call_that_waits() {
    const TURNS: usize = 10;
    let body = || {
        let mut reactor = builder().build().unwrap();
        let (mut peers, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let registration = StreamOptions::new().with_fd(ours).with_handler(Silent);
            keys.push(registration.register_into(&mut reactor).unwrap());
            peers.push(theirs);
        }
        let fd = Rc::new(counter(0));
        noting(&mut reactor, &fd, interest().read().edge_triggered(), 0, &Log::default());
        run_dry(&mut reactor);
        let mut left = TURNS;
        let mut driver = |mut turn: Turn<'_>| {
            if left == 0 {
                mark();
                return NextTurn::Stop;
            }
            left -= 1;
            for key in &keys {
                turn.stream(*key).unwrap().send(b"hello").unwrap();
            }
            // Makes the wait end.
            fire(&*fd);
            mark();
            NextTurn::Wait
        };
        reactor.run_with(&mut driver).unwrap();
        let mut bytes = [0; 5 * TURNS + 1];
        for peer in &mut peers {
            assert_eq!(peer.read(&mut bytes).unwrap(), 5 * TURNS);
        }
        mark();
    };
    let Some(spans) = calls_between_marks(body) else {
        return eprintln!("nobody may be traced here");
    };
    for calls in spans.iter().take(TURNS) {
        let enters = calls.iter().filter(|call| **call == libc::SYS_io_uring_enter).count();
        assert_eq!(enters, 1, "{calls:?}");
        let sends = [libc::SYS_sendto, libc::SYS_sendmsg];
        assert!(!calls.iter().any(|call| sends.contains(call)), "{calls:?}");
    }
}

pub(crate) fn a_busy_poll_spins_in_user_space() {
    let body = || {
        let busy = Duration::from_millis(20);
        let mut reactor = builder().busy_poll(busy).build().unwrap();
        let log = Log::default();
        let fd = Rc::new(counter(0));
        noting(&mut reactor, &fd, interest().read().edge_triggered(), 0, &log);
        run_dry(&mut reactor);
        mark();
        // The timeout equals the time of the busy poll, so it expires before the loop would sleep.
        assert_eq!(reactor.run_once(busy).unwrap(), 0);
        mark();
        fire(&*fd);
        mark();
        // An event that is there already is found during the busy poll.
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        mark();
    };
    let Some(spans) = calls_between_marks(body) else {
        return eprintln!("nobody may be traced here");
    };
    // The clock is read without a system call, or with one if there is no vDSO. At most the last
    // look enters the kernel.
    let enters =
        |span: &[i64]| span.iter().filter(|call| **call == libc::SYS_io_uring_enter).count();
    let others = |span: &[i64]| {
        span.iter().filter(|call| **call != libc::SYS_clock_gettime).count() - enters(span)
    };
    assert!(enters(&spans[0]) <= 1 && others(&spans[0]) == 0, "{:?}", spans[0]);
    assert!(enters(&spans[2]) <= 1, "{:?}", spans[2]);
}

pub(crate) fn so_many_rings_of_a_thread_are_registered_as_the_kernel_keeps_indices() {
    let is_registered =
        |reactor: &Reactor| reactor.ring_features().unwrap().has(RingFeatures::REGISTERED);
    if !is_registered(&builder().build().unwrap()) {
        return eprintln!("this kernel keeps no indices");
    }
    for _ in 0..3 {
        let mut reactors: Vec<Reactor> = (0..20).map(|_| builder().build().unwrap()).collect();
        assert_eq!(reactors.iter().filter(|reactor| is_registered(reactor)).count(), 16);
        let log = Log::default();
        let fds: Vec<_> = (0..20).map(|_| Rc::new(counter(1))).collect();
        for (who, (reactor, fd)) in reactors.iter_mut().zip(&fds).enumerate() {
            noting(reactor, fd, interest().read(), who, &log);
        }
        // One ring has no registered index. Another one's index is reused.
        drop((reactors.pop(), reactors.remove(3)));
        reactors.push(builder().build().unwrap());
        assert!(is_registered(&reactors[18]));
        reactors.iter_mut().for_each(|reactor| _ = run_dry(reactor));
        assert_eq!(heard(&log).len(), 18);
    }
}
