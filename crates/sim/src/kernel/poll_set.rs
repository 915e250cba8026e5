//! Sets of watched descriptors: epoll(7) and its faults.

use std::io;
use std::rc::Rc;

use rustix::io::Errno;

use crate::choices::Track;
use crate::faults::Fault;
use crate::ids::{ActorId, Fd, mask};
use crate::kernel::Kernel;
use crate::kernel::state::State;
use crate::object::Watch;
use crate::poll::set::Set;
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

/// An event of a [`PollSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollEvent {
    /// The bits of [`mask`] that have become true.
    pub mask: u32,
    /// The data of the registration.
    pub data: u64,
}

/// A set of watched descriptors with the semantics of epoll(7), of one actor.
///
/// The actor can run when an entry becomes ready. The end of the value is the end of the set.
#[derive(Debug)]
pub struct PollSet {
    kernel: Kernel,
    set: Key,
}

impl PollSet {
    pub(super) fn new(kernel: &Kernel, actor: ActorId) -> Self {
        let set = kernel.state().add_set(actor);
        Self { kernel: Kernel { state: Rc::clone(&kernel.state) }, set }
    }

    /// Watches a descriptor: `EPOLL_CTL_ADD`.
    ///
    /// # Errors
    ///
    /// `EBADF`, `EEXIST`, and `EINVAL` for a mask with `EXCLUSIVE` and `ONESHOT`.
    pub fn add(&self, fd: Fd, mask: u32, data: u64) -> io::Result<()> {
        Ok(self.kernel.state().watch(self.set, fd, mask, data)?)
    }

    /// Changes the interest and the data of a descriptor: `EPOLL_CTL_MOD`. If it is ready, it is
    /// reported again, whatever the mask was.
    ///
    /// # Errors
    ///
    /// `EBADF`, `ENOENT`, and `EINVAL` if one of the masks has `EXCLUSIVE`.
    pub fn modify(&self, fd: Fd, mask: u32, data: u64) -> io::Result<()> {
        Ok(self.kernel.state().modify_watch(self.set, fd, mask, data)?)
    }

    /// No longer watches a descriptor: `EPOLL_CTL_DEL`.
    ///
    /// # Errors
    ///
    /// `EBADF` and `ENOENT`.
    pub fn delete(&self, fd: Fd) -> io::Result<()> {
        Ok(self.kernel.state().unwatch(self.set, fd)?)
    }

    /// Writes the events that there are to the front of `events`, and returns their number. It
    /// never waits.
    ///
    /// # Errors
    ///
    /// `EINTR` as a fault, and `EINVAL` without room.
    pub fn wait(&self, events: &mut [PollEvent]) -> io::Result<usize> {
        Ok(self.kernel.state().wait(self.set, events)?)
    }

    /// Whether a wait would return an event, apart from faults.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.kernel.state().set_is_ready(self.set)
    }
}

impl Drop for PollSet {
    fn drop(&mut self) {
        // A panic inside of the kernel leaves it borrowed.
        if let Ok(mut state) = self.kernel.state.try_borrow_mut() {
            state.remove_set(self.set);
        }
    }
}

impl State {
    fn add_set(&mut self, actor: ActorId) -> Key {
        let set = self.sets.insert(Set::new(actor));
        if let Some(actor) = self.actors.get_mut(actor) {
            actor.sets.push(set);
        }
        set
    }

    pub(super) fn remove_set(&mut self, key: Key) {
        let Some(set) = self.sets.remove(key) else { return };
        if let Some(actor) = self.actors.get_mut(set.actor) {
            actor.sets.retain(|other| *other != key);
        }
        for (entry, fd) in set.keys() {
            if let Some(object) = self.objects.get_mut(fd.as_raw()) {
                object.watches.retain(|watch| *watch != Watch::Entry { set: key, entry });
            }
        }
    }

    fn find_entry(&self, set: Key, fd: Fd) -> Result<Option<Key>, Errno> {
        let is_here = |watch: &Watch| match watch {
            Watch::Entry { set: other, entry } if *other == set => Some(*entry),
            _ => None,
        };
        Ok(self.object(fd)?.watches.iter().find_map(is_here))
    }

    fn watch(&mut self, key: Key, fd: Fd, bits: u32, data: u64) -> Result<(), Errno> {
        if self.find_entry(key, fd)?.is_some() {
            return Err(Errno::EXIST);
        }
        if bits & mask::EXCLUSIVE != 0 && bits & mask::ONESHOT != 0 {
            return Err(Errno::INVAL);
        }
        let set = self.sets.get_mut(key).ok_or(Errno::BADF)?;
        let entry = set.add(fd, bits, data);
        self.object_mut(fd)?.watches.push(Watch::Entry { set: key, entry });
        self.record(What::Watch, Some(fd), i64::from(bits));
        self.link_if_ready(key, entry, fd);
        Ok(())
    }

    fn modify_watch(&mut self, key: Key, fd: Fd, bits: u32, data: u64) -> Result<(), Errno> {
        let entry = self.find_entry(key, fd)?.ok_or(Errno::NOENT)?;
        let set = self.sets.get_mut(key).ok_or(Errno::BADF)?;
        let old = set.entry(entry).map_or(0, |entry| entry.mask);
        if (bits | old) & mask::EXCLUSIVE != 0 {
            return Err(Errno::INVAL);
        }
        set.modify(entry, bits, data);
        self.record(What::Modify, Some(fd), i64::from(bits));
        self.link_if_ready(key, entry, fd);
        Ok(())
    }

