//! Rings: requests that complete, as io_uring(7) has them, and their faults.

use std::io::{self, IoSlice, IoSliceMut};
use std::rc::Rc;

use rustix::io::Errno;

use crate::faults::Fault;
use crate::ids::{ActorId, Fd};
use crate::kernel::Kernel;
use crate::kernel::state::State;
use crate::object::{Kind, Watch};
use crate::poll::queue::{Completion, Pending, Queue, RingRequest};
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

/// The most completions that may wait for room in the queue when a request begins.
const OVERFLOW_MAX: usize = 65_536;

/// A queue of requests and completions with the semantics of io_uring(7), of one actor.
///
/// The actor can run when there is a completion. The end of the value cancels all requests.
#[derive(Debug)]
pub struct Ring {
    kernel: Kernel,
    queue: Key,
}

impl Ring {
    pub(super) fn new(kernel: &Kernel, actor: ActorId, completions_max: usize) -> Self {
        let queue = kernel.state().add_queue(actor, completions_max);
        Self { kernel: Kernel { state: Rc::clone(&kernel.state) }, queue }
    }

    /// Begins a request. All errors come as completions.
    ///
    /// # Panics
    ///
    /// If 65,536 completions wait that had no room in the queue: nobody reaps them. Linux would
    /// take memory for them without a limit.
    pub fn submit(&self, user_data: u64, request: RingRequest) {
        let overflow = self.kernel.state().queues.get(self.queue).map_or(0, Queue::overflow);
        assert!(overflow < OVERFLOW_MAX, "{overflow} completions overflow: reap them");
        self.kernel.call(|state| state.submit(self.queue, user_data, request));
    }

    /// Cancels the first request with this user data: it completes with `ECANCELED`.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none. `EALREADY` if it may still complete otherwise.
    pub fn cancel(&self, user_data: u64) -> io::Result<()> {
        Ok(self.kernel.call(|state| state.cancel(self.queue, user_data))?)
    }

    /// Moves the completions to `out`. True if some have not had room in the queue; the next call
    /// returns them.
    pub fn reap(&self, out: &mut Vec<Completion>) -> bool {
        self.kernel.state().queues.get_mut(self.queue).is_some_and(|queue| queue.reap(out))
    }

    /// Completions and cancellations that come late are there at once, as for an actor that waits
    /// for them in a call.
    pub fn settle(&self) {
        self.kernel.call(|state| state.settle(self.queue));
    }

    /// Whether [`Faults::ring_overflow`](crate::Faults::ring_overflow) strikes, for an actor that
    /// has a queue of its own.
    #[must_use]
    pub fn overflows(&self) -> bool {
        self.kernel.call(|state| state.fault(Fault::RingOverflow, None))
    }

    /// Whether the actor has ended, as its process does. Its requests are gone then, without
    /// completions.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.kernel.state().queues.get(self.queue).is_none()
    }

    /// Whether there is a completion.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.kernel.state().queues.get(self.queue).is_some_and(Queue::is_ready)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A panic inside of the kernel leaves it borrowed.
        if let Ok(mut state) = self.kernel.state.try_borrow_mut() {
            state.remove_queue(self.queue);
        }
    }
}

impl State {
    fn add_queue(&mut self, actor: ActorId, completions_max: usize) -> Key {
        let queue = self.queues.insert(Queue::new(actor, completions_max));
        if let Some(actor) = self.actors.get_mut(actor) {
            actor.queues.push(queue);
        }
        queue
    }

    pub(super) fn remove_queue(&mut self, key: Key) {
        let Some(queue) = self.queues.remove(key) else { return };
        if let Some(actor) = self.actors.get_mut(queue.actor) {
            actor.queues.retain(|other| *other != key);
        }
        for request in queue.pending.keys() {
            let Some(pending) = queue.pending.get(request) else { continue };
            if pending.late.is_none() {
                self.let_go(key, request, pending.request.fd());
            }
        }
    }

    /// A request no longer holds its object.
    fn let_go(&mut self, ring: Key, request: Key, fd: Fd) {
        let Some(object) = self.objects.get_mut(fd.as_raw()) else { return };
        object.watches.retain(|watch| *watch != Watch::Request { ring, request });
        object.holds -= 1;
        if object.is_closed && object.holds == 0 {
            self.release(fd);
        }
    }

