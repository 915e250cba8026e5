//! The reactor's side of remote calls, and registration through them.

use std::os::fd::AsFd;

use crate::{
    Key, Reactor, Registration, Remote, RemoteAddError, Turn,
    api::handler_fn::HandlerFn,
    cell::registration::FdSubscriber,
    kernel::pending_work,
    remote::{RemoteInbox, RemoteItem, harmless},
};

/// The room of calls and posts is given back each time this number of them is finished, so that
/// senders go on while the rest of a full queue runs.
const GIVE_BACK_EVERY: usize = 64;

impl Reactor {
    /// Returns the handle for other threads. Every call returns a handle to the same queue.
    ///
    /// A reactor with a remote records whether it sleeps, which costs two atomic operations a turn.
    #[must_use]
    pub fn remote(&mut self) -> Remote {
        let inbox = self.inbox.get_or_insert_with(|| {
            self.kernel.note(pending_work::REMOTE);
            // The latch was always marked as asleep before, so an earlier stop has written to the
            // descriptor.
            self.stop.latch().awake();
            RemoteInbox::new(self.limits.remote_max, self.stop.clone(), self.busy_poll)
        });
        inbox.remote.clone()
    }

    /// Runs queued calls and posts, at most `count`.
    ///
    /// The inbox is taken out of the reactor meanwhile. A turn has no access to it, so this has no
    /// effect on the closures.
    pub(crate) fn run_calls(&mut self, count: usize) {
        /// Puts the inbox back, also if a post panics.
        struct RestoreInbox<'r>(&'r mut Reactor, Option<RemoteInbox>);
        impl Drop for RestoreInbox<'_> {
            fn drop(&mut self) {
                self.0.inbox = self.1.take();
            }
        }

        self.kernel.clear(pending_work::CALLS);
        // Keeps this value if a post panics (rule 8).
        self.turn.set_calls_left(true);
        let inbox = self.inbox.take();
        let mut restore = RestoreInbox(self, inbox);
        let RestoreInbox(reactor, Some(inbox)) = &mut restore else { return };
        let mut ran = 0;
        let mut drain = inbox.queue.drain(count);
        while let Some(message) = drain.next() {
            ran += 1;
            reactor.kernel.counters().calls += 1;
            reactor.timed(None, |reactor| match message {
                RemoteItem::Post(post) => post.run(Turn::new(reactor)),
                RemoteItem::Call(place) => place.run(Turn::new(reactor)),
            });
            if ran % GIVE_BACK_EVERY == 0 {
                drain.give_back();
            }
        }
        // Dropping it wakes the tasks that wait for room, which runs user code.
        harmless(|| drop(drain));
        reactor.turn.set_calls_left(ran == count && !inbox.queue.is_empty());
    }
}

impl<Fd: AsFd + 'static, F> Registration<Fd, F> {
    /// Registers with a reactor on another thread and waits for the key. See [`Remote::add`].
    ///
    /// # Errors
    /// The error returns the registration with its descriptor open, except after a panic:
    ///
    /// - [`Refused`](crate::RemoteAddError::Refused): the reactor or the kernel has rejected it. It
    ///   holds an [`AddError`](crate::AddError) with the reason.
    /// - [`WouldDeadlock`](crate::RemoteAddError::WouldDeadlock): the caller is on the loop's own
    ///   thread.
    /// - [`Closed`](crate::RemoteAddError::Closed): the reactor was dropped.
    /// - [`Panicked`](crate::RemoteAddError::Panicked): its own `fd` or `interest` has panicked.
    pub fn register_remotely<Args: 'static>(
        self,
        remote: &Remote,
    ) -> Result<Key, RemoteAddError<Self>>
    where
        Fd: Send,
        F: HandlerFn<Fd, Reactor, Args> + Send,
    {
        remote.add(FdSubscriber::<Fd, F, Args>::new(self)).map_err(|e| e.map(FdSubscriber::unbuild))
    }
}
