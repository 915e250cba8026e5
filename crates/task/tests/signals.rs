//! Signals, on every backend. raise(3) sends a signal to the calling thread, and masks are per
//! thread. But all listeners of the process are told, so these tests run one by one (`alone`).
//! Signals to the process are in the program `fork`, whose tests have processes of their own.

#![deny(unsafe_code)]

use windlass_testkit::scenarios;

#[path = "common/counting_waker.rs"]
mod counting_waker;

use std::{
    future::{Future, poll_fn},
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use nix::sys::signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, raise};
use windlass_task::{
    Executor,
    signal::{Signal, Signals, ctrl_c},
    spawn,
    time::timeout,
    with_turn, yield_now,
};

use counting_waker::CountingWaker;
use scenarios::Build;

fn executor(build: Build) -> Executor {
    Executor::builder().reactor(build()).build().unwrap()
}

/// Locks out the other tests of this program until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run<F: Future>(build: Build, future: F) -> F::Output {
    let _alone = alone();
    executor(build).block_on(future)
}

/// Whether this thread has blocked a signal.
fn is_blocked(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask >> (signal.as_raw() - 1) & 1 == 1
}

fn subscribers() -> usize {
    with_turn(|turn| turn.stats().subscribers).unwrap()
}

async fn two_turns() {
    let turns = || with_turn(|turn| turn.stats().turns).unwrap();
    let end = turns() + 2;
    while turns() < end {
        yield_now().await;
    }
}

async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

fn a_signal_wakes_the_task_that_waits(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        let task = spawn(async move { signals.recv().await.unwrap() });
        two_turns().await;
        assert!(!task.is_finished());
        raise(SIGUSR1).unwrap();
        assert_eq!(task.await.unwrap(), Signal::USR1);
    });
}

fn a_signal_that_comes_before_the_wait_is_kept(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        raise(SIGUSR1).unwrap();
        two_turns().await;
        assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
        assert!(poll_once(signals.recv()).await.is_pending());
    });
}

fn equal_signals_count_as_one_until_they_are_read(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::USR1, Signal::USR1]).unwrap();
        for round in 0..3 {
            for _ in 0..=round {
                raise(SIGUSR1).unwrap();
            }
            two_turns().await;
            raise(SIGUSR1).unwrap();
            two_turns().await;
            assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
            assert!(poll_once(signals.recv()).await.is_pending());
        }
    });
}

fn several_signals_are_told_apart_and_come_in_turn(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::TERM, Signal::USR1, Signal::USR2]).unwrap();
        assert_eq!(format!("{signals:?}"), "[SIGTERM, SIGUSR1, SIGUSR2]");
        for signal in [SIGUSR2, SIGTERM, SIGUSR1] {
            raise(signal).unwrap();
        }
        two_turns().await;
        let mut came = Vec::new();
        for _ in 0..5 {
            came.push(signals.recv().await.unwrap());
            // One that keeps coming does not hide the others.
            raise(SIGUSR1).unwrap();
            two_turns().await;
        }
        let (one, two) = (Signal::USR1, Signal::USR2);
        assert_eq!(came, [one, two, Signal::TERM, one, one]);
    });
}

fn the_highest_signal_number_works(build: Build) {
    run(build, async {
        let highest = Signal::from_raw(64).unwrap();
        let mut signals = Signals::new([Signal::HUP, highest]).unwrap();
        assert!(is_blocked(highest));
        raise(SIGHUP).unwrap();
        assert_eq!(signals.recv().await.unwrap(), Signal::HUP);
    });
    assert!(!is_blocked(Signal::from_raw(64).unwrap()));
}

fn each_listener_is_told(build: Build) {
    run(build, async {
        let mut early = Signals::new([Signal::USR1]).unwrap();
        raise(SIGUSR1).unwrap();
        two_turns().await;
        let mut late = Signals::new([Signal::USR1, Signal::USR2]).unwrap();
        assert_eq!(subscribers(), 2, "one for each signal");
        assert!(poll_once(late.recv()).await.is_pending(), "it came before");
        assert_eq!(early.recv().await.unwrap(), Signal::USR1);

        let tasks =
            [spawn(async move { early.recv().await }), spawn(async move { late.recv().await })];
        two_turns().await;
        raise(SIGUSR1).unwrap();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap(), Signal::USR1);
        }
        assert_eq!(subscribers(), 0);
    });
}

