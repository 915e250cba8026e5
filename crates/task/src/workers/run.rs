//! The thread of one worker.

use core::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{
    convert::Infallible,
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use windlass::{Remote, stream::Worker};

use crate::{
    AsyncFd, Direction, Executor, ExecutorBuilder, JoinHandle, Spawner, spawn,
    task::error::JoinError,
    workers::{
        WorkerContext, WorkersHandle,
        handle::WorkerEntry,
        inbox::UnopenedInbox,
        stop::{StopSignal, StopWaiters},
    },
};

/// The end of a worker.
pub(super) type Outcome<T> = Result<T, JoinError>;

/// A worker is ready to run.
pub(super) struct Report {
    pub(super) remote: Remote,
    pub(super) spawner: Spawner,
}

/// What a thread takes with it.
pub(super) struct Parts<M: Send + 'static> {
    pub(super) worker: Worker,
    pub(super) inbox: UnopenedInbox<M>,
    pub(super) listeners: Vec<std::net::TcpListener>,
    pub(super) report: mpsc::Sender<(Worker, io::Result<Report>)>,
    pub(super) may_go: mpsc::Receiver<WorkersHandle<M>>,
}

/// The body of the thread.
pub(super) fn work<T, M, F, Make>(
    parts: Parts<M>,
    executor: &(dyn Fn() -> ExecutorBuilder + Send + Sync),
    make: Arc<Make>,
) -> Outcome<T>
where
    T: Send + 'static,
    M: Send + 'static,
    F: Future<Output = T> + 'static,
    Make: Fn(WorkerContext<M>) -> F + Send + Sync + 'static,
{
    let Parts { worker, inbox, listeners, report, may_go } = parts;
    let built = worker.pin().and_then(|()| Ok(executor().build()?));
    let mut executor = match built {
        Ok(executor) => executor,
        Err(error) => {
            // `start` returns this error, and not the output of this thread.
            let _ = report.send((worker, Err(error)));
            return Err(JoinError::Cancelled);
        }
    };
    let ready = Report { remote: executor.remote(), spawner: executor.spawner() };
    let _ = report.send((worker, Ok(ready)));
    // A sender that is dropped without a report tells `start` that a thread has panicked.
    drop(report);
    // Otherwise another worker was not ready.
    let Ok(workers) = may_go.recv() else { return Err(JoinError::Cancelled) };
    let stop = StopWaiters::default();
    let context = WorkerContext::new(worker, workers.clone(), stop.clone(), inbox, listeners);
    let entry = workers.entry(worker.index);
    let outcome = run(&mut executor, entry, &stop, async move { make(context).await });
    end(executor, entry, outcome)
}

/// Protocol 2.
fn run<T: 'static, M>(
    executor: &mut Executor,
    entry: &WorkerEntry<M>,
    stop: &StopWaiters,
    future: impl Future<Output = T> + 'static,
) -> Outcome<T> {
    let supervised = AssertUnwindSafe(|| {
        executor.block_on(async { supervise(spawn(future), &entry.stop, stop).await })
    });
    // A panic of the future is in the outcome. This one is of a handler of the reactor.
    catch_unwind(supervised).unwrap_or_else(|payload| Err(JoinError::panicked(payload)))
}

/// Protocol 4.
fn end<T, M>(executor: Executor, entry: &WorkerEntry<M>, outcome: Outcome<T>) -> Outcome<T> {
    let last = (executor.stats(), executor.reactor_stats());
    *entry.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(executor)));
    // The inbox is gone, unless the future has leaked it.
    let closed = catch_unwind(AssertUnwindSafe(|| entry.sender.close()));
    entry.is_finished.store(true, Ordering::Release);
    match dropped.and(closed) {
        Ok(()) => outcome,
        // The first panic is that of the future, if there is one.
        Err(payload) => match outcome {
            first @ Err(JoinError::Panicked(_)) => first,
            _ => Err(JoinError::panicked(payload)),
        },
    }
}

/// Waits for the worker's task, and tells it about a stop (protocol 3).
async fn supervise<T>(
    mut task: JoinHandle<T>,
    signal: &StopSignal,
    stop: &StopWaiters,
) -> Outcome<T> {
    let mut alarm = None;
    poll_fn(|context| {
        if let Poll::Ready(outcome) = Pin::new(&mut task).poll(context) {
            return Poll::Ready(outcome);
        }
        let request = signal.poll(context.waker());
        if request.is_made {
            stop.set();
        }
        match request.deadline {
            Some(deadline) if deadline <= Instant::now() => Poll::Ready(Err(JoinError::Cancelled)),
            Some(deadline) => {
                wake_at(deadline, &mut alarm, context);
                Poll::Pending
            }
            None => Poll::Pending,
        }
    })
    .await
}

/// Wakes at a deadline by the system's clock. A timer of the reactor would follow the clock of the
/// reactor, which may be paused or be the user's.
struct Alarm {
    deadline: Instant,
    source: AlarmSource,
}

enum AlarmSource {
    Timer(AsyncFd<OwnedFd>),
    /// A thread, where the process has no descriptor left, or the reactor no room for one. It ends
    /// with this sender.
    Thread(#[allow(dead_code, reason = "its drop counts")] mpsc::Sender<Infallible>),
    /// There is no thread either.
    None,
}

impl Alarm {
    /// The waker is that of the supervisor's task, which does not change.
    fn new(deadline: Instant, waker: &Waker) -> Self {
        let source = Self::timer(deadline)
            .map(AlarmSource::Timer)
            .or_else(|_| Self::thread(deadline, waker.clone()).map(AlarmSource::Thread))
            .unwrap_or(AlarmSource::None);
        Self { deadline, source }
    }

    fn thread(deadline: Instant, waker: Waker) -> io::Result<mpsc::Sender<Infallible>> {
        let (alarm, is_dropped) = mpsc::channel();
        let body = move || {
            let left = deadline.saturating_duration_since(Instant::now());
            if is_dropped.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
                waker.wake();
            }
        };
        thread::Builder::new().name("windlass-alarm".to_owned()).spawn(body)?;
        Ok(alarm)
    }

    fn timer(deadline: Instant) -> io::Result<AsyncFd<OwnedFd>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Zero would disarm it.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
        AsyncFd::new(timer)
    }
}

/// Wakes the supervisor at the deadline.
fn wake_at(deadline: Instant, alarm: &mut Option<Alarm>, context: &mut Context<'_>) {
    let current = match alarm.take() {
        Some(current) if current.deadline == deadline => current,
        _ => Alarm::new(deadline, context.waker()),
    };
    let is_set = match &alarm.insert(current).source {
        AlarmSource::Timer(timer) => timer.poll_ready(Direction::Read, context).is_pending(),
        AlarmSource::Thread(_) => true,
        AlarmSource::None => false,
    };
    if !is_set {
        // There is no alarm, or the deadline has just come. The clock is looked at in each turn.
        context.waker().wake_by_ref();
    }
}
