//! Upgrades that are decided later, from any thread.

use core::{
    cell::Cell,
    fmt,
    task::{Context, Poll, Waker},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    api::ConnectionId,
    http::{Accept, Reject},
    mailbox::WorkerHandle,
};

/// The decision about an upgrade: the result of
/// [`decide_upgrade`](crate::Handler::decide_upgrade), which has an example.
#[derive(Debug)]
pub enum UpgradeDecision<D> {
    /// The connection opens now.
    Accept(Accept<D>),
    /// The [`PendingUpgrade`] decides.
    Later,
}

/// Makes a decision wait: the argument of [`decide_upgrade`](crate::Handler::decide_upgrade).
pub struct UpgradeTicket<'a, D> {
    pub(crate) id: ConnectionId,
    pub(crate) worker: &'a Arc<WorkerHandle>,
    pub(crate) waiting_max: usize,
    /// Filled by [`defer`](Self::defer).
    pub(crate) deferred: &'a Cell<Option<WaitingUpgrade<D>>>,
}

impl<D> UpgradeTicket<'_, D> {
    /// Lets the decision wait. The handler must return [`UpgradeDecision::Later`] then.
    ///
    /// # Errors
    /// A [`Reject`] with status 503 and `Retry-After`, if
    /// [`pending_upgrades_max`](crate::Options::pending_upgrades_max) connections wait already.
    pub fn defer(self) -> Result<PendingUpgrade<D>, Reject> {
        let Some(place) = WaitingPlace::take(self.worker, self.waiting_max) else {
            let text = "too many upgrades wait for a decision; try again later";
            return Err(Reject::status(503).text(text).header("Retry-After", "1"));
        };
        let shared = Arc::new(Shared { state: Mutex::default() });
        let waiting = WaitingUpgrade { shared: Arc::clone(&shared), _place: place };
        self.deferred.set(Some(waiting));
        Ok(PendingUpgrade { shared, id: self.id, worker: Arc::clone(self.worker) })
    }
}

impl<D> fmt::Debug for UpgradeTicket<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradeTicket").field("id", &self.id).finish_non_exhaustive()
    }
}

/// One of the places of [`pending_upgrades_max`](crate::Options::pending_upgrades_max).
struct WaitingPlace(Arc<WorkerHandle>);

impl WaitingPlace {
    fn take(worker: &Arc<WorkerHandle>, max: usize) -> Option<Self> {
        worker.begin_waiting(max).then(|| Self(Arc::clone(worker)))
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.end_waiting();
    }
}

type Decide<D> = Box<dyn FnOnce() -> Result<Accept<D>, Reject> + Send>;

enum State<D> {
    Waiting(Option<Waker>),
    Decided(Decide<D>),
    /// The connection has ended, or has taken the decision.
    Closed,
}

impl<D> Default for State<D> {
    fn default() -> Self {
        Self::Waiting(None)
    }
}

struct Shared<D> {
    state: Mutex<State<D>>,
}

impl<D> Shared<D> {
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The side of the connection.
pub(crate) struct WaitingUpgrade<D> {
    shared: Arc<Shared<D>>,
    _place: WaitingPlace,
}

impl<D> WaitingUpgrade<D> {
    /// Takes the decision, if there is one.
    pub(crate) fn take(&self) -> Option<Decide<D>> {
        let mut state = self.shared.lock();
        if !matches!(*state, State::Decided(_)) {
            return None;
        }
        match core::mem::replace(&mut *state, State::Closed) {
            State::Decided(decide) => Some(decide),
            _ => None,
        }
    }
}

impl<D> Drop for WaitingUpgrade<D> {
    fn drop(&mut self) {
        let before = core::mem::replace(&mut *self.shared.lock(), State::Closed);
        // A waker and a closure are user code, so no lock is held here.
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// An upgrade that waits for its decision, which any thread may make. If it is dropped without one,
/// the client gets status 503.
///
/// The client waits for at most [`handshake_timeout`](crate::Options::handshake_timeout), and gets
/// status 503 then.
///
/// [`decide_upgrade`](crate::Handler::decide_upgrade) has an example.
#[must_use = "dropping it rejects the upgrade"]
pub struct PendingUpgrade<D> {
    shared: Arc<Shared<D>>,
    id: ConnectionId,
    worker: Arc<WorkerHandle>,
}

impl<D> PendingUpgrade<D> {
    /// Accepts the upgrade. Nothing happens if the connection has ended.
    pub fn accept(self, accept: Accept<D>)
    where
        D: Send + 'static,
    {
        self.decide(move || Ok(accept));
    }

    /// Rejects the upgrade. Nothing happens if the connection has ended.
    pub fn reject(self, reject: Reject) {
        self.decide(move || Err(reject));
    }

    /// Decides by a function that is called on the connection's own thread, in the next turn. So
    /// the data of the connection need not be `Send`. It is dropped if the connection has ended.
    pub fn decide(self, decide: impl FnOnce() -> Result<Accept<D>, Reject> + Send + 'static) {
        self.set(Box::new(decide));
    }

    fn set(&self, decide: Decide<D>) {
        let mut state = self.shared.lock();
        let State::Waiting(_) = *state else {
            drop(state);
            // The closure is user code, and so is the waker below.
            return drop(decide);
        };
        let before = core::mem::replace(&mut *state, State::Decided(decide));
        drop(state);
        drop(before);
        self.worker.note_decided(self.id);
    }

    /// Returns whether the connection has ended, so that no decision is needed any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(*self.shared.lock(), State::Closed)
    }

    /// Is ready when the connection has ended. For a task that looks something up, to give up. The
    /// waker of the last call is woken.
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.shared.lock();
        let State::Waiting(kept) = &mut *state else {
            drop(state);
            return Poll::Ready(());
        };
        let before = kept.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<D> Drop for PendingUpgrade<D> {
    fn drop(&mut self) {
        let is_undecided = matches!(*self.shared.lock(), State::Waiting(_));
        if is_undecided {
            self.set(Box::new(|| {
                let text = "the server has not decided about the upgrade; try again later";
                Err(Reject::status(503).text(text).header("Retry-After", "1"))
            }));
        }
    }
}

impl<D> fmt::Debug for PendingUpgrade<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingUpgrade")
            .field("id", &self.id)
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