    fn submit(&mut self, key: Key, user_data: u64, request: RingRequest) {
        let fd = request.fd();
        self.record(What::Submit, Some(fd), request.number());
        let is_open = self.object(fd).is_ok();
        let Some(queue) = self.queues.get_mut(key) else { return };
        if !is_open {
            let result = -Errno::BADF.raw_os_error();
            let bytes = Vec::new();
            queue.push(Completion { user_data, result, accepted: None, bytes, more: false }, false);
            self.actors.run(&mut self.schedule, queue.actor);
            return;
        }
        let pending = Pending { user_data, request, sent: 0, late: None, is_cancelled: false };
        let request = queue.pending.insert(pending);
        if let Ok(object) = self.object_mut(fd) {
            object.watches.push(Watch::Request { ring: key, request });
            object.holds += 1;
        }
        self.attempt(key, request);
    }

    fn cancel(&mut self, key: Key, user_data: u64) -> Result<(), Errno> {
        let result = self.try_cancel(key, user_data);
        let value = result.err().map_or(0, |error| -i64::from(error.raw_os_error()));
        self.record(What::Cancel, None, value);
        result
    }

    fn try_cancel(&mut self, key: Key, user_data: u64) -> Result<(), Errno> {
        let queue = self.queues.get(key).ok_or(Errno::BADF)?;
        let request = queue.find(user_data).ok_or(Errno::NOENT)?;
        let pending = queue.pending.get(request).ok_or(Errno::NOENT)?;
        if pending.late.is_some() || pending.is_cancelled {
            return Err(Errno::ALREADY);
        }
        let fd = pending.request.fd();
        if self.fault(Fault::CancelRace, Some(fd)) {
            // It may complete in the usual way until the cancellation comes.
            let at_ns = self.after_delay();
            self.schedule.at(at_ns, Task::Completion(key, request));
            if let Some(pending) = self.pending_mut(key, request) {
                pending.is_cancelled = true;
            }
            return Err(Errno::ALREADY);
        }
        self.complete(key, request, Outcome::error(Errno::CANCELED));
        Ok(())
    }

    fn pending_mut(&mut self, key: Key, request: Key) -> Option<&mut Pending> {
        self.queues.get_mut(key)?.pending.get_mut(request)
    }

    /// Attempts the requests whose objects have become ready.
    pub(super) fn retry_requests(&mut self) {
        while !self.retries.is_empty() {
            for (key, request) in std::mem::take(&mut self.retries) {
                self.attempt(key, request);
            }
        }
    }

