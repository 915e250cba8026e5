//! Helpers of the tests.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Scope, ScopedJoinHandle, Thread},
};

use windlass_flow::{
    Bounds, Latch, Mailbox, PushError, PushReason, Sender, mailbox, weighed_mailbox,
};

pub(crate) fn inbox<T>(items_max: usize) -> (Sender<T>, Mailbox<T>) {
    mailbox(Bounds::items(items_max), Arc::new(Latch::new().unwrap()))
}

/// A mailbox of numbers. The weight of a number is its value.
pub(crate) fn scales(bounds: Bounds) -> (Sender<usize>, Mailbox<usize>) {
    weighed_mailbox(bounds, Arc::new(Latch::new().unwrap()), |number| *number)
}

/// The reason of a rejection, and the item.
pub(crate) fn rejection<T>(outcome: Result<(), PushError<T>>) -> (PushReason, T) {
    let PushError { reason, item, .. } = outcome.expect_err("the item was taken");
    (reason, item.into_inner())
}

/// Takes the latch's wake, if one has arrived, without waiting.
pub(crate) fn woken<T>(mailbox: &Mailbox<T>) -> bool {
    mailbox.latch().awake()
}

/// Waits for the latch's wake and takes it.
pub(crate) fn wait(latch: &Latch) {
    if cfg!(miri) {
        // Miri has no ppoll(2).
        while !latch.awake() {
            thread::yield_now();
        }
    } else {
        latch.wait(None);
    }
}

/// A waker that counts its calls.
#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (count.clone(), Waker::from(count))
    }

    pub(crate) fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// How many clones of the waker exist, without the test's own one.
pub(crate) fn kept(count: &Arc<Count>) -> usize {
    Arc::strong_count(count) - 2
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Starts a thread that is about to sleep in `run`. Returns when it sleeps.
///
/// Each test also passes if the thread is still awake, but then it does not test the intended case.
pub(crate) fn spawn_asleep<'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> R + Send + 'scope,
) -> ScopedJoinHandle<'scope, R> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let handle = scope.spawn(move || {
        // `PID/task/TID`. Miri has no /proc.
        sender
            .send((!cfg!(miri)).then(|| std::fs::read_link("/proc/thread-self").unwrap()))
            .unwrap();
        run()
    });
    let Some(task) = receiver.recv().unwrap() else {
        thread::yield_now();
        return handle;
    };
    let stat = std::path::Path::new("/proc").join(task).join("stat");
    // In proc_pid_stat(5), the state is the letter after the name, which is in parentheses.
    let is_asleep = |text: String| text.rsplit_once(')').unwrap().1.trim_start().starts_with('S');
    while !handle.is_finished() && !std::fs::read_to_string(&stat).is_ok_and(is_asleep) {
        thread::yield_now();
    }
    handle
}
