//! Taking subscribers back: [`Reactor::take`] and its siblings.

use core::any::TypeId;

use crate::{
    Key, Reactor, Subscriber, TakeError,
    api::ops::Token,
    cell::{CellPtr, NO_GROUP},
    util::unwind_safe_drop::Panics,
};

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
        let cell = self.find_if(key, |value| value.type_id() == TypeId::of::<T>())?;
        Ok(self.kernel.take_value(cell))
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
        let cell =
            self.find_if(key, |value| value.fd_type(Token(())) == Some(TypeId::of::<Fd>()))?;
        let fd =
            self.kernel.take_boxed(cell).into_fd(Token(())).expect("the type was compared before");
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
        let cell = self.find_if(key, |_| true)?;
        Ok(self.kernel.take_boxed(cell))
    }

    /// The cell of a key, if it may be taken back and `wanted` accepts its subscriber.
    fn find_if(
        &self,
        key: Key,
        wanted: impl FnOnce(&dyn Subscriber<Self>) -> bool,
    ) -> Result<CellPtr, TakeError> {
        let cell = self.kernel.get(key).ok_or(TakeError::NotFound)?;
        if cell.group() != NO_GROUP {
            return Err(TakeError::InGroup);
        }
        if self.kernel.look_at(cell, wanted) { Ok(cell) } else { Err(TakeError::WrongType) }
    }

    /// Takes the reactor apart and returns every subscriber with the key it had. Members of groups
    /// are dropped with their state. Timers, closures and hooks are dropped as well.
    ///
    /// # Panics
    /// Resumes the first panic of a destructor. In that case the subscribers are dropped too.
    #[must_use]
    pub fn into_subscribers(mut self) -> Vec<(Key, Box<dyn Subscriber<Self>>)> {
        let keys = self.kernel.keys();
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