fn the_mask_is_restored_with_the_last_listener(build: Build) {
    run(build, async {
        assert!(!is_blocked(Signal::USR1));
        let one = Signals::new([Signal::USR1, Signal::USR2]).unwrap();
        let other = Signals::new([Signal::USR1]).unwrap();
        assert!(is_blocked(Signal::USR1) && is_blocked(Signal::USR2));
        drop(one);
        assert!(is_blocked(Signal::USR1) && !is_blocked(Signal::USR2));
        drop(other);
        assert!(!is_blocked(Signal::USR1));
        assert_eq!(subscribers(), 0);
    });
}

/// corosio's scenario: cancelled before it waits. Pending signals must not end the process then.
fn a_listener_that_is_dropped_discards_what_is_pending(build: Build) {
    run(build, async {
        for polls in 0..3 {
            let mut signals = Signals::new([Signal::USR1]).unwrap();
            for _ in 0..polls {
                assert!(poll_once(signals.recv()).await.is_pending());
            }
            raise(SIGUSR1).unwrap();
            drop(signals);
            assert!(!is_blocked(Signal::USR1));
        }
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        two_turns().await;
        assert!(poll_once(signals.recv()).await.is_pending());
    });
}

fn a_wait_that_is_dropped_loses_no_signal(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        for _ in 0..3 {
            assert!(timeout(Duration::ZERO, signals.recv()).await.is_err());
            raise(SIGUSR1).unwrap();
            let mut waiting = Box::pin(signals.recv());
            assert!(poll_once(&mut waiting).await.is_pending());
            two_turns().await;
            drop(waiting);
            assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
        }
    });
}

fn the_last_waker_is_woken(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        let counts = [(); 2].map(|()| Arc::new(CountingWaker::default()));
        for count in [0, 1, 0, 1] {
            let waker = Waker::from(Arc::clone(&counts[count]));
            assert!(signals.poll_recv(&mut Context::from_waker(&waker)).is_pending());
        }
        raise(SIGUSR1).unwrap();
        two_turns().await;
        assert_eq!(counts.map(|count| count.count()), [0, 1]);
    });
}

fn ctrl_c_waits_for_one(build: Build) {
    run(build, async {
        for _ in 0..2 {
            let task = spawn(ctrl_c());
            two_turns().await;
            raise(SIGINT).unwrap();
            task.await.unwrap().unwrap();
            assert!(!is_blocked(Signal::INT));
        }
    });
}

fn signals_that_cannot_be_caught_are_an_error(build: Build) {
    run(build, async {
        for number in [9, 19, 32, 33, libc::SIGRTMIN() - 1] {
            let signals = [Signal::USR1, Signal::from_raw(number).unwrap()];
            let error = Signals::new(signals).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!((is_blocked(Signal::USR1), subscribers()), (false, 0), "nothing is left");
        }
        assert!(poll_once(Signals::new([]).unwrap().recv()).await.is_pending());
    });
}

fn a_limit_of_the_reactor_is_an_error(build: Build) {
    let _alone = alone();
    let reactor = build().subscribers_max(1);
    let mut executor = Executor::builder().reactor(reactor).build().unwrap();
    executor.block_on(async {
        let mut kept = Signals::new([Signal::USR1]).unwrap();
        Signals::new([Signal::USR1, Signal::USR2]).unwrap_err();
        assert!(is_blocked(Signal::USR1) && !is_blocked(Signal::USR2));
        // Where there is no turn, the error comes with the wait.
        let mut late = with_turn(|_| Signals::new([Signal::USR2])).unwrap().unwrap();
        late.recv().await.unwrap_err();
        assert!(!is_blocked(Signal::USR2));
        raise(SIGUSR1).unwrap();
        assert_eq!(kept.recv().await.unwrap(), Signal::USR1);
        drop(kept);
        // The next listener registers it anew.
        let mut again = Signals::new([Signal::USR2]).unwrap();
        raise(SIGUSR2).unwrap();
        assert_eq!(again.recv().await.unwrap(), Signal::USR2);
    });
}

