//! Synthetic events, which the kernel does not report: kicks, and errors of registrations that the
//! kernel has rejected later.
//!
//! 1. A registration has at most one, with the union of its conditions.
//! 2. It joins the batch of the next wait, which then does not block. Before the kernel's events
//!    they have half of the room, so that handlers that kick themselves in each turn do not starve
//!    others.
//! 3. It is subject to the interest at that time, as a report of the kernel is. If the registration
//!    is one-shot, it is the one event. If the batch has the kernel's event of it, it waits for the
//!    next wait, and is dropped there unless the registration was re-armed.
//! 4. It is forgotten with its registration. It waits while the registration is paused.

use std::collections::VecDeque;

use crate::{
    Key, KickError, Ready,
    api::{
        interest::{ERR, HUP},
        key::KeyKind,
    },
    cell::{CellFlags, CellPtr},
    kernel::{Kernel, pending_work},
    util::arena::reserve,
};

#[derive(Default)]
pub(super) struct SyntheticEvents {
    /// The registrations, in the order of their events. Some may be deleted.
    keys: VecDeque<Key>,
    /// Registrations whose events are in the batch, or were when it was filled.
    in_batch: Vec<Key>,
    /// The conditions, by the index of the registration, for cells with the flag `SYNTHETIC`.
    conditions: Vec<u16>,
}

impl SyntheticEvents {
    pub(super) fn any(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether an event of the registration in the batch may be a synthetic one.
    pub(super) fn is_in_batch(&self, key: Key) -> bool {
        self.in_batch.contains(&key)
    }

    /// All events of the batch were dispatched.
    pub(super) fn end_batch(&mut self) {
        self.in_batch.clear();
    }

    fn conditions_of(&mut self, cell: CellPtr) -> &mut u16 {
        let (index, _) = cell.key().parts(KeyKind::Descriptor).expect("a registered cell's key");
        let index = index as usize;
        if self.conditions.len() <= index {
            let missing = index + 1 - self.conditions.len();
            reserve(&mut self.conditions, missing);
            self.conditions.resize(index + 1, 0);
        }
        &mut self.conditions[index]
    }
}

impl Kernel {
    /// See [`Turn::kick`](crate::Turn::kick).
    pub(crate) fn kick(&mut self, cell: CellPtr, ready: Ready) -> Result<(), KickError> {
        if cell.has_flag(CellFlags::FIRED) {
            return Err(KickError::Disabled);
        }
        if ready.is_empty() || reported(cell, ready.bits()) != ready.bits() {
            return Err(KickError::NotRequested);
        }
        self.raise(cell, ready.bits());
        Ok(())
    }

    /// Queues an event of a registered cell for the next turn, or adds conditions to its event.
    pub(super) fn raise(&mut self, cell: CellPtr, ready: u32) {
        let ready = u16::try_from(ready).expect("all conditions are in the low half");
        let conditions = self.synthetic.conditions_of(cell);
        if cell.has_flag(CellFlags::SYNTHETIC) {
            *conditions |= ready;
            return;
        }
        *conditions = ready;
        cell.set_flag(CellFlags::SYNTHETIC, true);
        if !cell.is_paused() {
            self.list_synthetic(cell);
        }
    }

    /// Lists the event of a registration that is not listed.
    fn list_synthetic(&mut self, cell: CellPtr) {
        // Keys of deleted registrations are at most as many as those of others.
        if self.synthetic.keys.len() >= 2 * self.registry.len() {
            self.synthetic.keys.retain(|key| self.registry.find(*key).is_some());
        }
        self.synthetic.keys.push_back(cell.key());
        self.note(pending_work::SYNTHETIC);
    }

    /// Takes the events of paused registrations off the list. Their flag says that they wait.
    pub(crate) fn keep_synthetic_of_paused(&mut self) {
        let registry = &self.registry;
        let waits = |key: &Key| registry.find(*key).is_some_and(|cell| !cell.is_paused());
        self.synthetic.keys.retain(waits);
    }

    /// Lists the event of a registration that is no longer paused, if it has one.
    pub(super) fn list_synthetic_of_resumed(&mut self, cell: CellPtr) {
        if cell.has_flag(CellFlags::SYNTHETIC) {
            self.list_synthetic(cell);
        }
    }

    /// How many synthetic events the batch may have before the kernel's. A batch of one event is
    /// the kernel's in every other turn.
    pub(crate) fn synthetic_first(&self) -> usize {
        (self.batch.capacity() + usize::from(self.counters.turns % 2 == 1)) / 2
    }

    /// Moves synthetic events into the closed batch, at most so many, and as far as there is room.
    pub(crate) fn push_synthetic(&mut self, most: usize) {
        self.clear(pending_work::SYNTHETIC);
        let mut room = self.batch.room().len().min(most);
        for _ in 0..self.synthetic.keys.len() {
            if room == 0 {
                break;
            }
            let Some(key) = self.synthetic.keys.pop_front() else { break };
            let Some(cell) = self.registry.find(key) else { continue };
            let is_once = cell.interest().has_one_shot();
            let is_disabled = is_once && cell.has_flag(CellFlags::FIRED);
            if is_once && !is_disabled && self.batch.names(cell.expose()) {
                // The handler of the kernel's event may re-arm it.
                self.synthetic.keys.push_back(key);
                continue;
            }
            cell.set_flag(CellFlags::SYNTHETIC, false);
            let ready = reported(cell, u32::from(*self.synthetic.conditions_of(cell)));
            if ready == 0 || is_disabled {
                continue;
            }
            if is_once {
                self.leave_set(cell);
            }
            self.batch.push(cell.expose(), ready);
            self.synthetic.in_batch.push(key);
            room -= 1;
        }
        if self.synthetic.any() {
            self.note(pending_work::SYNTHETIC);
        }
    }
}

/// The conditions that a report to this registration may have: those of its interest, errors and
/// hang-ups.
fn reported(cell: CellPtr, ready: u32) -> u32 {
    ready & (cell.interest_bits() | ERR | HUP)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use crate::{Reactor, Ready, interest};

    #[test]
    fn kicks_of_registrations_that_are_deleted_at_once_take_no_more_memory() {
        let mut reactor = Reactor::new().unwrap();
        for _ in 0..1000 {
            let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let with = interest().read().with_fd(fd).with_handler(|| {});
            let key = with.register_into(&mut reactor).unwrap();
            reactor.kick(key, Ready::empty().read()).unwrap();
            reactor.delete(key).unwrap();
        }
        let events = &reactor.parts().kernel.synthetic;
        assert!(events.keys.len() <= 4 && events.conditions.len() <= 4, "{}", events.keys.len());
        assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 0);
        assert!(!reactor.parts().kernel.synthetic.any());
    }
}
