//! [`ConnectionList`]: the admin listener's connections, and which one goes when there are too
//! many.

use core::cell::RefCell;
use std::collections::VecDeque;

use windlass::Key;

use super::CONNECTIONS_MAX;
use crate::http::AddressKey;

/// A client without the token cannot hold an entry. A new connection gets that of one without an
/// answer, of the address that has most of these: so one address cannot keep out another. If all
/// have had an answer, it gets that of the one that was answered longest ago.
#[derive(Default)]
pub(super) struct ConnectionList(RefCell<VecDeque<ConnectionEntry>>);

/// The oldest is first. A connection that gets an answer becomes the newest.
#[derive(Clone, Copy)]
pub(super) struct ConnectionEntry {
    stream: Key,
    /// `None` for a Unix socket: its clients count as one address.
    address: Option<AddressKey>,
    has_answer: bool,
}

impl ConnectionList {
    /// Gives a new connection an entry. Returns the connection that must go for it.
    pub(super) fn enter(&self, stream: Key, address: Option<AddressKey>) -> Option<Key> {
        let list = &mut *self.0.borrow_mut();
        let is_full = list.len() >= CONNECTIONS_MAX;
        // The new one counts: of two addresses with as many, the one that connects again loses.
        list.push_back(ConnectionEntry { stream, address, has_answer: false });
        let gone = if is_full { list.remove(first_to_go(list)) } else { None };
        gone.map(|entry| entry.stream)
    }

    /// Notes that a request of this connection was answered and not rejected.
    pub(super) fn note_answer(&self, stream: Key) {
        if let Some(entry) = self.remove(stream) {
            self.0.borrow_mut().push_back(ConnectionEntry { has_answer: true, ..entry });
        }
    }

    /// Frees the entry of a connection, if it has one.
    pub(super) fn remove(&self, stream: Key) -> Option<ConnectionEntry> {
        let list = &mut *self.0.borrow_mut();
        let at = list.iter().position(|entry| entry.stream == stream);
        at.and_then(|at| list.remove(at))
    }
}

/// The index of the entry that makes room for the newest one, which is the last.
fn first_to_go(list: &VecDeque<ConnectionEntry>) -> usize {
    let silent = || list.iter().enumerate().filter(|(_, entry)| !entry.has_answer);
    let of_address = |address| silent().filter(|(_, entry)| entry.address == address).count();
    let last = list.len() - 1;
    // `rev` because the last of several maxima is returned, and the oldest one goes.
    silent()
        .rev()
        .filter(|(index, _)| *index != last)
        .max_by_key(|(_, entry)| of_address(entry.address))
        .map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use windlass::{
        Reactor,
        stream::{Input, Stream, StreamHandler, StreamOptions},
    };

    use super::*;

    struct Ignores;

    impl StreamHandler for Ignores {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
    }

    fn keys(count: usize) -> Vec<Key> {
        let mut reactor = Reactor::new().unwrap();
        let mut key = || {
            let (ours, _) = UnixStream::pair().unwrap();
            StreamOptions::new().with_fd(ours).with_handler(Ignores).register_into(&mut reactor)
        };
        (0..count).map(|_| key().unwrap()).collect()
    }

    #[test]
    fn the_oldest_without_an_answer_goes_and_then_the_oldest() {
        let keys = keys(CONNECTIONS_MAX + 4);
        let (first, later) = keys.split_at(CONNECTIONS_MAX);
        let list = ConnectionList::default();
        assert!(first.iter().all(|key| list.enter(*key, None).is_none()));
        list.note_answer(first[0]);
        assert_eq!(list.enter(later[0], None), Some(first[1]));
        assert!(list.remove(first[2]).is_some() && list.remove(first[1]).is_none());
        assert_eq!(list.enter(later[1], None), None);
        first[3..].iter().chain(&later[..2]).for_each(|key| list.note_answer(*key));
        assert_eq!(list.enter(later[2], None), Some(first[0]), "the others were answered later");
        assert_eq!(list.enter(later[3], None), Some(later[2]), "it has no answer");
        list.note_answer(first[1]);
        assert!(list.remove(first[1]).is_none(), "it is gone");
    }

    #[test]
    fn the_address_with_most_connections_without_an_answer_loses_one() {
        let address = |last| Some(AddressKey::of_ip([127, 0, 0, last].into()));
        let keys = keys(CONNECTIONS_MAX + 4);
        let (first, later) = keys.split_at(CONNECTIONS_MAX);
        let list = ConnectionList::default();
        // One of them is the client's, half of the others are answered.
        for (index, key) in first.iter().enumerate() {
            assert_eq!(list.enter(*key, address(if index == 0 { 2 } else { 1 })), None);
        }
        first[1..32].iter().for_each(|key| list.note_answer(*key));
        assert_eq!(list.enter(later[0], address(1)), Some(first[32]));
        assert_eq!(list.enter(later[1], address(3)), Some(first[33]));
        // The others have one each, so the oldest goes for a third address.
        first[34..].iter().chain(&later[..1]).for_each(|key| list.note_answer(*key));
        assert_eq!(list.enter(later[2], address(3)), Some(later[1]), "it is of the same address");
        assert_eq!(list.enter(later[3], address(4)), Some(first[0]));
    }
}