fn what_waits_for_a_turn_is_bounded(build: Build) {
    let _alone = alone();
    let builder = Executor::builder().reactor(build()).queued_registrations_max(2);
    builder.build().unwrap().block_on(async {
        with_turn(|_| {
            let kept = Signals::new([Signal::USR1, Signal::HUP]).unwrap();
            let error = Signals::new([Signal::USR1, Signal::USR2]).unwrap_err();
            assert!(error.to_string().contains("raise `queued_registrations_max`"), "{error}");
            assert!(is_blocked(Signal::USR1) && !is_blocked(Signal::USR2));
            drop(kept);
        })
        .unwrap();
        two_turns().await;
        assert_eq!((is_blocked(Signal::USR1), subscribers()), (false, 0));
        with_turn(|_| drop(Signals::new([Signal::USR2]).unwrap())).unwrap();
    });
}

fn where_there_is_no_turn_it_is_queued(build: Build) {
    run(build, async {
        let mut signals = with_turn(|_| Signals::new([Signal::USR1])).unwrap().unwrap();
        assert!(is_blocked(Signal::USR1));
        raise(SIGUSR1).unwrap();
        assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
        with_turn(|_| drop(signals)).unwrap();
        assert_eq!(subscribers(), 1);
        // A new listener before the old registration ends.
        let mut again = Signals::new([Signal::USR1]).unwrap();
        raise(SIGUSR1).unwrap();
        two_turns().await;
        assert_eq!(subscribers(), 1);
        assert!(is_blocked(Signal::USR1));
        raise(SIGUSR1).unwrap();
        assert_eq!(again.recv().await.unwrap(), Signal::USR1);
        // Made and dropped without a turn.
        with_turn(|_| drop(Signals::new([Signal::USR2]).unwrap())).unwrap();
        two_turns().await;
        assert_eq!((subscribers(), is_blocked(Signal::USR2)), (1, false));
    });
    assert!(!is_blocked(Signal::USR1));
}

fn listeners_of_an_executor_that_is_gone_get_an_error(build: Build) {
    let _alone = alone();
    let mut executor = executor(build);
    let count = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let mut signals = executor.block_on(async {
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        assert!(signals.poll_recv(&mut context).is_pending());
        signals
    });
    drop(executor);
    assert_eq!(count.count(), 1);
    assert!(!is_blocked(Signal::USR1));
    assert!(matches!(signals.poll_recv(&mut context), Poll::Ready(Err(_))));
    drop(signals);
}

fn a_task_that_listens_ends_with_the_executor(build: Build) {
    let _alone = alone();
    let mut executor = executor(build);
    executor.block_on(async {
        spawn(async { Signals::new([Signal::USR1]).unwrap().recv().await.map(drop) }).detach();
        while !is_blocked(Signal::USR1) {
            yield_now().await;
        }
    });
    drop(executor);
    assert!(!is_blocked(Signal::USR1));
}

fn two_executors_of_one_thread_share_the_mask(build: Build) {
    let _alone = alone();
    let (mut one, mut other) = (executor(build), executor(build));
    let first = one.block_on(async { Signals::new([Signal::USR1]).unwrap() });
    let mut second = other.block_on(async { Signals::new([Signal::USR1]).unwrap() });
    drop(first);
    drop(one);
    assert!(is_blocked(Signal::USR1));
    raise(SIGUSR1).unwrap();
    assert_eq!(other.block_on(second.recv()).unwrap(), Signal::USR1);
    drop(second);
    drop(other);
    assert!(!is_blocked(Signal::USR1));
}

