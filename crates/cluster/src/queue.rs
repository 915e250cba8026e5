//! The publications that wait for the connection.

use std::collections::VecDeque;

/// What a waiting publication needs besides its payload and subject, about.
const OVERHEAD: usize = 64;

/// A publication for the connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) subject: Box<str>,
    pub(crate) payload: Vec<u8>,
}

impl Outgoing {
    fn weight(&self) -> usize {
        self.payload.len() + self.subject.len() + OVERHEAD
    }
}

/// A queue that drops its oldest entries when it is full.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: VecDeque<Outgoing>,
    weight: usize,
    messages_max: usize,
    weight_max: usize,
}

impl Queue {
    pub(crate) fn new(messages_max: usize, weight_max: usize) -> Self {
        Self { waiting: VecDeque::new(), weight: 0, messages_max, weight_max }
    }

    /// Appends a publication. Returns the number of older ones that were dropped for it.
    pub(crate) fn push(&mut self, message: Outgoing) -> u64 {
        self.weight += message.weight();
        self.waiting.push_back(message);
        let mut dropped = 0;
        // The new one stays in any case.
        while self.waiting.len() > 1
            && (self.waiting.len() > self.messages_max || self.weight > self.weight_max)
        {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    fn pop(&mut self) -> Option<Outgoing> {
        let message = self.waiting.pop_front()?;
        self.weight -= message.weight();
        Some(message)
    }

    /// Takes the oldest ones: so many, or fewer with so many bytes, and at least one.
    pub(crate) fn take(
        &mut self,
        messages_max: usize,
        weight_max: usize,
        into: &mut Vec<Outgoing>,
    ) {
        let mut weight = 0;
        while into.len() < messages_max && weight < weight_max {
            let Some(message) = self.pop() else { break };
            weight += message.weight();
            into.push(message);
        }
    }

    /// Drops all. Returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        self.weight = 0;
        core::mem::take(&mut self.waiting).len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: usize, len: usize) -> Outgoing {
        Outgoing { subject: format!("s{number}").into(), payload: vec![0; len] }
    }

    fn take_all(queue: &mut Queue) -> Vec<String> {
        let mut taken = Vec::new();
        queue.take(usize::MAX, usize::MAX, &mut taken);
        taken.iter().map(|message| message.subject.to_string()).collect()
    }

    #[test]
    fn the_oldest_are_dropped_when_there_are_too_many() {
        let mut queue = Queue::new(3, usize::MAX);
        let dropped: Vec<_> = (0..5).map(|number| queue.push(message(number, 0))).collect();
        assert_eq!(dropped, [0, 0, 0, 1, 1]);
        assert_eq!(take_all(&mut queue), ["s2", "s3", "s4"]);
        assert_eq!(queue.weight, 0);
    }

    #[test]
    fn the_oldest_are_dropped_when_they_are_too_large() {
        let mut queue = Queue::new(100, 3 * (10 + 2 + OVERHEAD));
        assert_eq!((0..3).map(|number| queue.push(message(number, 10))).sum::<u64>(), 0);
        assert_eq!(queue.push(message(3, 11)), 2, "one byte more than two have");
        assert_eq!(queue.push(message(4, 1000)), 2, "it is larger than the queue");
        assert_eq!(take_all(&mut queue), ["s4"]);
    }

    #[test]
    fn a_part_is_taken_in_order() {
        let mut queue = Queue::new(100, usize::MAX);
        (0..6).for_each(|number| _ = queue.push(message(number, 10)));
        let mut taken = Vec::new();
        queue.take(2, usize::MAX, &mut taken);
        assert_eq!(taken.len(), 2);
        taken.clear();
        queue.take(100, 1, &mut taken);
        assert_eq!((taken.len(), &*taken[0].subject), (1, "s2"));
        assert_eq!((queue.clear(), queue.weight), (3, 0));
    }
}
