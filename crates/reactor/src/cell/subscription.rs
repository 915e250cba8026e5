//! A subscriber in its block, before and after it is registered.

#![allow(unsafe_code, reason = "it owns the block; the protocol of `cell/mod.rs`")]

use core::{any::TypeId, fmt, mem::ManuallyDrop, ptr::NonNull};
use std::alloc;

use super::{Block, CellHeader, CellPtr, CellVTableOf, NO_GROUP, OwnedCell};
use crate::{
    Interest, Key,
    api::ops::{ReactorOps, Subscriber},
    util::unwind_safe_drop::Panics,
};

/// A type-erased subscriber, passed into a reactor or returned by it. It is one heap block in the
/// form used for dispatch.
///
/// Dropping it drops the subscriber.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, Subscription, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let registration = interest().read().with_fd(stream).with_handler(|_: &mut UnixStream| {});
/// let subscription: Subscription<Reactor> = registration.into_subscription();
/// assert_eq!(subscription.interest(), interest().read());
/// reactor.add(subscription.into_boxed())?;
/// # Ok(())
/// # }
/// ```
pub struct Subscription<R: ReactorOps> {
    cell: OwnedCell<R>,
}

impl<R: ReactorOps> Subscription<R> {
    /// Moves a subscriber into its own block.
    #[must_use]
    pub fn new<T: Subscriber<R>>(subscriber: T) -> Self {
        let vtable = CellVTableOf::<T, R>::VTABLE;
        let header = CellHeader {
            fd: -1,
            group: NO_GROUP,
            armed: 0,
            interest: 0,
            key: Key::UNREGISTERED,
            dispatch: vtable.dispatch,
        };
        // SAFETY: a block holds a header, so its layout is not of size zero.
        let memory = unsafe { alloc::alloc(vtable.layout) }.cast::<Block<T, R>>();
        let Some(block) = NonNull::new(memory) else { alloc::handle_alloc_error(vtable.layout) };
        // SAFETY: the memory is fresh and has the block's layout.
        unsafe { block.write(Block { header, value: ManuallyDrop::new(subscriber) }) };
        // SAFETY: the vtable is that of `T`, which was written into the block.
        Self { cell: unsafe { OwnedCell::new(CellPtr(block.cast()), vtable) } }
    }

    /// Takes a subscriber that is boxed already. The box is kept, so each event costs one more
    /// indirection.
    #[must_use]
    pub fn from_boxed(subscriber: Box<dyn Subscriber<R>>) -> Self {
        Self::new(subscriber)
    }

    /// Returns the subscriber in a box.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn Subscriber<R>> {
        let cell = ManuallyDrop::new(self).cell;
        let block = FreeOnDrop(cell);
        // SAFETY: a subscription's value is alive. It is not registered, so no handler of it runs.
        // It is not used again, because `self` is not dropped.
        let boxed = unsafe { cell.take_boxed() };
        drop(block);
        boxed
    }

    /// Returns the subscriber as a `T`.
    ///
    /// # Errors
    /// `Err(self)` when the subscriber is not a `T`.
    pub fn into_inner<T: Subscriber<R>>(self) -> Result<T, Self> {
        if self.with(|value| value.type_id()) != TypeId::of::<T>() {
            return Err(self);
        }
        let cell = ManuallyDrop::new(self).cell;
        // SAFETY: the value is alive and a `T` (compared above). It is not used again, because
        // `self` is not dropped.
        let value = unsafe { cell.take_as() };
        // SAFETY: the value is gone and the cell is not registered, so the tables have no copy of
        // the pointer. The kernel never had the address, or cannot return it: code that made `self`
        // from a registered cell has proved that.
        unsafe { cell.free() };
        Ok(value)
    }

    /// The descriptor that the subscriber currently returns.
    #[must_use]
    pub fn fd(&self) -> std::os::fd::RawFd {
        self.with(|value| std::os::fd::AsRawFd::as_raw_fd(&value.fd()))
    }

    #[cfg(feature = "sim")]
    pub(crate) fn sim_id(&self) -> Option<crate::world::SimId> {
        self.with(|value| value.sim_id())
    }

    /// The interest that the subscriber currently returns.
    #[must_use]
    pub fn interest(&self) -> Interest {
        self.with(|value| value.interest())
    }

    fn with<U>(&self, look: impl FnOnce(&dyn Subscriber<R>) -> U) -> U {
        // SAFETY: a subscription owns its value and is not registered, so no handler of it runs.
        unsafe { self.cell.with_value(look) }
    }

    /// Gives up ownership of the block, to be registered.
    pub(crate) fn into_cell(self) -> CellPtr<R> {
        *ManuallyDrop::new(self).cell
    }

    /// The block. The subscription keeps ownership.
    pub(crate) fn cell(&self) -> OwnedCell<R> {
        self.cell
    }
}

impl<R: ReactorOps> Drop for Subscription<R> {
    fn drop(&mut self) {
        let _block = FreeOnDrop(self.cell);
        let cell = self.cell;
        // SAFETY: the value is alive, it is not registered so no handler of it runs, and it is not
        // used afterwards. The block is freed after this, even if the destructor panics.
        let destroy = || unsafe { cell.drop_value() };
        if std::thread::panicking() {
            // A second panic would abort.
            let mut panics = Panics::default();
            panics.catch(destroy);
            panics.resume();
        } else {
            destroy();
        }
    }
}

impl<R: ReactorOps> fmt::Debug for Subscription<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

/// Frees an unregistered block whose value is gone, even if its destructor panics.
struct FreeOnDrop<R: ReactorOps>(OwnedCell<R>);

impl<R: ReactorOps> Drop for FreeOnDrop<R> {
    fn drop(&mut self) {
        // SAFETY: a `Subscription` that gives up its block made this. The value is gone or being
        // unwound from, the block is not registered, and the kernel cannot return its address.
        unsafe { self.0.free() };
    }
}
