//! Asynchronous calls, which block no thread.

use core::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};
use std::sync::Arc;

use windlass_flow::{Push, panics::Panics};

use super::{
    CallError, Closure, Remote, RemoteItem,
    call::{Call, Job, QueuedCall},
    call_error,
};
use crate::Turn;

/// The future of [`Remote::call_async`]. Its output is the closure's result. It may be polled on
/// any thread.
///
/// ```
/// use std::{future::Future, pin::Pin, task::{Context, Poll, Waker}, time::Duration};
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let mut future = reactor.remote().call_async(|turn| turn.stats().subscribers);
/// # fn is_send<T: Send>(_: &T) {}
/// # is_send(&future);
/// // An executor polls it, and again when it is woken.
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(Pin::new(&mut future).poll(&mut context).is_pending());
/// reactor.run_once(Duration::ZERO)?;
/// assert!(matches!(Pin::new(&mut future).poll(&mut context), Poll::Ready(Ok(0))));
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is called before the future is polled"]
pub struct CallFuture<T, F>
where
    T: Send + 'static,
    F: FnOnce(Turn<'_>) -> T + Send + 'static,
{
    stage: Stage<Closure<F, T>>,
}

enum Stage<J: Job> {
    New(Remote, J),
    /// Waits for room in the queue.
    Queuing(Push<RemoteItem>, Arc<Call<J>>),
    /// Waits for the answer.
    Queued(Arc<Call<J>>),
    Ended,
}

/// No field is pinned: the closure is moved to the queue.
impl<T, F> Unpin for CallFuture<T, F>
where
    T: Send + 'static,
    F: FnOnce(Turn<'_>) -> T + Send + 'static,
{
}

impl<T, F> CallFuture<T, F>
where
    T: Send + 'static,
    F: FnOnce(Turn<'_>) -> T + Send + 'static,
{
    pub(super) fn new(remote: Remote, job: Closure<F, T>) -> Self {
        Self { stage: Stage::New(remote, job) }
    }
}

impl<T, F> Future for CallFuture<T, F>
where
    T: Send + 'static,
    F: FnOnce(Turn<'_>) -> T + Send + 'static,
{
    type Output = Result<T, CallError<F>>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let stage = &mut self.stage;
        if let Stage::New(..) = stage {
            let Stage::New(remote, job) = mem::replace(stage, Stage::Ended) else {
                unreachable!("it was looked at")
            };
            let call = Call::new(job);
            let push = remote.0.queue.push_async(RemoteItem::Call(QueuedCall::new(&call)));
            *stage = Stage::Queuing(push, call);
        }
        if let Stage::Queuing(push, call) = stage {
            let pushed = match Pin::new(push).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(pushed) => pushed,
            };
            let call = Arc::clone(call);
            *stage = Stage::Ended;
            if let Err(rejected) = pushed {
                return Poll::Ready(Err(call_error(&call, &rejected).map(|closure| closure.0)));
            }
            *stage = Stage::Queued(call);
        }
        let Stage::Queued(call) = stage else {
            panic!("a `CallFuture` was polled after it was ready")
        };
        let answer = match call.poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(answer) => answer,
        };
        *stage = Stage::Ended;
        Poll::Ready(answer.map_err(|e| e.map(|closure| closure.0)))
    }
}

impl<T, F> Drop for CallFuture<T, F>
where
    T: Send + 'static,
    F: FnOnce(Turn<'_>) -> T + Send + 'static,
{
    fn drop(&mut self) {
        // Dropped one by one, because the closure and the wakers may panic.
        let mut panics = Panics::default();
        match mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Queuing(push, call) => {
                panics.catch(|| call.abandon());
                panics.catch(|| drop(push));
            }
            Stage::Queued(call) => panics.catch(|| call.abandon()),
            Stage::New(..) | Stage::Ended => {}
        }
        panics.resume();
    }
}

impl<T, F> fmt::Debug for CallFuture<T, F>
where
    T: Send + 'static,
    F: FnOnce(Turn<'_>) -> T + Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_queued = matches!(self.stage, Stage::Queued(_));
        f.debug_struct("CallFuture").field("is_queued", &is_queued).finish_non_exhaustive()
    }
}
