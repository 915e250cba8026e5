//! Cancellation tokens.

#![deny(unsafe_code)]

#[path = "common/counting_waker.rs"]
mod counting_waker;

use std::{
    cell::Cell,
    future::{Future, pending, poll_fn, ready},
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use windlass_task::{
    JoinError, block_on,
    cancel::{Cancel, CancelExt, CancelOnDrop, Cancellation, Cancelled, CancelledBy},
    net::UnixStream,
    spawn,
    time::timeout,
    yield_now,
};

use counting_waker::CountingWaker;

const _: fn() = || {
    fn may_leave<T: Send + Sync + Unpin>() {}
    fn is_error<T: std::error::Error>() {}
    may_leave::<Cancel>();
    may_leave::<CancelOnDrop>();
    may_leave::<Cancellation>();
    may_leave::<CancelledBy<std::future::Ready<()>>>();
    may_leave::<Cancelled>();
    is_error::<Cancelled>();
};

fn counting() -> (Arc<CountingWaker>, Waker) {
    let count = Arc::new(CountingWaker::default());
    (Arc::clone(&count), Waker::from(count))
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_token_cancels_its_descendants_alone() {
    let root = Cancel::new();
    let (left, right) = (root.child(), root.child());
    let (under_left, under_right) = (left.child(), right.child());
    assert!(!root.is_cancelled());
    left.cancel();
    left.cancel();
    let cancelled = [&root, &left, &right, &under_left, &under_right].map(Cancel::is_cancelled);
    assert_eq!(cancelled, [false, true, false, true, false]);
    assert!(left.child().is_cancelled() && left.child().child().is_cancelled());
    root.clone().cancel();
    assert!(root.is_cancelled() && right.is_cancelled() && under_right.is_cancelled());
    assert_eq!(
        format!("{root:?} {:?}", Cancel::new()),
        "Cancel { is_cancelled: true } Cancel { is_cancelled: false }"
    );
}

#[test]
fn a_cancellation_reaches_descendants_whose_parents_were_dropped() {
    let root = Cancel::new();
    let middle = root.child();
    let leaf = middle.child().child();
    let waiting = middle.child().cancelled();
    drop(middle);
    let (count, waker) = counting();
    let mut waiting = waiting;
    assert!(poll(&mut waiting, &waker).is_pending());
    root.cancel();
    assert!(leaf.is_cancelled());
    assert_eq!(count.count(), 1);
    assert!(poll(&mut waiting, &waker).is_ready());
}

#[test]
fn all_that_wait_are_woken_once() {
    let root = Cancel::new();
    let child = root.child();
    let counts: Vec<_> = (0..6).map(|_| counting()).collect();
    let mut waiting: Vec<_> =
        [&root, &child].into_iter().cycle().map(Cancel::cancelled).take(6).collect();
    for (waiting, (_, waker)) in waiting.iter_mut().zip(&counts) {
        assert!(poll(waiting, &counts[0].1).is_pending());
        assert!(poll(waiting, waker).is_pending());
        assert!(poll(waiting, waker).is_pending());
    }
    drop(waiting.pop());
    root.cancel();
    let woken: Vec<_> = counts.iter().map(|(count, _)| count.count()).collect();
    assert_eq!(woken, [1, 1, 1, 1, 1, 0], "the last one was dropped");
    for waiting in &mut waiting {
        assert!(poll(waiting, Waker::noop()).is_ready());
        assert!(poll(waiting, Waker::noop()).is_ready());
    }
    drop(waiting);
    for (count, waker) in counts {
        drop(waker);
        assert_eq!(Arc::strong_count(&count), 1);
    }
}

#[test]
fn an_operation_that_is_cancelled_before_its_start_never_starts() {
    block_on(async {
        let token = Cancel::new();
        let before = token.child();
        token.cancel();
        for token in [&token, &before] {
            let never = poll_fn(|_| -> Poll<()> { unreachable!("it was polled") });
            assert_eq!(never.cancelled_by(token).await, Err(Cancelled));
        }
        // Between its making and its first poll.
        let token = Cancel::new();
        let never = poll_fn(|_| -> Poll<()> { unreachable!("it was polled") });
        let never = never.cancelled_by(&token);
        token.cancel();
        assert_eq!(never.await, Err(Cancelled));
    });
}

#[test]
fn an_operation_is_dropped_before_its_error_is_returned() {
    block_on(async {
        let token = Cancel::new();
        let held = Rc::new(());
        let inside = Rc::clone(&held);
        let operation = async move {
            pending::<()>().await;
            drop(inside);
        };
        let mut operation = pin!(operation.cancelled_by(&token));
        assert!(poll(&mut operation, Waker::noop()).is_pending());
        assert_eq!(format!("{operation:?}"), "CancelledBy { is_cancelled: false, .. }");
        token.cancel();
        assert_eq!(Rc::strong_count(&held), 2, "not by the cancellation itself");
        assert_eq!(poll(&mut operation, Waker::noop()), Poll::Ready(Err(Cancelled)));
        assert_eq!(Rc::strong_count(&held), 1);
        let again = catch_unwind(AssertUnwindSafe(|| poll(&mut operation, Waker::noop())));
        assert!(again.is_err(), "it was ready");
    });
}

#[test]
fn a_token_that_is_dropped_cancels_nothing() {
    block_on(async {
        let token = Cancel::new();
        let operation = async {
            yield_now().await;
            5
        };
        let operation = operation.cancelled_by(&token);
        drop(token);
        assert_eq!(operation.await, Ok(5));
        let token = Cancel::new();
        let guard = token.clone().cancel_on_drop();
        assert!(!guard.disarm().is_cancelled());
        assert!(!token.is_cancelled());
        drop(token.clone().cancel_on_drop());
        assert!(token.is_cancelled());
    });
}

#[test]
fn an_operation_may_cancel_itself() {
    block_on(async {
        let token = Cancel::new();
        let itself = token.clone();
        let operation = async move {
            itself.cancel();
            pending::<()>().await;
        };
        assert_eq!(operation.cancelled_by(&token).await, Err(Cancelled));
        let token = Cancel::new();
        let itself = token.clone();
        let done = async move { itself.cancel() }.cancelled_by(&token).await;
        assert_eq!(done, Ok(()), "it was ready in the same poll");
    });
}

/// Every await point of an exchange over a socket: cancelled before, in the middle, or not at all.
#[test]
fn an_operation_can_be_cancelled_at_every_poll() {
    block_on(async {
        for polls in 0..30 {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            let token = Cancel::new();
            let echo = async {
                for byte in 0..5 {
                    one.write_all(&[byte]).await?;
                    one.read_exact(&mut [0]).await?;
                    yield_now().await;
                }
                io::Result::Ok(())
            };
            let mut echo = Box::pin(echo.cancelled_by(&token));
            let mut buffer = [0];
            let mut is_done = false;
            for _ in 0..polls {
                is_done =
                    poll_fn(|context| Poll::Ready(echo.as_mut().poll(context))).await.is_ready();
                if is_done {
                    break;
                }
                if let Ok(Ok(_)) = timeout(Duration::ZERO, other.read_exact(&mut buffer)).await {
                    other.write_all(&buffer).await.unwrap();
                }
                yield_now().await;
            }
            token.cancel();
            if !is_done {
                assert_eq!(echo.as_mut().await.unwrap_err(), Cancelled);
            }
            drop(echo);
            drop(one);
            // The other end sees the end.
            while other.read(&mut buffer).await.unwrap() > 0 {}
        }
    });
}

#[test]
fn cancelled_timed_out_failed_and_aborted_are_told_apart() {
    async fn operation(kind: u8, token: Cancel) -> io::Result<u8> {
        let inner = async {
            match kind {
                0 => Ok(7),
                1 => Err(io::Error::from(io::ErrorKind::NotFound)),
                _ => pending().await,
            }
        };
        timeout(Duration::from_millis(1), inner.cancelled_by(&token)).await??
    }
    block_on(async {
        let token = Cancel::new();
        assert_eq!(operation(0, token.clone()).await.unwrap(), 7);
        let failed = operation(1, token.clone()).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
        let timed_out = operation(2, token.clone()).await.unwrap_err();
        assert_eq!(timed_out.kind(), io::ErrorKind::TimedOut);
        token.cancel();
        let cancelled = operation(2, token).await.unwrap_err();
        assert!(cancelled.get_ref().unwrap().is::<Cancelled>());
        assert_eq!(cancelled.to_string(), "the operation was cancelled");
        let task = spawn(operation(2, Cancel::new()));
        task.abort();
        assert!(matches!(task.await, Err(JoinError::Cancelled)));
    });
}

#[test]
fn a_tree_may_be_deep() {
    const DEPTH: usize = 100_000;
    // Cancelled from the root.
    let root = Cancel::new();
    let mut chain = vec![root.clone()];
    for depth in 0..DEPTH {
        let child = chain[depth].child();
        chain.push(child);
    }
    root.cancel();
    assert!(chain.iter().all(Cancel::is_cancelled));
    drop(chain);
    // Held by the last descendant alone, and dropped or cancelled with it.
    for cancels in [false, true] {
        let root = Cancel::new();
        let last = (0..DEPTH).fold(root.clone(), |parent, _| parent.child());
        if cancels {
            root.cancel();
            assert!(last.is_cancelled());
        }
        drop(root);
        drop(last);
    }
    // Dropped from the root on.
    let mut chain = vec![Cancel::new()];
    for depth in 0..DEPTH {
        let child = chain[depth].child();
        chain.push(child);
    }
    chain.drain(..).for_each(drop);
}

/// Panics when it is woken.
struct PanicsOnWake;

impl Wake for PanicsOnWake {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("wake"));
    }
}

