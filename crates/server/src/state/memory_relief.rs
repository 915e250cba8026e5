//! What a worker does when memory is short: it evicts the connections that hold the most, and
//! pauses others. The rules are in `shared/memory_budget.rs`.

use core::cmp::Reverse;

use windlass::Turn;

use super::tables::Tables;
use crate::{
    api::CloseReason,
    pubsub::waiting_bytes,
    shared::{MemoryHolder, Shared},
};

impl Tables {
    /// Checks the memory in use if more data has begun to wait.
    pub(crate) fn check_memory_if_grown(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if shared.memory.has_grown() && shared.memory.check(turn) {
            self.relieve(shared, turn, true);
        }
    }

    /// Checks this worker's memory because another worker may need it.
    pub(crate) fn relieve_others(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if shared.memory.is_over() {
            self.relieve(shared, turn, false);
        }
    }

    /// Reduces the memory in use, as far as this worker is responsible.
    pub(super) fn relieve(&mut self, shared: &Shared, turn: &mut Turn<'_>, has_grown: bool) {
        let budget = &shared.memory;
        let mut holders = self.holders(turn);
        budget.settle(turn);
        if let Some(excess) = budget.excess(turn) {
            self.evict(shared, turn, &mut holders, excess);
            budget.settle(turn);
            if has_grown {
                budget.wake_others_if_over(&shared.worker);
            }
        }
        budget.pause_largest(holders, &mut self.conns, turn, &shared.stats, shared.tick());
        budget.end_search(turn);
    }

    /// Returns the connections that hold memory, the largest first. Output that was only collected
    /// in this turn is written before: it does not wait for its receiver.
    fn holders(&mut self, turn: &mut Turn<'_>) -> Vec<MemoryHolder> {
        let mut holders = Vec::new();
        for index in 0..self.conns.slots() {
            let Some(entry) = self.conns.get_mut(index) else { continue };
            let Ok(mut stream) = turn.stream(entry.stream) else { continue };
            waiting_bytes(&mut stream, usize::MAX, 0);
            let partial = entry.partial_bytes as usize;
            let topics = self.delivery.topics().memory(entry.subscriptions);
            let (held, backlog) = (self.held_memory(index), self.delivery.backlog_memory(index));
            let waiting = stream.memory() + partial + held + backlog;
            if waiting + topics > 0 {
                holders.push(MemoryHolder { waiting, topics, index });
            }
        }
        holders.sort_unstable_by_key(|holder| Reverse(holder.bytes()));
        holders
    }

    /// Evicts the largest connections until this many bytes are free.
    fn evict(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        holders: &mut Vec<MemoryHolder>,
        bytes: usize,
    ) {
        let mut freed = 0;
        let mut count = 0;
        for holder in holders.iter().take_while(|_| bytes > 0) {
            if freed >= bytes {
                break;
            }
            freed += holder.bytes();
            count += 1;
            self.begin_closing(shared, holder.index, CloseReason::Evicted);
            shared.stats.evicted.add(1);
            shared.stats.evicted_for_memory.add(1);
            self.drop_waiting(shared, holder.index);
            self.delivery.leave_topics(&mut self.conns, shared, holder.index);
            let entry = self.conns.entry(holder.index);
            // The memory of partly received data is freed with the connection, in the next turn.
            let partial_bytes = core::mem::take(&mut entry.partial_bytes);
            shared.memory.record_change(partial_bytes as usize, 0);
            if let Ok(mut stream) = turn.stream(entry.stream) {
                stream.discard();
            }
        }
        holders.drain(..count);
    }
}
