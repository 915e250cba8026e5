//! Calls as futures, without a blocked thread. The executors are on other threads and on the loop's
//! own.

use std::{
    future::Future,
    os::fd::OwnedFd,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use windlass::{CallError, CallFuture, Reactor, Remote, Turn};

use crate::{
    Build,
    bed::{Log, NOW, drain, panic_of, readable, ring, sendable},
    remote::serve,
};

/// Counts its wakes, and unparks the thread that created it.
struct Alarm {
    thread: Thread,
    rang: AtomicUsize,
}

impl Alarm {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), rang: AtomicUsize::new(0) })
    }

    /// The number of wakes since the last call.
    fn take(&self) -> usize {
        self.rang.swap(0, Ordering::AcqRel)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.rang.fetch_add(1, Ordering::AcqRel);
        self.thread.unpark();
    }
}

/// A minimal executor: the thread sleeps until it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let alarm = Alarm::new();
    let waker = Waker::from(alarm.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while alarm.take() == 0 {
            thread::park();
        }
    }
}

/// Polls a future once with the alarm's waker.
fn poll<F: Future + Unpin>(future: &mut F, alarm: &Arc<Alarm>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(alarm.clone())))
}

fn turn(reactor: &mut Reactor) {
    reactor.run_once(NOW).unwrap();
}

/// Fills a queue that has room for one. The closure runs in the next turn.
fn fill(remote: &Remote) {
    assert!(remote.try_post(|_: Turn<'_>| {}).is_ok());
}

fn another_threads_executor_gets_the_answer(build: Build) {
    let mut reactor = build().remote_max(2).build().unwrap();
    let own = thread::current().id();
    let there = serve(&mut reactor, |remote| {
        for number in 0..100 {
            assert_eq!(block_on(remote.call_async(move |_| number)).unwrap(), number);
        }
        let Err(CallError::Panicked(load)) =
            block_on(remote.call_async(|_| -> u8 { panic!("mine") }))
        else {
            panic!("it has panicked")
        };
        assert_eq!(load.into_inner().downcast_ref::<&str>(), Some(&"mine"));
        block_on(remote.call_async(|_| thread::current().id())).unwrap()
    });
    assert_eq!(there, own, "it runs on the loop's thread");
}

// A future on the loop's own thread. A handler polls it when its eventfd is ready, and the future's
// waker writes to that eventfd.
fn a_handler_of_the_very_loop_polls_it_to_its_end(build: Build) {
    struct Bell(Arc<OwnedFd>);
    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            ring(&self.0);
        }
    }
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let (fd, log) = (sendable(), Log::new());
    let waker = Waker::from(Arc::new(Bell(fd.clone())));
    let noted = log.clone();
    let task = async move {
        let mut sum = 0;
        for number in [1, 2, 3] {
            sum += remote.call_async(move |_| number).await.unwrap();
            noted.note(sum);
        }
    };
    let mut task = Box::pin(task);
    let handler = move |fd: &mut Arc<OwnedFd>, mut turn: Turn<'_, _>| {
        drain(fd);
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            turn.stop();
        }
    };
    readable().with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    ring(&fd);
    reactor.run().unwrap();
    assert_eq!(log.take(), [1, 3, 6]);
}