    fn unwatch(&mut self, key: Key, fd: Fd) -> Result<(), Errno> {
        let entry = self.find_entry(key, fd)?.ok_or(Errno::NOENT)?;
        self.object_mut(fd)?.watches.retain(|watch| *watch != Watch::Entry { set: key, entry });
        if let Some(set) = self.sets.get_mut(key) {
            set.remove(entry);
        }
        self.record(What::Unwatch, Some(fd), 0);
        Ok(())
    }

    fn link_if_ready(&mut self, key: Key, entry: Key, fd: Fd) {
        let ready = self.mask(fd);
        let Some(set) = self.sets.get_mut(key) else { return };
        let reported = set.entry(entry).map_or(0, |entry| entry.reported(ready));
        if reported != 0 && set.link(entry, 0) {
            self.actors.run(&mut self.schedule, set.actor);
        }
    }

    /// Whether an entry of the ready list is ready. Those that are not leave the list.
    pub(super) fn set_is_ready(&mut self, key: Key) -> bool {
        loop {
            let Some(set) = self.sets.get_mut(key) else { return false };
            let Some(entry) = set.front().map(|(key, _)| key) else { return false };
            if self.reported(key, entry) != 0 {
                return true;
            }
            if let Some(set) = self.sets.get_mut(key) {
                set.unlink_front();
            }
        }
    }

    /// The events that a wait would report for an entry.
    fn reported(&mut self, set: Key, entry: Key) -> u32 {
        let fd_of = |state: &Self| state.sets.get(set)?.entry(entry).map(|entry| entry.fd);
        let Some(fd) = fd_of(self) else { return 0 };
        let ready = self.mask(fd);
        let entry = self.sets.get(set).and_then(|set| set.entry(entry));
        entry.map_or(0, |entry| entry.reported(ready))
    }

    fn wait(&mut self, key: Key, events: &mut [PollEvent]) -> Result<usize, Errno> {
        let result = self.gather(key, events);
        let value = match result {
            Ok(count) => count as i64,
            Err(error) => -i64::from(error.raw_os_error()),
        };
        self.record(What::Wait, None, value);
        result
    }

    fn gather(&mut self, key: Key, events: &mut [PollEvent]) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        self.fail(Fault::Interrupted, None, Errno::INTR)?;
        let mut count = 0;
        let linked = self.sets.get(key).ok_or(Errno::BADF)?.linked();
        for _ in 0..linked {
            if count == events.len() {
                break;
            }
            let set = self.sets.get_mut(key).ok_or(Errno::BADF)?;
            let Some(entry) = set.unlink_front() else { break };
            let Some(watched) = set.entry(entry) else { continue };
            let (fd, data) = (watched.fd, watched.data);
            let reported = self.reported(key, entry);
            if reported == 0 {
                continue;
            }
            if self.fault(Fault::DelayedEvent, Some(fd)) {
                self.delay(key, entry);
                continue;
            }
            self.report(key, entry, fd, reported);
            events[count] = PollEvent { mask: reported, data };
            count += 1;
        }
        if count < events.len() && self.fault(Fault::SpuriousEvent, None) {
            count += usize::from(self.invent(key, &mut events[count]));
        }
        if count > 1 && self.fault(Fault::ReorderedBatch, None) {
            for last in (1..count).rev() {
                let other = self.choices.below(Track::Schedule, last as u64 + 1) as usize;
                // The simplest choice leaves the order.
                events.swap(last, last - other);
            }
        }
        Ok(count)
    }

    fn report(&mut self, set: Key, entry: Key, fd: Fd, reported: u32) {
        self.record(What::Event, Some(fd), i64::from(reported));
        if let Some(set) = self.sets.get_mut(set) {
            set.report(entry);
        }
    }

    /// An event is held back. What comes in the meantime merges with it.
    fn delay(&mut self, set: Key, entry: Key) {
        let at_ns = self.after_delay();
        if let Some(set) = self.sets.get_mut(set) {
            set.set_delayed(entry, true);
        }
        self.schedule.at(at_ns, Task::Entry(set, entry));
    }

    /// The end of such a delay.
    pub(super) fn end_delay(&mut self, key: Key, entry: Key) {
        let Some(set) = self.sets.get_mut(key) else { return };
        set.set_delayed(entry, false);
        if set.link(entry, 0) {
            self.actors.run(&mut self.schedule, set.actor);
        }
    }

    /// Makes an event for an entry that is not ready.
    fn invent(&mut self, key: Key, event: &mut PollEvent) -> bool {
        let slots = self.sets.get(key).map_or(0, Set::slots);
        let slot = self.choices.below(Track::Schedule, u64::from(slots)) as u32;
        let Some(set) = self.sets.get(key) else { return false };
        let Some((entry, watched)) = set.candidate(slot) else { return false };
        let (fd, data) = (watched.fd, watched.data);
        let invented = watched.reported(mask::IN | mask::OUT);
        let reported = invented | self.reported(key, entry);
        *event = PollEvent { mask: reported, data };
        self.report(key, entry, fd, reported);
        true
    }
}
