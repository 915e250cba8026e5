//! A timer whose clock the test moves.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use windlass_websocket::{Config, Role, Timed, Timer, WebSocket};

use crate::{
    bed::{Manner, Stream, pair},
    peer::Peer,
};

#[derive(Clone, Default)]
pub(crate) struct Clock(Rc<State>);

#[derive(Default)]
struct State {
    now: Cell<Duration>,
    waiting: RefCell<Option<(Duration, Waker)>>,
}

impl Timer for Clock {
    fn now(&self) -> Duration {
        self.0.now.get()
    }

    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        if self.0.now.get() >= deadline {
            return Poll::Ready(());
        }
        *self.0.waiting.borrow_mut() = Some((deadline, context.waker().clone()));
        Poll::Pending
    }
}

impl Clock {
    /// Moves the clock, and wakes the task whose time has come.
    pub(crate) fn advance_ms(&self, ms: u64) {
        self.0.now.set(self.0.now.get() + Duration::from_millis(ms));
        let waiting = self.0.waiting.take();
        if let Some((deadline, waker)) = waiting {
            if deadline <= self.0.now.get() {
                waker.wake();
            } else {
                self.0.waiting.replace(Some((deadline, waker)));
            }
        }
    }

    pub(crate) fn socket_and_peer(
        &self,
        manner: Manner,
        role: Role,
        config: &Config,
    ) -> (WebSocket<Timed<Stream, Self>>, Peer) {
        let (ours, theirs) = pair(manner);
        let timed = Timed::new(ours, self.clone());
        let socket = WebSocket::from_upgraded(timed, &[], role, config);
        (socket, Peer::of(theirs, role))
    }
}
