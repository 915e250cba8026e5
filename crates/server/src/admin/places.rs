//! The places of the admin listener's connections: which one goes when there are too many.

use core::cell::RefCell;
use std::collections::VecDeque;

use windlass::Key;

use super::CONNECTIONS_MAX;

/// A client without the token cannot hold a place: a new connection gets that of the oldest one
/// without an answer, or else of the one that was answered longest ago.
#[derive(Default)]
pub(super) struct Places(RefCell<VecDeque<Place>>);

/// The oldest is first. A connection that gets an answer becomes the newest.
#[derive(Clone, Copy)]
struct Place {
    stream: Key,
    has_answer: bool,
}

impl Places {
    /// Gives a new connection a place. Returns the connection that must go for it.
    pub(super) fn enter(&self, stream: Key) -> Option<Key> {
        let places = &mut *self.0.borrow_mut();
        let is_full = places.len() >= CONNECTIONS_MAX;
        let oldest = places.iter().position(|place| !place.has_answer).unwrap_or(0);
        let gone = if is_full { places.remove(oldest) } else { None };
        places.push_back(Place { stream, has_answer: false });
        gone.map(|place| place.stream)
    }

    /// Notes that a request of this connection was answered and not refused.
    pub(super) fn note_answer(&self, stream: Key) {
        if self.remove(stream) {
            self.0.borrow_mut().push_back(Place { stream, has_answer: true });
        }
    }

    /// Frees the place of a connection. Returns false if it had none.
    pub(super) fn remove(&self, stream: Key) -> bool {
        let places = &mut *self.0.borrow_mut();
        let at = places.iter().position(|place| place.stream == stream);
        at.and_then(|at| places.remove(at)).is_some()
    }
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

    #[test]
    fn the_oldest_without_an_answer_goes_and_then_the_oldest() {
        let mut reactor = Reactor::new().unwrap();
        let mut key = || {
            let (ours, _) = UnixStream::pair().unwrap();
            StreamOptions::new().with_fd(ours).with_handler(Ignores).register_into(&mut reactor)
        };
        let keys: Vec<_> = (0..CONNECTIONS_MAX + 4).map(|_| key().unwrap()).collect();
        let (first, later) = keys.split_at(CONNECTIONS_MAX);
        let places = Places::default();
        assert!(first.iter().all(|key| places.enter(*key).is_none()));
        places.note_answer(first[0]);
        assert_eq!(places.enter(later[0]), Some(first[1]));
        assert!(places.remove(first[2]) && !places.remove(first[1]));
        assert_eq!(places.enter(later[1]), None);
        first[3..].iter().chain(&later[..2]).for_each(|key| places.note_answer(*key));
        assert_eq!(places.enter(later[2]), Some(first[0]), "the others were answered later");
        assert_eq!(places.enter(later[3]), Some(later[2]), "it has no answer");
        places.note_answer(first[1]);
        assert!(!places.remove(first[1]), "it is gone");
    }
}
