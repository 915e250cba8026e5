//! The watched descriptors, and the reactor that waits for them.
//!
//! 1. A descriptor has one watch at most, at the index of its number.
//! 2. The subscriber of the reactor only notes the event. The manager calls the user's subscribers
//!    after the turn, so their calls reach the reactor and the table without a queue.
//! 3. An event counts if its key is that of the watch of its descriptor. A watch that was made
//!    since has another key.
//! 4. Noted events that no run has delivered, because a subscriber panicked, come first in the next
//!    run, which does not wait.
//! 5. The reactor and its subscribers here move to another thread as a whole, or not at all.

#![allow(unsafe_code, reason = "descriptors are named by number, and the reactor changes threads")]

use std::cell::RefCell;
use std::mem;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::errno::Error as Errno;
use windlass::{Backend, Event, Interest, Key, Reactor, Ready, Subscriber, Turn, interest};

use crate::error::{EBADF, ENOENT};
use crate::{Error, Events, Result};

/// The watches of a manager. The lock is for [`EventOps::modify`](crate::EventOps::modify) alone,
/// which has a shared reference.
#[derive(Debug)]
pub(crate) struct Context(Mutex<Watches>);

impl Context {
    pub(crate) fn new(events_max: usize) -> Result<Self> {
        Watches::new(events_max).map(|watches| Self(Mutex::new(watches)))
    }

