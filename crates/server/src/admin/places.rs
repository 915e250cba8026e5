//! The places of the admin listener's connections: which one goes when there are too many.

use core::cell::RefCell;
use std::collections::VecDeque;

use windlass::Key;

use super::CONNECTIONS_MAX;
use crate::http::AddressKey;

/// A client without the token cannot hold a place. A new connection gets that of one without an
/// answer, of the address that has most of these: so one address cannot keep out another. If all
/// have had an answer, it gets that of the one that was answered longest ago.
#[derive(Default)]
pub(super) struct Places(RefCell<VecDeque<Place>>);

/// The oldest is first. A connection that gets an answer becomes the newest.
#[derive(Clone, Copy)]
pub(super) struct Place {
    stream: Key,
    /// `None` for a Unix socket: its clients count as one address.
    address: Option<AddressKey>,
    has_answer: bool,
}

impl Places {
    /// Gives a new connection a place. Returns the connection that must go for it.
    pub(super) fn enter(&self, stream: Key, address: Option<AddressKey>) -> Option<Key> {
        let places = &mut *self.0.borrow_mut();
        let is_full = places.len() >= CONNECTIONS_MAX;
        // The new one counts: of two addresses with as many, the one that connects again loses.
        places.push_back(Place { stream, address, has_answer: false });
        let gone = if is_full { places.remove(first_to_go(places)) } else { None };
        gone.map(|place| place.stream)
    }

    /// Notes that a request of this connection was answered and not refused.
    pub(super) fn note_answer(&self, stream: Key) {
        if let Some(place) = self.remove(stream) {
            self.0.borrow_mut().push_back(Place { has_answer: true, ..place });
        }
    }

    /// Frees the place of a connection, if it has one.
    pub(super) fn remove(&self, stream: Key) -> Option<Place> {
        let places = &mut *self.0.borrow_mut();
        let at = places.iter().position(|place| place.stream == stream);
        at.and_then(|at| places.remove(at))
    }
}

/// The index of the place that the newest one, which is the last, takes.
fn first_to_go(places: &VecDeque<Place>) -> usize {
    let silent = || places.iter().enumerate().filter(|(_, place)| !place.has_answer);
    let of_address = |address| silent().filter(|(_, place)| place.address == address).count();
    let last = places.len() - 1;
    // `rev` because the last of several maxima is returned, and the oldest one goes.
    silent()
        .rev()
        .filter(|(index, _)| *index != last)
        .max_by_key(|(_, place)| of_address(place.address))
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
        let places = Places::default();
        assert!(first.iter().all(|key| places.enter(*key, None).is_none()));
        places.note_answer(first[0]);
        assert_eq!(places.enter(later[0], None), Some(first[1]));
        assert!(places.remove(first[2]).is_some() && places.remove(first[1]).is_none());
        assert_eq!(places.enter(later[1], None), None);
        first[3..].iter().chain(&later[..2]).for_each(|key| places.note_answer(*key));
        assert_eq!(places.enter(later[2], None), Some(first[0]), "the others were answered later");
        assert_eq!(places.enter(later[3], None), Some(later[2]), "it has no answer");
        places.note_answer(first[1]);
        assert!(places.remove(first[1]).is_none(), "it is gone");
    }

    #[test]
    fn the_address_with_most_connections_without_an_answer_loses_one() {
        let address = |last| Some(AddressKey::of_ip([127, 0, 0, last].into()));
        let keys = keys(CONNECTIONS_MAX + 4);
        let (first, later) = keys.split_at(CONNECTIONS_MAX);
        let places = Places::default();
        // One of them is the client's, half of the others are answered.
        for (index, key) in first.iter().enumerate() {
            assert_eq!(places.enter(*key, address(if index == 0 { 2 } else { 1 })), None);
        }
        first[1..32].iter().for_each(|key| places.note_answer(*key));
        assert_eq!(places.enter(later[0], address(1)), Some(first[32]));
        assert_eq!(places.enter(later[1], address(3)), Some(first[33]));
        // The others have one each, so the oldest goes for a third address.
        first[34..].iter().chain(&later[..1]).for_each(|key| places.note_answer(*key));
        assert_eq!(places.enter(later[2], address(3)), Some(later[1]), "it is of the same address");
        assert_eq!(places.enter(later[3], address(4)), Some(first[0]));
    }
}