fn it_waits_for_room_then_for_the_answer(build: Build) {
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let alarm = Alarm::new();
    fill(&remote);
    let mut future = remote.call_async(|turn: Turn<'_>| turn.stats().calls);
    for _ in 0..2 {
        assert!(poll(&mut future, &alarm).is_pending());
    }
    assert_eq!(alarm.take(), 0);
    turn(&mut reactor);
    assert_eq!(alarm.take(), 1, "there is room");
    turn(&mut reactor);
    assert_eq!(reactor.stats().calls, 1, "it is not queued before it is polled again");
    assert!(poll(&mut future, &alarm).is_pending());
    assert_eq!(remote.try_post(|_: Turn<'_>| {}).map_err(drop), Err(()), "it has the room");
    turn(&mut reactor);
    assert_eq!(alarm.take(), 1, "the answer has come");
    let Poll::Ready(Ok(2)) = poll(&mut future, &alarm) else { panic!("it was the second call") };
    assert_eq!(alarm.take(), 0);
}

fn who_loses_the_room_to_another_is_woken_again(build: Build) {
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let alarms = [Alarm::new(), Alarm::new()];
    fill(&remote);
    let mut futures = [1, 2].map(|number| remote.call_async(move |_| number));
    for (future, alarm) in futures.iter_mut().zip(&alarms) {
        assert!(poll(future, alarm).is_pending());
    }
    turn(&mut reactor);
    assert_eq!([alarms[0].take(), alarms[1].take()], [1, 1], "both hear of it");
    assert!(poll(&mut futures[1], &alarms[1]).is_pending());
    assert!(poll(&mut futures[0], &alarms[0]).is_pending());
    turn(&mut reactor);
    assert_eq!(
        [alarms[0].take(), alarms[1].take()],
        [1, 1],
        "room for one, the answer for the other"
    );
    assert!(poll(&mut futures[0], &alarms[0]).is_pending());
    turn(&mut reactor);
    let Poll::Ready(Ok(1)) = poll(&mut futures[0], &alarms[0]) else { panic!("its turn has come") };
    let Poll::Ready(Ok(2)) = poll(&mut futures[1], &alarms[1]) else {
        panic!("its answer has waited")
    };
}

/// A future whose closure records its run and owns a counted value. Its result records where it is
/// dropped.
fn witnessed(
    remote: &Remote,
    owned: &Arc<()>,
    ran: &Arc<AtomicUsize>,
) -> CallFuture<Told, impl FnOnce(Turn<'_>) -> Told + Send + use<>> {
    let (owned, ran) = (owned.clone(), ran.clone());
    let told = Told(ran.clone());
    remote.call_async(move |_| {
        drop(owned);
        ran.fetch_add(1, Ordering::Relaxed);
        told
    })
}

/// Adds sixteen to a count when it is dropped.
struct Told(Arc<AtomicUsize>);
impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(16, Ordering::Relaxed);
    }
}

fn a_future_that_is_dropped_is_withdrawn_whatever_it_waits_for(build: Build) {
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let (owned, ran, alarm) = (Arc::new(()), Arc::new(AtomicUsize::new(0)), Alarm::new());
    // Before the first poll.
    drop(witnessed(&remote, &owned, &ran));
    assert_eq!((Arc::strong_count(&owned), ran.swap(0, Ordering::Relaxed)), (1, 16));
    turn(&mut reactor);
    assert_eq!(reactor.stats().calls, 0);
    // While it waits for room. Its waker is dropped too.
    fill(&remote);
    let mut future = witnessed(&remote, &owned, &ran);
    assert!(poll(&mut future, &alarm).is_pending());
    assert_eq!(Arc::strong_count(&alarm), 2);
    drop(future);
    assert_eq!((Arc::strong_count(&owned), ran.swap(0, Ordering::Relaxed)), (1, 16));
    assert_eq!(Arc::strong_count(&alarm), 1);
    turn(&mut reactor);
    assert_eq!((reactor.stats().calls, alarm.take()), (1, 0));
    // While it is queued.
    let mut future = witnessed(&remote, &owned, &ran);
    assert!(poll(&mut future, &alarm).is_pending());
    drop(future);
    assert_eq!((Arc::strong_count(&owned), ran.swap(0, Ordering::Relaxed)), (1, 16));
    assert_eq!(Arc::strong_count(&alarm), 1);
    turn(&mut reactor);
    assert_eq!(
        (reactor.stats().calls, ran.load(Ordering::Relaxed)),
        (2, 0),
        "its place was in the queue still"
    );
    // When the answer has arrived.
    let mut future = witnessed(&remote, &owned, &ran);
    assert!(poll(&mut future, &alarm).is_pending());
    turn(&mut reactor);
    assert_eq!((ran.load(Ordering::Relaxed), alarm.take()), (1, 1));
    drop(future);
    assert_eq!((Arc::strong_count(&owned), ran.load(Ordering::Relaxed)), (1, 17));
}

// The closure drops its own future.
fn a_future_that_is_dropped_while_its_closure_runs_gives_up_the_result(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let ran = Arc::new(AtomicUsize::new(0));
    let slot: Arc<Mutex<Option<Box<dyn Send>>>> = Arc::default();
    let (own, told, alarm) = (slot.clone(), Told(ran.clone()), Alarm::new());
    let mut future = remote.call_async(move |_| {
        drop(own.lock().unwrap().take());
        told
    });
    assert!(poll(&mut future, &alarm).is_pending());
    *slot.lock().unwrap() = Some(Box::new(future));
    turn(&mut reactor);
    assert!(slot.lock().unwrap().is_none());
    assert_eq!(ran.load(Ordering::Relaxed), 16);
    assert_eq!((alarm.take(), Arc::strong_count(&alarm)), (0, 1));
}

fn a_result_that_nobody_waits_for_any_more_is_dropped_on_the_loops_thread(build: Build) {
    struct Where(mpsc::Sender<thread::ThreadId>);
    impl Drop for Where {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }
    let mut reactor = build().build().unwrap();
    let own = thread::current().id();
    let there = serve(&mut reactor, |remote| {
        let (began, has_begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let (dropped, was_dropped) = mpsc::channel();
        let mut future = remote.call_async(move |_| {
            began.send(()).unwrap();
            wait.recv().unwrap();
            Where(dropped)
        });
        assert!(poll(&mut future, &Alarm::new()).is_pending());
        has_begun.recv().unwrap();
        drop(future);
        go.send(()).unwrap();
        was_dropped.recv().unwrap()
    });
    assert_eq!(there, own);
}

fn of_two_tasks_that_poll_it_the_last_is_woken(build: Build) {
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let (first, second) = (Alarm::new(), Alarm::new());
    fill(&remote);
    let mut future = remote.call_async(|_| 5);
    for _ in 0..2 {
        // For room, then for the answer.
        assert!(poll(&mut future, &first).is_pending());
        assert!(poll(&mut future, &second).is_pending());
        assert_eq!(Arc::strong_count(&first), 1, "its waker is let go");
        turn(&mut reactor);
        assert_eq!((first.take(), second.take()), (0, 1));
        assert_eq!(Arc::strong_count(&second), 1);
    }
    let Poll::Ready(Ok(5)) = poll(&mut future, &first) else { panic!("it was answered") };
}

fn polling_it_after_its_end_panics(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let alarm = Alarm::new();
    let mut future = remote.call_async(|_| ());
    assert!(poll(&mut future, &alarm).is_pending());
    turn(&mut reactor);
    assert!(poll(&mut future, &alarm).is_ready());
    assert!(panic_of(|| poll(&mut future, &alarm)).contains("polled after it was ready"));
    drop(reactor);
    let mut future = remote.call_async(|_| ());
    let Poll::Ready(Err(CallError::Closed(_))) = poll(&mut future, &alarm) else {
        panic!("it is gone")
    };
    assert!(panic_of(|| poll(&mut future, &alarm)).contains("polled after it was ready"));
}

fn the_end_of_the_loop_answers_those_who_wait_for_room_and_those_who_are_queued(build: Build) {
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let ran = Arc::new(AtomicUsize::new(0));
    let alarms = [Alarm::new(), Alarm::new(), Alarm::new()];
    let mut futures = [1, 2, 3].map(|number| {
        let ran = ran.clone();
        remote.call_async(move |_| ran.fetch_add(number, Ordering::Relaxed))
    });
    for (future, alarm) in futures.iter_mut().zip(&alarms).take(2) {
        assert!(poll(future, alarm).is_pending());
    }
    drop(reactor);
    assert_eq!(alarms.each_ref().map(|alarm| alarm.take()), [1, 1, 0]);
    for (future, alarm) in futures.iter_mut().zip(&alarms) {
        let Poll::Ready(Err(CallError::Closed(closure))) = poll(future, alarm) else {
            panic!("it is gone")
        };
        // The closure is intact and can be used with another reactor.
        let mut other = build().build().unwrap();
        let mut again = other.remote().call_async(closure.into_inner());
        assert!(poll(&mut again, alarm).is_pending());
        turn(&mut other);
        assert!(matches!(poll(&mut again, alarm), Poll::Ready(Ok(_))));
    }
    assert_eq!(ran.load(Ordering::Relaxed), 6);
}

// Has the effect of `std::mem::forget`, but leak checkers still find the memory.
fn a_forgotten_future_costs_its_own_memory_alone(build: Build) {
    static FORGOTTEN: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());
    let forget = |future: Box<dyn Send>| FORGOTTEN.lock().unwrap().push(future);
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let ran = Arc::new(AtomicUsize::new(0));
    let alarm = Alarm::new();
    for _ in 0..2 {
        let ran = ran.clone();
        let mut future = remote.call_async(move |_| ran.fetch_add(1, Ordering::Relaxed));
        // The first is queued, the second waits for room.
        assert!(poll(&mut future, &alarm).is_pending());
        forget(Box::new(future));
    }
    forget(Box::new(remote.call_async(|_| ())));
    turn(&mut reactor);
    assert_eq!((ran.load(Ordering::Relaxed), alarm.take()), (1, 2));
    fill(&remote);
    turn(&mut reactor);
    assert_eq!(reactor.stats().calls, 2);
}

fn many_tasks_share_a_little_room(build: Build) {
    let count: usize = if cfg!(miri) { 6 } else { 200 };
    let mut reactor = build().remote_max(2).calls_per_turn(1).build().unwrap();
    let sum = serve(&mut reactor, move |remote| {
        let alarm = Alarm::new();
        let mut tasks: Vec<_> =
            (0..count).map(|number| Some(remote.call_async(move |_| number))).collect();
        let mut sum = 0;
        while tasks.iter().any(Option::is_some) {
            for task in &mut tasks {
                let Some(future) = task else { continue };
                if let Poll::Ready(number) = poll(future, &alarm) {
                    sum += number.unwrap();
                    *task = None;
                }
            }
            while tasks.iter().any(Option::is_some) && alarm.take() == 0 {
                thread::park();
            }
        }
        sum
    });
    assert_eq!(sum, count * (count - 1) / 2);
    assert_eq!(reactor.stats().calls, count as u64);
}

fn a_waker_may_use_the_remote_and_poll_the_future_itself(build: Build) {
    /// Polls its task directly in `wake`: on the loop's thread, during a turn.
    struct Inline {
        task: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
        done: AtomicUsize,
    }
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            let Some(mut task) = self.task.lock().unwrap().take() else { return };
            let waker = Waker::from(self.clone());
            match task.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => _ = self.done.fetch_add(1, Ordering::Relaxed),
                Poll::Pending => *self.task.lock().unwrap() = Some(task),
            }
        }
    }
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    fill(&remote);
    let theirs = remote.clone();
    let task = async move {
        for number in 0..3 {
            assert_eq!(theirs.call_async(move |_| number).await.unwrap(), number);
            assert!(matches!(theirs.call(|_| ()), Err(CallError::WouldDeadlock(_))));
        }
    };
    let inline =
        Arc::new(Inline { task: Mutex::new(Some(Box::pin(task))), done: AtomicUsize::new(0) });
    Waker::from(inline.clone()).wake();
    for _ in 0..20 {
        turn(&mut reactor);
    }
    assert_eq!(inline.done.load(Ordering::Relaxed), 1);
    assert_eq!(reactor.stats().calls, 4);
}