    /// A panic of a subscriber leaves the table consistent: no call of the user runs within it.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut Watches {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Watches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events that a turn has noted.
type Noted = Rc<RefCell<Vec<Ping>>>;

/// An event of the reactor.
#[derive(Clone, Copy, Debug)]
struct Ping {
    fd: RawFd,
    key: Key,
    ready: Ready,
}

/// The largest number of events that a run takes. Memory for so many is written when a reactor is
/// built.
const EVENTS_PER_RUN_MAX: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Watches {
    reactor: Reactor,
    /// Shared with the subscribers in `reactor`, and with nothing else (rule 5).
    noted: Noted,
    by_fd: Vec<Option<Watch>>,
    /// The descriptors of each subscriber, by its place.
    of_subscriber: Vec<Vec<RawFd>>,
    /// The events of the last turn, of which those from `next` on have not been delivered.
    batch: Vec<Ping>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Watch {
    key: Key,
    subscriber: u32,
    data: u32,
}

// SAFETY: all parts of a `Watches` go to the other thread together (rule 5), so none is reached
// from two threads.
// - `Reactor` is not `Send` because its handlers may not be, because a ring has one submitter, and
//   because its parts share values by `Rc`. Its backend is epoll here, and any thread may wait for
//   its set and change it (epoll(7)). Its only handlers are `Watcher`s: a number, and the `Rc` of
//   `noted`. It has no timers, closures, hooks, streams, signals and no clock of the user's, so it
//   holds no other value from outside. It keeps nothing in thread-locals without `Signals`.
// - No reference to the reactor, and no clone of an `Rc` in it or of `noted`, leaves this module.
// - `Ping`, `Watch` and the vectors of them are plain data.
unsafe impl Send for Watches {}

impl Watches {
    fn new(events_max: usize) -> Result<Self> {
        let reactor = Reactor::builder()
            .backend(Backend::Epoll)
            .events_per_turn(events_max.min(EVENTS_PER_RUN_MAX))
            .build()
            .map_err(Error::of_reactor)?;
        Ok(Self {
            reactor,
            noted: Noted::default(),
            by_fd: Vec::new(),
            of_subscriber: Vec::new(),
            batch: Vec::new(),
            next: 0,
        })
    }

    /// Waits, unless there are events left (rule 4). Returns the number of events to be delivered,
    /// those included that will be discarded.
    #[inline]
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize> {
        if self.next == self.batch.len() {
            self.next = 0;
            self.batch.clear();
            self.reactor.run_once(timeout).map_err(Error::of_reactor)?;
            mem::swap(&mut self.batch, &mut *self.noted.borrow_mut());
        }
        Ok(self.batch.len() - self.next)
    }

    /// The next event that is not discarded, with the place of its subscriber.
    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<(u32, Events)> {
        loop {
            let ping = self.batch.get(self.next)?;
            self.next += 1;
            match self.by_fd.get(ping.fd as usize) {
                Some(Some(watch)) if watch.key == ping.key => {
                    let set = EventSet::from_bits_truncate(ping.ready.bits());
                    return Some((
                        watch.subscriber,
                        Events::with_data_raw(ping.fd, watch.data, set),
                    ));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn add(&mut self, subscriber: u32, events: Events) -> Result<()> {
        let fd = events.fd();
        if self.watch(fd).is_some() {
            return Err(Error::FdAlreadyRegistered);
        }
        if fd < 0 {
            return Err(Error::Epoll(Errno::new(EBADF)));
        }
        let (interest, noted) = (interest_of(events.event_set()), Rc::clone(&self.noted));
        let key = self.reactor.add(Watcher { fd, interest, noted }).map_err(Error::of_reactor)?;
        let needed = fd as usize + 1;
        if self.by_fd.len() < needed {
            self.by_fd.resize(needed, None);
        }
        self.by_fd[fd as usize] = Some(Watch { key, subscriber, data: events.data() });
        if let Some(fds) = self.of_subscriber.get_mut(subscriber as usize) {
            fds.push(fd);
        }
        Ok(())
    }

    pub(crate) fn modify(&mut self, events: Events) -> Result<()> {
        let key = self.watch(events.fd()).ok_or_else(not_registered)?.key;
        let interest = interest_of(events.event_set());
        self.reactor.modify(key, interest).map_err(Error::of_reactor)?;
        if let Some(Some(watch)) = self.by_fd.get_mut(events.fd() as usize) {
            watch.data = events.data();
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, fd: RawFd) -> Result<()> {
        let watch = self.watch(fd).ok_or_else(not_registered)?;
        self.by_fd[fd as usize] = None;
        if let Some(fds) = self.of_subscriber.get_mut(watch.subscriber as usize) {
            fds.retain(|&other| other != fd);
        }
        self.reactor.delete(watch.key).map_err(Error::of_reactor)
    }

    /// Makes room for the watches of a subscriber. Those of the endpoint end with the manager.
    pub(crate) fn begin(&mut self, subscriber: u32) {
        let needed = subscriber as usize + 1;
        if self.of_subscriber.len() < needed {
            self.of_subscriber.resize_with(needed, Vec::new);
        }
    }

    /// Ends the watches of a subscriber.
    pub(crate) fn remove_all(&mut self, subscriber: u32) {
        for fd in mem::take(&mut self.of_subscriber[subscriber as usize]) {
            if let Some(watch) = self.by_fd[fd as usize].take() {
                // It exists, because it ends here and in `remove` alone.
                _ = self.reactor.delete(watch.key);
            }
        }
    }

    fn watch(&self, fd: RawFd) -> Option<Watch> {
        usize::try_from(fd).ok().and_then(|index| *self.by_fd.get(index)?)
    }
}

fn not_registered() -> Error {
    Error::Epoll(Errno::new(ENOENT))
}

/// Errors and hang-ups are named, so that they are level-triggered without other conditions too, as
/// in epoll(7): the reactor would report them once.
fn interest_of(set: EventSet) -> Interest {
    type Add = fn(Interest) -> Interest;
    let all: [(EventSet, Add); 8] = [
        (EventSet::IN, Interest::read),
        (EventSet::OUT, Interest::write),
        (EventSet::PRIORITY, Interest::priority),
        (EventSet::READ_HANG_UP, Interest::read_hangup),
        (EventSet::EDGE_TRIGGERED, Interest::edge_triggered),
        (EventSet::ONE_SHOT, Interest::one_shot),
        (EventSet::EXCLUSIVE, Interest::exclusive),
        (EventSet::WAKE_UP, Interest::wakeup),
    ];
    let named = all.into_iter().filter(|(bit, _)| set.contains(*bit));
    named.fold(interest().error().hangup(), |interest, (_, add)| add(interest))
}

/// The subscriber of the reactor (rule 2).
#[derive(Debug)]
struct Watcher {
    fd: RawFd,
    interest: Interest,
    noted: Noted,
}

impl Subscriber for Watcher {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is not negative (`Watches::add`). The reactor reads the number once,
        // in the registration, and passes it to epoll_ctl(2), which rejects one that is not open.
        // The interface takes numbers, as epoll_ctl(2) does: its user keeps a descriptor open as
        // long as it is watched.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    #[inline]
    fn handle(&mut self, event: Event, _: Turn<'_>) {
        let ping = Ping { fd: self.fd, key: event.key(), ready: event.ready() };
        self.noted.borrow_mut().push(ping);
    }
}
