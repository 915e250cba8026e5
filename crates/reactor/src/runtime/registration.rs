//! Taking subscribers back: [`Reactor::take`] and its siblings.

use core::any::TypeId;

use crate::{
    Key, Reactor, Subscriber, TakeError,
    api::ops::Token,
    cell::{CellPtr, NO_GROUP},
    util::unwind_safe_drop::Panics,
};

type Cell = CellPtr;

impl Reactor {
    /// Removes a subscriber and returns it.
    ///
    /// # Errors
    /// On error the subscriber stays registered.
    ///
    /// - [`NotFound`](crate::TakeError::NotFound): the key names no registered descriptor.
    /// - [`WrongType`](crate::TakeError::WrongType): the subscriber is not a `T`.
    /// - [`InGroup`](crate::TakeError::InGroup): the subscriber belongs to a group. Members leave a
    ///   group only by being deleted.
    pub fn take<T: Subscriber<Self>>(&mut self, key: Key) -> Result<T, TakeError> {
        let (cell, is_stale) =
            self.withdraw_if(key, |value| value.type_id() == TypeId::of::<T>())?;
        Ok(self.kernel.take_with(false, |reclaim| reclaim.take(cell, is_stale)))
    }

    /// Removes a subscriber and returns its descriptor. For subscribers made by `with_fd` and
    /// `with_handler`, whose type cannot be named.
    ///
    /// # Errors
    /// On error the subscriber stays registered.
    ///
    /// - [`NotFound`](crate::TakeError::NotFound): the key names no registered descriptor.
    /// - [`WrongType`](crate::TakeError::WrongType): the descriptor is not an `Fd`.
    /// - [`InGroup`](crate::TakeError::InGroup): the subscriber belongs to a group. Members leave a
    ///   group only by being deleted.
    pub fn take_fd<Fd: 'static>(&mut self, key: Key) -> Result<Fd, TakeError> {
        let (cell, is_stale) =
            self.withdraw_if(key, |value| value.fd_type(Token(())) == Some(TypeId::of::<Fd>()))?;
        let fd = self
            .kernel
            .take_with(false, |reclaim| reclaim.take_boxed(cell, is_stale))
            .into_fd(Token(()))
            .expect("the type was compared before");
        match fd.downcast::<Fd>() {
            Ok(fd) => Ok(*fd),
            Err(_) => unreachable!("the type was compared before"),
        }
    }

    /// Removes a subscriber and returns it in a box. If it was registered in a box, that box is
    /// returned.
    ///
    /// # Errors
    /// On error the subscriber stays registered.
    ///
    /// - [`NotFound`](crate::TakeError::NotFound): the key names no registered descriptor.
    /// - [`InGroup`](crate::TakeError::InGroup): the subscriber belongs to a group. Members leave a
    ///   group only by being deleted.
    pub fn take_boxed(&mut self, key: Key) -> Result<Box<dyn Subscriber<Self>>, TakeError> {
        let (cell, is_stale) = self.withdraw_if(key, |_| true)?;
        Ok(self.kernel.take_with(false, |reclaim| reclaim.take_boxed(cell, is_stale)))
    }

    /// Removes a cell from the epoll set and the registry if `wanted` accepts its subscriber.
    fn withdraw_if(
        &mut self,
        key: Key,
        wanted: impl FnOnce(&dyn Subscriber<Self>) -> bool,
    ) -> Result<(Cell, bool), TakeError> {
        let cell = self.kernel.registry.get(key).ok_or(TakeError::NotFound)?;
        if cell.group() != NO_GROUP {
            return Err(TakeError::InGroup);
        }
        if !self.kernel.look_at(cell, wanted) {
            return Err(TakeError::WrongType);
        }
        self.kernel.flush();
        let is_stale = self.kernel.unwatch(cell);
        self.kernel.registry.remove(cell, false);
        Ok((cell, is_stale))
    }

    /// Takes the reactor apart and returns every subscriber with the key it had. Members of groups
    /// are dropped with their state. Timers, closures and hooks are dropped as well.
    ///
    /// # Panics
    /// Resumes the first panic of a destructor. In that case the subscribers are dropped too.
    #[must_use]
    pub fn into_subscribers(mut self) -> Vec<(Key, Box<dyn Subscriber<Self>>)> {
        let keys: Vec<Key> = self.kernel.registry.iter().map(CellPtr::key).collect();
        let mut subscribers: Vec<_> =
            keys.into_iter().filter_map(|key| Some((key, self.take_boxed(key).ok()?))).collect();
        let mut panics = Panics::default();
        panics.catch(|| drop(self));
        if panics.any() {
            // The panic is resumed below, so the subscribers cannot be returned.
            while let Some(subscriber) = subscribers.pop() {
                panics.catch(|| drop(subscriber));
            }
        }
        panics.resume();
        subscribers
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use rustix::event::{EventfdFlags, eventfd};

    use crate::{Backend, Event, Key, Reactor, Turn, interest};

    /// The mark of a registration is a turn modulo 2^32. After so many turns a cell seems new, but
    /// the batch has its address (rule 2).
    #[test]
    fn a_cell_that_only_seems_new_is_kept_while_the_batch_names_it() {
        let mut reactor = Reactor::builder().backend(Backend::Epoll).build().unwrap();
        let keys: Rc<Cell<[Option<Key>; 2]>> = Rc::default();
        let is_kept = Rc::new(Cell::new(false));
        let both = [0, 1].map(|at| {
            let (keys, is_kept) = (Rc::clone(&keys), Rc::clone(&is_kept));
            let fd = eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
            let handler = move |_: Event, mut turn: Turn<'_, Reactor>| {
                turn.delete(keys.get()[1 - at].unwrap()).unwrap();
                is_kept.set(turn.ops().kernel.reclaim.has_dead());
            };
            Some(interest().read().with_fd(fd).with_handler(handler).register_into(&mut reactor))
        });
        keys.set(both.map(|key| key.and_then(Result::ok)));
        reactor.kernel.counters.turns += (1 << 32) - 1;
        assert_eq!(reactor.run_once(std::time::Duration::ZERO).unwrap(), 2);
        assert!(is_kept.get());
        assert_eq!(reactor.stats().subscribers, 1);
    }
}