fn a_future_may_be_moved_to_another_thread_between_its_polls(build: Build) {
    fn assert_movable<T: Send + Unpin>(future: T) -> T {
        future
    }
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    fill(&remote);
    let mut future = assert_movable(remote.call_async(|_| 5));
    let here = Alarm::new();
    assert!(poll(&mut future, &here).is_pending());
    assert!(format!("{future:?}").contains("CallFuture"));
    let answer = serve(&mut reactor, move |_| block_on(future));
    assert_eq!(answer.unwrap(), 5);
    assert_eq!(Arc::strong_count(&here), 1, "the old task's waker is let go");
}

// The task owns its future. The future owns its place in the queue, and that place owns the task's
// waker. The end of the loop breaks this cycle.
fn a_task_that_owns_its_future_is_let_go_by_the_end_of_the_loop(build: Build) {
    struct Task(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let mut reactor = build().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let owned = Arc::new(());
    // One is queued, the other waits for room.
    for _ in 0..2 {
        let (theirs, remote) = (owned.clone(), remote.clone());
        let future = async move { _ = remote.call_async(move |_| drop(theirs)).await.is_ok() };
        let task = Arc::new(Task(Mutex::new(Some(Box::pin(future)))));
        let waker = Waker::from(task.clone());
        let polled = task
            .0
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .as_mut()
            .poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    assert_eq!(Arc::strong_count(&owned), 3);
    drop(reactor);
    assert_eq!(Arc::strong_count(&owned), 1);
}

scenarios! {
    another_threads_executor_gets_the_answer,
    a_handler_of_the_very_loop_polls_it_to_its_end,
    it_waits_for_room_then_for_the_answer,
    who_loses_the_room_to_another_is_woken_again,
    a_future_that_is_dropped_is_withdrawn_whatever_it_waits_for,
    a_future_that_is_dropped_while_its_closure_runs_gives_up_the_result,
    a_result_that_nobody_waits_for_any_more_is_dropped_on_the_loops_thread,
    of_two_tasks_that_poll_it_the_last_is_woken,
    polling_it_after_its_end_panics,
    the_end_of_the_loop_answers_those_who_wait_for_room_and_those_who_are_queued,
    a_forgotten_future_costs_its_own_memory_alone,
    many_tasks_share_a_little_room,
    a_waker_may_use_the_remote_and_poll_the_future_itself,
    a_future_may_be_moved_to_another_thread_between_its_polls,
    a_task_that_owns_its_future_is_let_go_by_the_end_of_the_loop,
}
