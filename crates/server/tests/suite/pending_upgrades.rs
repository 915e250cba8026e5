//! Upgrades that are decided later, from another thread.

use std::{
    cell::RefCell,
    net::TcpStream,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use windlass_server::{
    PendingUpgrade, UpgradeDecision,
    http::{Accept, Reject},
};

use crate::fixture::{Client, ConnData, Fixture, TestHandler, text};

type Pending = Rc<RefCell<Vec<PendingUpgrade<ConnData>>>>;

/// A handler that defers all upgrades.
fn handler() -> (TestHandler, Pending) {
    let pending = Pending::default();
    let kept = Rc::clone(&pending);
    let mut handler = TestHandler::echo();
    handler.decide = Some(Box::new(move |_, ticket| {
        kept.borrow_mut().push(ticket.defer()?);
        Ok(UpgradeDecision::Later)
    }));
    (handler, pending)
}

fn data() -> ConnData {
    ConnData { path: "/decided".to_owned(), on_drop: None }
}

/// Waits for an upgrade without a decision.
#[track_caller]
fn next(fixture: &mut Fixture, pending: &Pending) -> PendingUpgrade<ConnData> {
    fixture.until(|_| pending.borrow_mut().pop())
}

#[test]
fn another_thread_accepts_and_early_bytes_follow() {
    for deflate in [None, Some(windlass_server::DeflateConfig::DEFAULT)] {
        let (handler, pending) = handler();
        let mut fixture = Fixture::with(handler, |options| options.deflate = deflate);
        let mut client = Client::begin(fixture.address, "/chat?x=1", deflate.as_ref());
        let upgrade = next(&mut fixture, &pending);
        // The client need not wait for the response: in two pieces, on both sides of a message.
        let frame = client.frame("early").to_vec();
        for piece in [&frame[..3], &frame[3..]] {
            let before = fixture.service.stats().wire_received;
            client.write(piece);
            fixture.until(|fixture| (fixture.service.stats().wire_received > before).then_some(()));
        }
        assert_eq!(fixture.events(), [""; 0]);
        thread::spawn(move || upgrade.decide(|| Ok(Accept::new(data())))).join().unwrap();
        fixture.until(|_| client.is_open().then_some(()));
        assert_eq!(fixture.next_event(&mut client), text("early"));
        client.send("late");
        assert_eq!(fixture.next_event(&mut client), text("late"));
        assert_eq!(fixture.events(), ["open /decided"]);
    }
}

#[test]
fn another_thread_rejects() {
    let (handler, pending) = handler();
    let rejected = Rc::clone(&handler.rejected);
    let mut fixture = Fixture::new(handler);
    let mut client = Client::begin(fixture.address, "/", None);
    let upgrade = next(&mut fixture, &pending);
    thread::spawn(move || upgrade.reject(Reject::status(403).text("no"))).join().unwrap();
    let answer = fixture.until(|_| client.raw_end());
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.ends_with("no\n"), "{answer}");
    assert_eq!((rejected.borrow()[0].1, &*rejected.borrow()[0].2), (Some(403), "no"));
    drop(client);
    fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
}

#[test]
fn an_upgrade_that_nobody_decides_is_rejected() {
    let (handler, pending) = handler();
    let mut fixture = Fixture::new(handler);
    let mut dropped = Client::begin(fixture.address, "/", None);
    drop(next(&mut fixture, &pending));
    let answer = fixture.until(|_| dropped.raw_end());
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1"), "{answer}");

    let mut late = Client::begin(fixture.address, "/", None);
    let upgrade = next(&mut fixture, &pending);
    fixture.advance_time(Duration::from_secs(9));
    assert!(!upgrade.is_closed());
    fixture.advance_time(Duration::from_secs(3));
    let answer = fixture.until(|_| late.raw_end());
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("too long"), "{answer}");
    fixture.until(|_| upgrade.is_closed().then_some(()));
    assert_eq!(fixture.service.stats().handshake_timeouts, 1);

    let mut drained = Client::begin(fixture.address, "/", None);
    let upgrade = next(&mut fixture, &pending);
    let service = fixture.service.clone();
    let drain = move |mut turn: windlass::Turn<'_>| {
        service.drain(Duration::from_secs(5), &mut turn, |_| ());
    };
    assert!(fixture.reactor.defer(drain).is_ok());
    let answer = fixture.until(|_| drained.raw_end());
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("shuts down"), "{answer}");
    drop(upgrade);
}

