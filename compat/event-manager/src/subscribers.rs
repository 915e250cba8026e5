//! The subscribers of a manager, by number.

/// Names a subscriber of one manager. The identifier of a removed subscriber names no later one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub struct SubscriberId(u64);

impl SubscriberId {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    /// The place of the subscriber.
    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }
}

/// Subscribers at fixed places. A place is used again under another generation.
#[derive(Debug)]
pub(crate) struct Subscribers<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    subscriber: Option<T>,
}

impl<T> Subscribers<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// # Panics
    /// If there were 2³² subscribers.
    pub(crate) fn add(&mut self, subscriber: T) -> SubscriberId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, subscriber: None });
            u32::try_from(self.places.len() - 1).expect("memory ends before the numbers")
        });
        let place = &mut self.places[index as usize];
        place.generation += 1;
        place.subscriber = Some(subscriber);
        SubscriberId::new(index, place.generation)
    }

    pub(crate) fn remove(&mut self, id: SubscriberId) -> Option<T> {
        let place = self.place(id)?;
        let removed = place.subscriber.take()?;
        // A place without a further generation is not used again.
        if place.generation < u32::MAX {
            self.free.push(id.index());
        }
        Some(removed)
    }

    pub(crate) fn get_mut(&mut self, id: SubscriberId) -> Option<&mut T> {
        self.place(id)?.subscriber.as_mut()
    }

    /// The subscriber at a place, for watches, which end with their subscriber.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.subscriber.as_mut()
    }

    fn place(&mut self, id: SubscriberId) -> Option<&mut Place<T>> {
        let place = self.places.get_mut(id.index() as usize)?;
        (SubscriberId::new(id.index(), place.generation) == id).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_identifier() {
        let mut subscribers = Subscribers::new();
        let (one, two) = (subscribers.add("one"), subscribers.add("two"));
        assert_eq!(subscribers.remove(one), Some("one"));
        assert_eq!(subscribers.remove(one), None);
        let three = subscribers.add("three");
        assert_eq!(three.index(), one.index());
        assert_eq!(subscribers.get_mut(one), None);
        assert_eq!(subscribers.get_mut(three), Some(&mut "three"));
        assert_eq!(subscribers.get_mut(two), Some(&mut "two"));
        assert_eq!(subscribers.at_mut(three.index()), Some(&mut "three"));
    }

    #[test]
    fn a_place_without_a_further_generation_is_not_used_again() {
        let mut subscribers = Subscribers::new();
        let first = subscribers.add(1);
        subscribers.places[0].generation = u32::MAX;
        let last = SubscriberId::new(first.index(), u32::MAX);
        assert_eq!(subscribers.remove(last), Some(1));
        assert_ne!(subscribers.add(2).index(), first.index());
    }
}
