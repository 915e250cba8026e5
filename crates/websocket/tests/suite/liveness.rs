//! Limits of time, by a clock that the test moves.

use std::{
    cell::RefCell,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use windlass_websocket::{CloseCode, Config, RecvError, Role, SleepTimer, TimeLimit, Timer};

use crate::{
    bed::{Manner, poll_once},
    clock::Clock,
    executor::{Executor, Order, WakeUps},
    peer::{BINARY, CLOSE, Frame, PING, PONG, TEXT, close_payload, socket_and_peer},
};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Polls `recv` once, which must wait.
macro_rules! waits {
    ($socket:expr) => {
        match poll_once($socket.recv()) {
            Poll::Pending => {}
            Poll::Ready(ready) => panic!("{ready:?}"),
        }
    };
}

/// Polls `recv`, which must end by this limit, each time.
macro_rules! times_out {
    ($socket:expr, $limit:pat) => {
        for _ in 0..2 {
            match poll_once($socket.recv()) {
                Poll::Ready(Err(RecvError::TimedOut($limit))) => {}
                other => panic!("{other:?}"),
            }
        }
    };
}

#[test]
fn a_ping_is_sent_after_the_interval_and_its_answer_awaited() {
    for role in ROLES {
        let config = Config::new().ping_interval(seconds(10)).answer_timeout(seconds(5));
        let clock = Clock::default();
        let (mut socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, role, &config);
        waits!(socket);
        clock.advance_ms(9_999);
        waits!(socket);
        assert_eq!(peer.frames(), []);
        clock.advance_ms(1);
        waits!(socket);
        assert_eq!(peer.frames(), [Frame::new(PING, "")]);
        clock.advance_ms(4_999);
        waits!(socket);
        peer.send(PONG, "");
        waits!(socket);
        // The interval starts with the answer.
        clock.advance_ms(9_999);
        waits!(socket);
        assert_eq!(peer.frames().len(), 1);
        clock.advance_ms(1);
        waits!(socket);
        assert_eq!(peer.frames().len(), 2);
        clock.advance_ms(4_999);
        waits!(socket);
        assert_eq!(peer.frames().len(), 2, "one ping at a time");
        clock.advance_ms(1);
        times_out!(socket, TimeLimit::Answer);
    }
}

#[test]
fn every_byte_postpones_the_ping_and_is_an_answer() {
    let config = Config::new().ping_interval(seconds(10)).answer_timeout(seconds(5));
    let clock = Clock::default();
    let (mut socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, Role::Server, &config);
    let bytes = peer.frame(BINARY, [7; 200]);
    waits!(socket);
    for byte in &bytes[..20] {
        clock.advance_ms(9_000);
        peer.stream.give(&[*byte]);
        waits!(socket);
    }
    assert_eq!(peer.frames(), []);
    clock.advance_ms(10_000);
    waits!(socket);
    for byte in &bytes[20..25] {
        clock.advance_ms(4_000);
        peer.stream.give(&[*byte]);
        waits!(socket);
    }
    assert_eq!(peer.frames(), [Frame::new(PING, "")]);
}

#[test]
fn only_messages_postpone_the_idle_timeout() {
    for role in ROLES {
        let clock = Clock::default();
        let config = Config::new().idle_timeout(seconds(10));
        let (mut socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, role, &config);
        waits!(socket);
        clock.advance_ms(9_000);
        peer.send(TEXT, "message");
        assert!(matches!(poll_once(socket.recv()), Poll::Ready(Ok(Some(_)))));
        waits!(socket);
        clock.advance_ms(9_999);
        peer.send(PING, "no message");
        waits!(socket);
        clock.advance_ms(1);
        times_out!(socket, TimeLimit::Idle);
        let close = Frame::new(CLOSE, close_payload(1001, "idle_timeout"));
        assert_eq!(peer.frames(), [Frame::new(PONG, "no message"), close]);
    }
}

#[test]
fn a_lifetime_ends_whatever_the_connection_does() {
    for role in ROLES {
        let clock = Clock::default();
        let config = Config::new().lifetime_max(seconds(100));
        let (mut socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, role, &config);
        for _ in 0..99 {
            clock.advance_ms(1_000);
            peer.send(TEXT, "message");
            assert!(matches!(poll_once(socket.recv()), Poll::Ready(Ok(Some(_)))));
        }
        waits!(socket);
        clock.advance_ms(999);
        waits!(socket);
        clock.advance_ms(1);
        times_out!(socket, TimeLimit::Lifetime);
        let close = Frame::new(CLOSE, close_payload(1001, "lifetime_max"));
        assert_eq!(peer.frames(), [close]);
    }
}

#[test]
fn a_peer_that_always_sends_does_not_postpone_the_lifetime() {
    let clock = Clock::default();
    let config = Config::new().lifetime_max(seconds(100));
    let (mut socket, peer) = clock.socket_and_peer(Manner::SMOOTH, Role::Server, &config);
    for _ in 0..110 {
        // There is always something to read.
        peer.send(TEXT, "message");
        clock.advance_ms(1_000);
        match poll_once(socket.recv()) {
            Poll::Ready(Ok(Some(_))) => {}
            Poll::Ready(Err(RecvError::TimedOut(TimeLimit::Lifetime))) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("it lives on");
}

#[test]
fn the_closing_handshake_has_a_limit() {
    for role in ROLES {
        let clock = Clock::default();
        let config = Config::new().close_timeout(seconds(10)).ping_interval(seconds(1));
        let (mut socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, role, &config);
        clock.advance_ms(500);
        assert!(poll_once(socket.close(CloseCode::NORMAL, "")).is_pending());
        clock.advance_ms(9_000);
        peer.send(TEXT, "this is no progress of the handshake");
        assert!(poll_once(socket.close(CloseCode::NORMAL, "")).is_pending());
        clock.advance_ms(999);
        assert!(poll_once(socket.close(CloseCode::NORMAL, "")).is_pending());
        clock.advance_ms(1);
        times_out!(socket, TimeLimit::Close);
        assert_eq!(peer.frames(), [Frame::new(CLOSE, close_payload(1000, ""))]);
    }
}

#[test]
fn a_peer_that_always_sends_does_not_postpone_the_close() {
    let clock = Clock::default();
    let config = Config::new().close_timeout(seconds(10));
    let (mut socket, peer) = clock.socket_and_peer(Manner::SMOOTH, Role::Server, &config);
    socket.start_close(CloseCode::NORMAL, "").expect("it is open");
    for _ in 0..20 {
        peer.send(TEXT, "message");
        clock.advance_ms(1_000);
        match poll_once(socket.recv()) {
            Poll::Ready(Ok(Some(_))) => {}
            Poll::Ready(Err(RecvError::TimedOut(TimeLimit::Close))) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("it waits on");
}

#[test]
fn an_end_that_cannot_be_written_has_the_limit_too() {
    // The peer reads nothing.
    let manner = Manner { capacity: 0, ..Manner::SMOOTH };
    for (first, payload) in [(CLOSE, close_payload(1000, "")), (0x83, Vec::new())] {
        let clock = Clock::default();
        let config = Config::new().close_timeout(seconds(10));
        let (mut socket, peer) = clock.socket_and_peer(manner, Role::Server, &config);
        peer.send(first, payload);
        waits!(socket);
        clock.advance_ms(9_999);
        waits!(socket);
        clock.advance_ms(1);
        match poll_once(socket.recv()) {
            Poll::Ready(Err(RecvError::TimedOut(TimeLimit::Close) | RecvError::Violation(_))) => {}
            other => panic!("{first:x}: {other:?}"),
        }
    }
}

#[test]
fn a_peer_that_reads_its_answers_slowly_is_not_silent() {
    let config = Config::new()
        .answers_max(100)
        .ping_interval(seconds(10))
        .answer_timeout(seconds(5))
        .idle_timeout(seconds(60));
    let manner = Manner { capacity: 10, ..Manner::SMOOTH };
    let clock = Clock::default();
    let (mut socket, mut peer) = clock.socket_and_peer(manner, Role::Server, &config);
    for _ in 0..100 {
        peer.send(TEXT, "0123456789");
    }
    let replying = async {
        while let Some(message) = socket.recv().await? {
            message.reply().expect("it is open");
        }
        Ok::<_, RecvError>(())
    };
    let mut replying = std::pin::pin!(replying);
    for _ in 0..100 {
        clock.advance_ms(4_000);
        let polled = replying.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "{polled:?} while the peer reads");
        peer.read();
        peer.send(PONG, "");
    }
}

#[test]
fn without_a_timer_the_limits_of_time_are_off() {
    let config = Config::new()
        .ping_interval(Duration::ZERO)
        .idle_timeout(Duration::ZERO)
        .lifetime_max(Duration::ZERO)
        .close_timeout(Duration::ZERO);
    let (mut socket, mut peer) = socket_and_peer(Manner::SMOOTH, Role::Server, &config);
    waits!(socket);
    assert_eq!(peer.frames(), []);
    socket.start_close(CloseCode::NORMAL, "").expect("it is open");
    waits!(socket);
    peer.send(CLOSE, close_payload(1000, ""));
    assert!(matches!(poll_once(socket.recv()), Poll::Ready(Ok(None))));
}

#[test]
fn the_limits_end_a_reader_that_only_the_clock_wakes() {
    for order in Order::ALL {
        let clock = Clock::default();
        let config = Config::new().ping_interval(seconds(10)).close_timeout(seconds(3));
        let (socket, mut peer) = clock.socket_and_peer(Manner::SMOOTH, Role::Server, &config);
        let (mut reader, mut writer) = socket.split();
        let end = RefCell::new(None);
        let mut executor = Executor::new(order);
        executor.spawn(async {
            *end.borrow_mut() = Some(reader.recv().await.map(|_| ()));
        });
        executor.run();
        clock.advance_ms(10_000);
        executor.run();
        assert_eq!(peer.frames(), [Frame::new(PING, "")]);
        executor.spawn(async { writer.close(CloseCode::NORMAL, "").await.expect("it is open") });
        executor.run();
        clock.advance_ms(3_000);
        executor.run();
        let end = end.borrow_mut().take();
        assert!(matches!(end, Some(Err(RecvError::TimedOut(TimeLimit::Close)))), "{end:?}");
    }
}

/// A timer is never ready early, is ready then, and a later call replaces the deadline.
fn check_timer(timer: &mut impl Timer, advance: impl Fn(Duration)) {
    let mut context = Context::from_waker(Waker::noop());
    let start = timer.now();
    let at = |secs| start + seconds(secs);
    assert!(timer.poll_until(&mut context, start).is_ready());
    assert!(timer.poll_until(&mut context, at(10)).is_pending());
    advance(seconds(9));
    assert!(timer.poll_until(&mut context, at(10)).is_pending());
    // Later, and earlier.
    assert!(timer.poll_until(&mut context, at(20)).is_pending());
    advance(seconds(2));
    assert!(timer.poll_until(&mut context, at(20)).is_pending());
    assert!(timer.poll_until(&mut context, at(15)).is_pending());
    advance(seconds(4));
    assert!(timer.poll_until(&mut context, at(15)).is_ready());
    assert!(timer.poll_until(&mut context, at(20)).is_pending());
    advance(seconds(5));
    assert!(timer.poll_until(&mut context, at(20)).is_ready());
    assert!(timer.poll_until(&mut context, Duration::MAX).is_pending());
    assert_eq!(timer.now(), start + seconds(20));
}

#[test]
fn the_timers_are_never_early() {
    let clock = Clock::default();
    let (now, sleeping) = (clock.clone(), clock.clone());
    let mut timer = SleepTimer::new(
        move || now.now(),
        move |time| {
            let mut clock = sleeping.clone();
            let deadline = clock.now() + time.min(seconds(1_000_000));
            std::future::poll_fn(move |context| clock.poll_until(context, deadline))
        },
    );
    check_timer(&mut timer, |time| clock.advance_ms(time.as_millis() as u64));
    check_timer(&mut clock.clone(), |time| clock.advance_ms(time.as_millis() as u64));
}

/// A far deadline moves with every message, and makes no sleep of its own.
#[test]
fn a_deadline_that_moves_away_is_served_by_the_sleep_that_began() {
    let (clock, sleeps) = (Clock::default(), RefCell::new(Vec::new()));
    let (now, sleeping) = (clock.clone(), clock.clone());
    let mut timer = SleepTimer::new(
        move || now.now(),
        |time: Duration| {
            sleeps.borrow_mut().push(time);
            let mut clock = sleeping.clone();
            let deadline = clock.now() + time;
            std::future::poll_fn(move |context| clock.poll_until(context, deadline))
        },
    );
    let wake_ups = Arc::new(WakeUps::default());
    let waker = Waker::from(Arc::clone(&wake_ups));
    let mut poll = |seconds: u64| {
        let deadline = Duration::from_secs(seconds);
        timer.poll_until(&mut Context::from_waker(&waker), deadline).is_ready()
    };
    for deadline in [10, 12, 14, 20] {
        assert!(!poll(deadline));
        clock.advance_ms(2_000);
    }
    assert_eq!((sleeps.borrow().as_slice(), wake_ups.count()), (&[seconds(10)][..], 0));
    // The sleep ends, and the rest takes another one.
    clock.advance_ms(2_000);
    assert_eq!(wake_ups.count(), 1);
    assert!(!poll(20));
    assert_eq!(*sleeps.borrow(), [seconds(10), seconds(10)]);
    // A deadline that comes nearer takes another one too.
    assert!(!poll(15));
    assert_eq!(*sleeps.borrow(), [seconds(10), seconds(10), seconds(5)]);
    clock.advance_ms(5_000);
    assert!(wake_ups.count() == 2 && poll(15));
    // It has ended: the next deadline begins anew.
    assert!(!poll(17));
    assert_eq!(sleeps.borrow().last(), Some(&seconds(2)));
}

#[cfg(all(feature = "tokio", not(miri)))]
#[test]
fn tokio_s_timer_is_never_early() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut timer = windlass_websocket::TokioTimer::new();
        let mut context = Context::from_waker(Waker::noop());
        assert!(timer.poll_until(&mut context, seconds(10)).is_pending());
        tokio::time::advance(seconds(9)).await;
        assert!(timer.poll_until(&mut context, seconds(10)).is_pending());
        assert!(timer.poll_until(&mut context, seconds(20)).is_pending());
        tokio::time::advance(seconds(2)).await;
        assert!(timer.poll_until(&mut context, seconds(20)).is_pending());
        assert!(timer.poll_until(&mut context, seconds(15)).is_pending());
        tokio::time::advance(seconds(4)).await;
        std::future::poll_fn(|context| timer.poll_until(context, seconds(15))).await;
        assert_eq!(timer.now(), seconds(15));
        // The runtime moves its clock to the deadline when all tasks wait.
        std::future::poll_fn(|context| timer.poll_until(context, seconds(30))).await;
        assert!((seconds(30)..seconds(31)).contains(&timer.now()));
        assert!(timer.poll_until(&mut context, Duration::MAX).is_pending());
    });
}

#[cfg(all(feature = "async-io", not(miri)))]
#[test]
fn async_io_s_timer_is_never_early() {
    let mut timer = windlass_websocket::AsyncIoTimer::new();
    let far = std::future::poll_fn(|context| {
        // A deadline that is replaced must not be waited for.
        assert!(timer.poll_until(context, Duration::from_secs(3600)).is_pending());
        let deadline = Duration::from_millis(20);
        timer.poll_until(context, deadline).map(|()| timer.now())
    });
    let now = async_io::block_on(far);
    assert!(now >= Duration::from_millis(20));
}
