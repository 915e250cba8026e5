//! Ordered topics ([`Options::ordered_topics`]): all members see one order.
//!
//! 1. A topic has one worker that owns it. A publication goes to the mailbox of the owner first,
//!    also one of a [`Sender`](crate::Sender) or of another node. The publisher's own members wait.
//! 2. The owner passes it to the mailboxes of all other workers, and to its own members, in the
//!    order in which it has taken it. Its own publications join that order.
//! 3. So each other worker has one queue for the topic, with one producer. A mailbox without room
//!    loses a whole batch, and the loss is counted. Nothing is sent again, so nothing is reordered.
//! 4. The connection that does not get a publication travels with it, and its worker leaves it out.

use core::hash::BuildHasher as _;
use std::sync::Arc;

use crate::api::{Options, SecretHasher};

/// Which topics are ordered, and which worker owns each of them. The workers share it.
#[derive(Debug)]
pub(crate) struct TopicOwners {
    prefixes: Vec<Box<str>>,
    workers: u64,
    /// Peers may choose names of topics, so a secret keeps them from choosing the owner.
    hasher: SecretHasher,
}

impl TopicOwners {
    /// Returns `None` if no topic needs an owner.
    pub(crate) fn new(options: &Options, workers: usize) -> Option<Arc<Self>> {
        let prefixes = options.ordered_prefixes.clone();
        let is_needed = workers > 1 && !prefixes.is_empty();
        let (workers, hasher) = (workers as u64, SecretHasher::new());
        is_needed.then(|| Arc::new(Self { prefixes, workers, hasher }))
    }

    /// Returns the worker that owns a topic, if it is ordered.
    pub(crate) fn owner_of(&self, topic: &str) -> Option<u16> {
        let is_ordered = self.prefixes.iter().any(|prefix| topic.starts_with(&**prefix));
        // A worker has an index of 16 bits.
        is_ordered.then(|| (self.hasher.hash_one(topic) % self.workers) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_topics_with_a_prefix_have_an_owner_and_all_workers_own_some() {
        let mut options = Options::new();
        assert!(TopicOwners::new(&options, 3).is_none(), "no prefix");
        options.ordered_topics("room/");
        options.ordered_topics("game/");
        assert!(TopicOwners::new(&options, 1).is_none(), "one worker has one order");
        let owners = TopicOwners::new(&options, 3).unwrap();
        let none = ["", "room", "a room/", "Room/x", "$windlass/status"];
        assert_eq!(none.map(|topic| owners.owner_of(topic)), [None; 5]);
        for prefix in ["room/", "game/"] {
            let all: Vec<_> =
                (0..300).map(|n| owners.owner_of(&format!("{prefix}{n}")).unwrap()).collect();
            let again: Vec<_> =
                (0..300).map(|n| owners.owner_of(&format!("{prefix}{n}")).unwrap()).collect();
            assert_eq!(all, again);
            for worker in 0..3 {
                let owned = all.iter().filter(|owner| **owner == worker).count();
                assert!(owned > 30, "worker {worker} owns {owned} of 300");
            }
            assert!(all.iter().all(|owner| *owner < 3));
        }
    }
}
