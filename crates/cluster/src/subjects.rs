//! The subjects that are wanted, and what the connection has to be told about them.

use std::{collections::HashSet, sync::Arc};

/// A subject, and whether it is wanted.
pub(crate) type Change = (Arc<str>, bool);

/// The subjects of a bus.
///
/// `changed` has only subjects that are either wanted or known to the connection, but not both. So
/// it is bounded by these two, and not by the number of changes.
#[derive(Debug, Default)]
pub(crate) struct Subjects {
    wanted: HashSet<Arc<str>>,
    /// The subjects that the connection is subscribed to. `None` without a connection, which is
    /// told everything when it begins.
    known: Option<HashSet<Arc<str>>>,
    changed: HashSet<Arc<str>>,
}

impl Subjects {
    pub(crate) fn change(&mut self, subject: &str, is_wanted: bool) {
        let subject: Arc<str> = subject.into();
        if is_wanted {
            self.wanted.insert(Arc::clone(&subject));
        } else {
            self.wanted.remove(&subject);
        }
        let Some(known) = &self.known else { return };
        if known.contains(&subject) == is_wanted {
            self.changed.remove(&subject);
        } else {
            self.changed.insert(subject);
        }
    }

    /// A connection begins. It is subscribed to nothing.
    pub(crate) fn begin(&mut self) {
        self.known = Some(HashSet::new());
        self.changed = self.wanted.clone();
    }

    /// The connection has ended.
    pub(crate) fn end(&mut self) {
        (self.known, self.changed) = (None, HashSet::new());
    }

    /// What the connection is to be told, at most once.
    pub(crate) fn take_changed(&mut self) -> Vec<Change> {
        let Some(known) = &mut self.known else { return Vec::new() };
        let changed = core::mem::take(&mut self.changed).into_iter();
        changed
            .map(|subject| {
                let is_wanted = self.wanted.contains(&subject);
                if is_wanted {
                    known.insert(Arc::clone(&subject));
                } else {
                    known.remove(&subject);
                }
                (subject, is_wanted)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(subjects: &mut Subjects) -> Vec<(String, bool)> {
        let mut changes: Vec<_> = subjects.take_changed();
        changes.sort();
        changes.into_iter().map(|(subject, is_wanted)| (subject.to_string(), is_wanted)).collect()
    }

    /// Issue 29. A server without its NATS runs on, and its rooms come and go.
    #[test]
    fn without_a_connection_only_the_wanted_ones_are_kept() {
        let mut subjects = Subjects::default();
        for room in 0..1000 {
            subjects.change(&format!("room {room}"), true);
            subjects.change(&format!("room {room}"), room == 7);
        }
        assert_eq!((subjects.wanted.len(), subjects.changed.len()), (1, 0));
        assert!(subjects.take_changed().is_empty());
        subjects.begin();
        assert_eq!(changes(&mut subjects), [("room 7".to_owned(), true)]);
        subjects.change("room 8", true);
        subjects.end();
        assert_eq!((subjects.wanted.len(), subjects.changed.len()), (2, 0));
    }

    /// The thread of the bus waits while the socket is full.
    #[test]
    fn changes_that_nobody_takes_do_not_add_up() {
        let mut subjects = Subjects::default();
        subjects.change("kept", true);
        subjects.change("left", true);
        subjects.begin();
        assert_eq!(changes(&mut subjects).len(), 2);
        for room in 0..1000 {
            subjects.change(&format!("room {room}"), true);
            subjects.change(&format!("room {room}"), false);
            subjects.change("kept", false);
            subjects.change("kept", true);
        }
        subjects.change("left", false);
        subjects.change("new", true);
        assert_eq!(subjects.changed.len(), 2);
        let expected = [("left".to_owned(), false), ("new".to_owned(), true)];
        assert_eq!(changes(&mut subjects), expected);
        assert!(subjects.take_changed().is_empty());
    }
}