    /// Does what a request asks for, as far as it can be done now.
    fn attempt(&mut self, key: Key, request: Key) {
        loop {
            let Some(pending) = self.pending_mut(key, request) else { return };
            if pending.late.is_some() {
                return;
            }
            let what = pending.request.clone();
            let sent = pending.sent;
            let outcome = match self.perform(&what, sent) {
                // A ring tries again by itself.
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) if sent > 0 => {
                    debug_assert_ne!(error, Errno::AGAIN, "that waits");
                    Outcome::count(sent)
                }
                Err(error) => Outcome::error(error),
                Ok(outcome) => outcome,
            };
            if let RingRequest::Send { bytes, .. } = &what {
                let sent = sent + usize::try_from(outcome.result).unwrap_or(0);
                if outcome.more && sent < bytes.len() {
                    if let Some(pending) = self.pending_mut(key, request) {
                        pending.sent = sent;
                    }
                    continue;
                }
                let all = if outcome.more { Outcome::count(sent) } else { outcome };
                self.complete(key, request, all);
                return;
            }
            let goes_on = outcome.more && what.is_multishot();
            let is_poll = matches!(what, RingRequest::Poll { .. });
            self.complete(key, request, Outcome { more: goes_on, ..outcome });
            // A poll reports the next edge only.
            if !goes_on || is_poll {
                return;
            }
        }
    }

    /// One attempt. `more` says that the object can go on.
    fn perform(&mut self, request: &RingRequest, sent: usize) -> Result<Outcome, Errno> {
        match request {
            RingRequest::Recv { fd, max, .. } => {
                let found = self.held_conn(*fd).map_err(|error| self.recv_error(*fd, error));
                let (conn, side) = found?;
                self.fail(Fault::NoBuffers, Some(*fd), Errno::NOBUFS)?;
                let mut bytes = vec![0; *max];
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let count = self.recv_from_conn(*fd, conn, side, &mut parts)?;
                bytes.truncate(count);
                Ok(Outcome { bytes, more: count > 0, ..Outcome::count(count) })
            }
            RingRequest::Send { fd, bytes } => {
                let found = self.held_conn(*fd).map_err(|error| self.send_error(*fd, error));
                let (conn, side) = found?;
                let parts = [IoSlice::new(&bytes[sent..])];
                let count = self.send_to_conn(*fd, conn, side, &parts)?;
                Ok(Outcome { more: true, ..Outcome::count(count) })
            }
            RingRequest::Accept { fd, .. } => {
                let (accepted, _) = self.accept(*fd)?;
                Ok(Outcome { accepted: Some(accepted), more: true, ..Outcome::count(0) })
            }
            RingRequest::Poll { fd, .. } => {
                let ready = self.mask(*fd) & request.interest();
                let more = true;
                let outcome = Outcome { result: ready as i32, more, ..Outcome::count(0) };
                if ready == 0 { Err(Errno::AGAIN) } else { Ok(outcome) }
            }
        }
    }

    /// The connection of a stream that may be closed, but is held.
    fn held_conn(&self, fd: Fd) -> Result<(Key, usize), Errno> {
        match self.objects.get(fd.as_raw()).map(|object| &object.kind) {
            Some(Kind::Conn { conn, side, .. }) => Ok((*conn, usize::from(*side))),
            Some(Kind::Socket(_)) => Err(Errno::NOTCONN),
            Some(_) => Err(Errno::NOTSOCK),
            None => Err(Errno::BADF),
        }
    }

    fn complete(&mut self, key: Key, request: Key, outcome: Outcome) {
        let Some(pending) = self.pending_mut(key, request) else { return };
        let (fd, user_data) = (pending.request.fd(), pending.user_data);
        self.record(What::Complete, Some(fd), i64::from(outcome.result));
        let Outcome { result, accepted, bytes, more } = outcome;
        let overflows = self.fault(Fault::RingOverflow, Some(fd))
            || self.queues.get(key).is_some_and(Queue::is_full);
        // An overflow ends a request that would go on.
        let more = more && !overflows;
        let completion = Completion { user_data, result, accepted, bytes, more };
        if !more {
            self.let_go(key, request, fd);
            if self.fault(Fault::LateCompletion, Some(fd)) {
                let at_ns = self.after_delay();
                self.schedule.at(at_ns, Task::Completion(key, request));
                if let Some(pending) = self.pending_mut(key, request) {
                    pending.late = Some(completion);
                }
                return;
            }
        }
        let Some(queue) = self.queues.get_mut(key) else { return };
        if !more {
            queue.pending.remove(request);
        }
        queue.push(completion, overflows);
        self.actors.run(&mut self.schedule, queue.actor);
    }

    fn settle(&mut self, key: Key) {
        loop {
            let Some(queue) = self.queues.get(key) else { return };
            let is_late = |request: &Key| {
                let pending = queue.pending.get(*request);
                pending.is_some_and(|pending| pending.late.is_some() || pending.is_cancelled)
            };
            let late: Vec<Key> = queue.pending.keys().filter(is_late).collect();
            if late.is_empty() {
                return;
            }
            for request in late {
                self.end_late(key, request);
            }
        }
    }

    /// A completion that came late, or a cancellation that was in a race, is there.
    pub(super) fn end_late(&mut self, key: Key, request: Key) {
        let Some(pending) = self.pending_mut(key, request) else { return };
        match pending.late.take() {
            Some(completion) => {
                let Some(queue) = self.queues.get_mut(key) else { return };
                queue.pending.remove(request);
                queue.push(completion, false);
                self.actors.run(&mut self.schedule, queue.actor);
            }
            None => self.complete(key, request, Outcome::error(Errno::CANCELED)),
        }
    }
}

/// The contents of a completion.
struct Outcome {
    result: i32,
    accepted: Option<Fd>,
    bytes: Vec<u8>,
    more: bool,
}

impl Outcome {
    fn count(count: usize) -> Self {
        let result = i32::try_from(count).unwrap_or(i32::MAX);
        Self { result, accepted: None, bytes: Vec::new(), more: false }
    }

    fn error(error: Errno) -> Self {
        Self { result: -error.raw_os_error(), ..Self::count(0) }
    }
}