/// They count as they come, without a timer event.
#[test]
fn bytes_behind_requests_without_a_decision_are_within_the_budget() {
    const MEMORY: usize = 256 << 10;
    let (handler, pending) = handler();
    let mut fixture = Fixture::with(handler, |options| {
        (options.memory_max, options.receiver_buffer_max) = (Some(MEMORY), 64 << 10);
    });
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::begin(fixture.address, "/", None);
        let upgrade = next(&mut fixture, &pending);
        let before = fixture.service.stats().wire_received;
        client.write(&[0; 30 << 10]);
        fixture.until(|fixture| {
            let is_there = fixture.service.stats().wire_received >= before + (30 << 10);
            (is_there || upgrade.is_closed()).then_some(())
        });
        clients.push((client, upgrade));
        if fixture.service.stats().evicted_for_memory > 0 {
            break;
        }
    }
    let stats = fixture.service.stats();
    assert!(stats.evicted_for_memory > 0, "{stats:?}");
    fixture.advance_time(Duration::from_secs(1));
    let stats = fixture.service.stats();
    assert!(stats.memory_most as usize <= MEMORY + (128 << 10), "{stats:?}");
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_client_that_goes_is_told() {
    let (handler, pending) = handler();
    let mut fixture = Fixture::new(handler);
    let client = Client::begin(fixture.address, "/", None);
    let upgrade = next(&mut fixture, &pending);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    assert!(upgrade.poll_closed(&mut Context::from_waker(&waker)).is_pending());
    drop(client);
    fixture.until(|_| (wakes.0.load(Ordering::Relaxed) == 1).then_some(()));
    assert!(upgrade.poll_closed(&mut Context::from_waker(&waker)).is_ready());
    assert!(upgrade.is_closed());
    // A decision that comes too late is dropped, and reaches no later connection.
    let late = Arc::new(());
    let held = Arc::clone(&late);
    upgrade.decide(move || {
        drop(held);
        panic!("nobody asks for it")
    });
    assert_eq!(Arc::strong_count(&late), 1);
    let mut next_client = Client::begin(fixture.address, "/", None);
    let upgrade = next(&mut fixture, &pending);
    fixture.settle();
    upgrade.decide(|| Ok(Accept::new(data())));
    fixture.until(|_| next_client.is_open().then_some(()));
}

#[test]
fn so_many_upgrades_wait_at_a_time() {
    let (handler, pending) = handler();
    let mut fixture = Fixture::with(handler, |options| options.pending_upgrades_max = 2);
    let mut clients = [(); 2].map(|()| Client::begin(fixture.address, "/", None));
    fixture.until(|_| (pending.borrow().len() == 2).then_some(()));
    let mut refused = Client::begin(fixture.address, "/", None);
    let answer = fixture.until(|_| refused.raw_end());
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1"), "{answer}");
    // One that is decided, and one whose client goes, make room for others.
    let mut waiting: Vec<_> = pending.take();
    waiting.pop().unwrap().decide(|| Ok(Accept::new(data())));
    fixture.until(|_| clients.iter_mut().any(Client::is_open).then_some(()));
    let [first, second] = clients;
    drop((first, second));
    fixture.until(|_| waiting[0].is_closed().then_some(()));
    let _more = [(); 2].map(|()| TcpStream::connect(fixture.address).unwrap());
    let _clients = [(); 2].map(|()| Client::begin(fixture.address, "/", None));
    fixture.until(|_| (pending.borrow().len() == 2).then_some(()));
}