#[test]
fn a_waker_that_panics_does_not_keep_others_from_being_woken() {
    let root = Cancel::new();
    let tokens = [root.clone(), root.child(), root.child()];
    let (count, counting) = counting();
    let mut waiting = Vec::new();
    for token in &tokens {
        for waker in [&Waker::from(Arc::new(PanicsOnWake)), &counting] {
            let mut next = token.cancelled();
            assert!(poll(&mut next, waker).is_pending());
            waiting.push(next);
        }
    }
    let cancel = catch_unwind(AssertUnwindSafe(|| root.cancel()));
    assert_eq!(cancel.unwrap_err().downcast_ref(), Some(&"wake"));
    assert_eq!(count.count(), 3);
    assert!(tokens.iter().all(Cancel::is_cancelled));
}

/// Uses the tokens when it is woken.
struct UsesTokens(Cancel, Arc<AtomicUsize>);

impl Wake for UsesTokens {
    fn wake(self: Arc<Self>) {
        assert!(self.0.is_cancelled(), "the tree was marked before");
        self.0.cancel();
        assert!(self.0.child().is_cancelled());
        assert!(poll(&mut self.0.cancelled(), Waker::noop()).is_ready());
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_waker_may_use_the_tokens() {
    let root = Cancel::new();
    let leaf = root.child().child();
    let count = Arc::new(AtomicUsize::new(0));
    let mut waiting = Vec::new();
    for (listened, used) in [(&root, &leaf), (&leaf, &root), (&root, &root)] {
        let waker = Waker::from(Arc::new(UsesTokens(used.clone(), Arc::clone(&count))));
        let mut next = listened.cancelled();
        assert!(poll(&mut next, &waker).is_pending());
        waiting.push(next);
    }
    root.cancel();
    assert_eq!(count.load(SeqCst), 3);
}

#[test]
fn tokens_are_used_from_many_threads() {
    for round in 0..200 {
        let root = Cancel::new();
        let barrier = Arc::new(Barrier::new(4));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (token, barrier) = (root.child(), Arc::clone(&barrier));
                thread::spawn(move || {
                    barrier.wait();
                    if number == round % 3 {
                        drop(token.clone());
                        let _children: Vec<_> = (0..10).map(|_| token.child().child()).collect();
                    }
                    block_on(async { token.child().cancelled().await });
                })
            })
            .collect();
        barrier.wait();
        root.cancel();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_token_of_another_thread_wakes_a_task() {
    block_on(async {
        let token = Cancel::new();
        let other = token.clone();
        let task = spawn(pending::<()>().cancelled_by(&token));
        yield_now().await;
        let thread = thread::spawn(move || other.cancel());
        assert_eq!(task.await.unwrap(), Err(Cancelled));
        thread.join().unwrap();
    });
}

#[test]
fn an_output_that_is_ready_is_not_lost() {
    let polls = Cell::new(0);
    block_on(async {
        let token = Cancel::new();
        let operation = poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::Ready(3)
        });
        assert_eq!(operation.cancelled_by(&token).await, Ok(3));
        assert_eq!(ready(4).cancelled_by(&token).await, Ok(4));
    });
    assert_eq!(polls.get(), 1);
}