/// The wakers of one executor's listeners are foreign code to the executor that reads the signal.
fn a_waker_that_panics_costs_its_own_listener_alone(build: Build) {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new("the waker"));
        }
    }
    fn payload_of<T>(call: impl FnOnce() -> T) -> Option<&'static str> {
        catch_unwind(AssertUnwindSafe(call)).err()?.downcast_ref().copied()
    }
    let _alone = alone();
    let (mut one, mut other) = (executor(build), executor(build));
    let mut second = other.block_on(async { Signals::new([Signal::USR1]).unwrap() });
    let bomb = Waker::from(Arc::new(Bomb));
    assert!(second.poll_recv(&mut Context::from_waker(&bomb)).is_pending());
    one.block_on(async {
        let mut first = Signals::new([Signal::USR1]).unwrap();
        let mut third = Signals::new([Signal::USR1]).unwrap();
        raise(SIGUSR1).unwrap();
        assert_eq!(first.recv().await.unwrap(), Signal::USR1);
        assert_eq!(third.recv().await.unwrap(), Signal::USR1);
        let mut poll = || second.poll_recv(&mut Context::from_waker(Waker::noop()));
        assert_eq!(payload_of(&mut poll), Some("the waker"));
        assert!(poll().is_ready());
        assert!(second.poll_recv(&mut Context::from_waker(&bomb)).is_pending());
    });
    // Nor does it leave a turn of its own executor.
    raise(SIGUSR1).unwrap();
    other.block_on(two_turns());
    let mut poll = || second.poll_recv(&mut Context::from_waker(Waker::noop()));
    assert_eq!(payload_of(&mut poll), Some("the waker"));
    assert!(matches!(poll(), Poll::Ready(Ok(Signal::USR1))));
    // It ends with a panic that nobody takes.
    assert!(second.poll_recv(&mut Context::from_waker(&bomb)).is_pending());
    drop((other, second));
}

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a thread with a listener on an executor of its own. It sends what it is told, after a
/// first message that it listens.
fn listener_thread(build: Build) -> mpsc::Receiver<Option<Signal>> {
    let (sender, told) = mpsc::channel();
    thread::spawn(move || {
        executor(build).block_on(async {
            let mut signals = Signals::new([Signal::USR1, Signal::USR2]).unwrap();
            sender.send(None).unwrap();
            while sender.send(Some(signals.recv().await.unwrap())).is_ok() {}
        });
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(None));
    told
}

/// The raise is to one thread, so its executor alone reads the signal.
fn each_executor_of_the_process_is_told(build: Build) {
    run(build, async {
        let mut signals = Signals::new([Signal::USR1, Signal::HUP]).unwrap();
        let others = [(); 2].map(|()| listener_thread(build));
        for _ in 0..5 {
            raise(SIGHUP).unwrap();
            assert_eq!(signals.recv().await.unwrap(), Signal::HUP);
            raise(SIGUSR1).unwrap();
            assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
            for told in &others {
                assert_eq!(told.recv_timeout(PATIENCE), Ok(Some(Signal::USR1)), "and no other");
            }
        }
        drop(others);
        // It ends the threads, which notice that nobody receives.
        raise(SIGUSR1).unwrap();
        assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
    });
}

/// Its listener is the last one of the thread, and the kernel has nothing left afterwards.
fn a_listener_that_is_dropped_leaves_what_is_pending_to_other_executors(build: Build) {
    run(build, async {
        let told = listener_thread(build);
        for has_a_turn in [true, false] {
            let signals = Signals::new([Signal::USR1]).unwrap();
            raise(SIGUSR1).unwrap();
            if has_a_turn {
                drop(signals);
            } else {
                with_turn(|_| drop(signals)).unwrap();
                two_turns().await;
            }
            assert!(!is_blocked(Signal::USR1));
            assert_eq!(told.recv_timeout(PATIENCE), Ok(Some(Signal::USR1)));
        }
        drop(told);
        let signals = Signals::new([Signal::USR2]).unwrap();
        raise(SIGUSR2).unwrap();
        drop(signals);
    });
}

#[test]
#[should_panic(expected = "no executor runs on this thread")]
fn a_listener_outside_of_an_executor_panics() {
    let _signals = Signals::new([Signal::USR1]);
}

scenarios! {
    a_signal_wakes_the_task_that_waits,
    a_signal_that_comes_before_the_wait_is_kept,
    equal_signals_count_as_one_until_they_are_read,
    several_signals_are_told_apart_and_come_in_turn,
    the_highest_signal_number_works,
    each_listener_is_told,
    the_mask_is_restored_with_the_last_listener,
    a_listener_that_is_dropped_discards_what_is_pending,
    a_wait_that_is_dropped_loses_no_signal,
    the_last_waker_is_woken,
    ctrl_c_waits_for_one,
    signals_that_cannot_be_caught_are_an_error,
    a_limit_of_the_reactor_is_an_error,
    what_waits_for_a_turn_is_bounded,
    where_there_is_no_turn_it_is_queued,
    listeners_of_an_executor_that_is_gone_get_an_error,
    a_task_that_listens_ends_with_the_executor,
    two_executors_of_one_thread_share_the_mask,
    a_waker_that_panics_costs_its_own_listener_alone,
    each_executor_of_the_process_is_told,
    a_listener_that_is_dropped_leaves_what_is_pending_to_other_executors,
}
