//! The cell of a subscriber: one heap block with a header and the value. The kernel stores its
//! address.
//!
//! # The protocol of this module
//!
//! A block is `#[repr(C)] { header, value }`. Only this module accesses the header. The value is
//! the subscriber.
//!
//! 1. A [`CellPtr`] points to a block whose header is allocated. The value is alive from
//!    [`Subscription::new`] until exactly one of [`OwnedCell::drop_value`],
//!    [`OwnedCell::take_boxed`] and [`CellPtr::take_as`]. The header stays allocated until
//!    [`OwnedCell::free`], which comes after that. These functions are `unsafe`: their callers (the
//!    reactor's registration tables, and [`Subscription`]) prove the order.
//! 2. While a handler runs, the trampoline ([`dispatch`]) borrows the value mutably and nothing
//!    else accesses it. The reactor's methods may read and write header fields at that time. They
//!    access fields only through the raw pointer, and no reference to a header is ever made (rule 5
//!    of ARCHITECTURE.md).
//! 3. Only [`CellPtr::expose`] converts the pointer into an address for the kernel, and only
//!    [`CellPtr::from_exposed`] converts it back (rule 11). The address stays valid as long as the
//!    kernel may return it, because the reclaim queue calls `free` no earlier (rule 2). After
//!    `free`, no copy of the pointer is used, not even by the safe accessors of [`CellPtr`].
//! 4. A block never moves and belongs to one thread: `CellPtr` is neither `Send` nor `Sync`.

#![allow(
    unsafe_code,
    reason = "the header's address is what the kernel carries; the protocol above"
)]

mod flags;
mod inflight;
mod owned;
pub(crate) mod registration;
mod subscription;

use core::{
    alloc::Layout,
    any::Any,
    fmt,
    marker::PhantomData,
    mem::{self, ManuallyDrop},
    ptr::{self, NonNull},
};

pub(crate) use flags::CellFlags;
pub(crate) use owned::OwnedCell;
pub use subscription::Subscription;

use crate::{
    Event, Interest, Key, Reactor, Ready, Turn,
    api::{
        key::MAX_INDEX,
        ops::{OwnEvent, ReactorOps, Subscriber, Token},
    },
};

/// The function that a ready descriptor calls. Dispatch loads the header's address, loads this
/// pointer from it, and calls it.
///
/// # Safety
/// - The header belongs to a block whose value is alive and not borrowed, unless the function does
///   not access the value (see [`noop_dispatch`]).
/// - The reactor is the one that the block is registered with, and it is not borrowed elsewhere.
pub(crate) type DispatchFn<R> = unsafe fn(*mut CellHeader<R>, u32, *mut R);

/// The reactor's data about a registration, stored next to the value.
#[repr(C)]
pub(crate) struct CellHeader<R: 'static> {
    /// The descriptor's number at registration (rule 6).
    fd: i32,
    /// The index of the value's group, or [`NO_GROUP`]. [`PAUSED`] is set while it is paused.
    group: u32,
    /// The kernel's current mask, and the [`CellFlags`] in the bits that epoll_ctl(2) leaves free.
    armed: u32,
    /// The interest that the user requested. It is in the header and not in the value, so that a
    /// handler that modifies its own registration aliases nothing (rule 5).
    interest: u32,
    key: Key,
    /// Last, right before the value, so that both are usually in one cache line.
    dispatch: DispatchFn<R>,
}

/// The group of a value without a group. Larger than any index.
pub(crate) const NO_GROUP: u32 = MAX_INDEX + 1;
/// The group of the reactor's own timers, which are not listed: nobody else may end them.
pub(crate) const OWN_TIMER: u32 = NO_GROUP + 1;
/// Marks the group of a member that is paused.
pub(crate) const PAUSED: u32 = 1 << 31;

/// The functions that depend on the value's type.
pub(crate) struct CellVTable<R: 'static> {
    layout: Layout,
    dispatch: DispatchFn<R>,
    dispatch_one_shot: DispatchFn<R>,
    value: unsafe fn(NonNull<CellHeader<R>>) -> *mut dyn Subscriber<R>,
    unbox: unsafe fn(NonNull<CellHeader<R>>) -> Box<dyn Subscriber<R>>,
}

/// The memory layout of a block.
#[repr(C)]
struct Block<T, R: 'static> {
    header: CellHeader<R>,
    value: ManuallyDrop<T>,
}

/// Provides the vtable of one type as a constant.
struct CellVTableOf<T, R>(PhantomData<(T, R)>);

impl<T: Subscriber<R>, R: ReactorOps> CellVTableOf<T, R> {
    const VTABLE: &'static CellVTable<R> = &CellVTable {
        layout: Layout::new::<Block<T, R>>(),
        dispatch: dispatch::<T, R>,
        dispatch_one_shot: dispatch_one_shot::<T, R>,
        value: value::<T, R>,
        unbox: unbox::<T, R>,
    };
}

/// The trampoline from the loop to a handler of type `T`.
///
/// # Safety
/// As [`DispatchFn`] says, and the block's value is a `T`.
unsafe fn dispatch<T: Subscriber<R>, R: ReactorOps>(
    header: *mut CellHeader<R>,
    ready: u32,
    reactor: *mut R,
) {
    // SAFETY: the header is allocated, so not null (the caller's promise).
    let cell = CellPtr(unsafe { NonNull::new_unchecked(header) });
    let block = header.cast::<Block<T, R>>();
    // SAFETY: the block holds a live `T` that nothing else borrows (the caller's promise,
    // protocol 2).
    let value: &mut T = unsafe { &mut (*block).value };
    // SAFETY: the caller promises that the reactor is live and not borrowed elsewhere during the
    // call. The value lies in its own block, so the two references do not overlap.
    let reactor = unsafe { &mut *reactor };
    let event = Event::new(cell.key(), cell.interest(), Ready::from_bits(ready));
    value.handle(event, Turn::new(reactor));
}

/// The trampoline of a one-shot registration. It records that the kernel has disabled it.
///
/// # Safety
/// As [`dispatch`].
unsafe fn dispatch_one_shot<T: Subscriber<R>, R: ReactorOps>(
    header: *mut CellHeader<R>,
    ready: u32,
    reactor: *mut R,
) {
    // SAFETY: the header is allocated, so not null (the caller's promise).
    let cell = CellPtr(unsafe { NonNull::new_unchecked(header) });
    cell.set_flag(CellFlags::FIRED, !cell.has_flag(CellFlags::REARMED));
    cell.set_flag(CellFlags::REARMED, false);
    // SAFETY: the caller's promise covers this call.
    unsafe { dispatch::<T, R>(header, ready, reactor) }
}

/// The function of a dead cell, which does nothing. A deleted subscriber does not fire again
/// (rule 9), and the loop needs no branch for that.
fn noop_dispatch<R>(_: *mut CellHeader<R>, _: u32, _: *mut R) {}

/// The function of a quarantined cell (rule 7). The kernel still returns its address, so the epoll
/// set must be rebuilt.
///
/// # Safety
/// The reactor is live and not borrowed elsewhere.
unsafe fn stale_dispatch<R: ReactorOps>(_: *mut CellHeader<R>, _: u32, reactor: *mut R) {
    // SAFETY: the caller's promise.
    let reactor = unsafe { &mut *reactor };
    reactor.own_event(OwnEvent::StaleEntry, Token(()));
}

/// The function of a paused cell. What the kernel has found is kept, or found again.
///
/// # Safety
/// The header is allocated, and the reactor is live and not borrowed elsewhere.
unsafe fn paused_dispatch<R: ReactorOps>(header: *mut CellHeader<R>, ready: u32, reactor: *mut R) {
    // SAFETY: the header is allocated, so not null (the caller's promise).
    let key = CellPtr(unsafe { NonNull::new_unchecked(header) }).key();
    // SAFETY: the caller's promise.
    let reactor = unsafe { &mut *reactor };
    reactor.own_event(OwnEvent::Paused { key, ready }, Token(()));
}

/// # Safety
/// The block's value is a live `T`.
unsafe fn value<T: Subscriber<R>, R: ReactorOps>(
    header: NonNull<CellHeader<R>>,
) -> *mut dyn Subscriber<R> {
    let block = header.as_ptr().cast::<Block<T, R>>();
    // SAFETY: the block is allocated as a `Block<T, R>` (the caller's promise), so the field lies
    // inside the block.
    let value: *mut ManuallyDrop<T> = unsafe { &raw mut (*block).value };
    // `ManuallyDrop` is `repr(transparent)`.
    value.cast::<T>()
}

/// # Safety
/// The block's value is a live `T`, not borrowed, and not used as one afterwards.
unsafe fn unbox<T: Subscriber<R>, R: ReactorOps>(
    header: NonNull<CellHeader<R>>,
) -> Box<dyn Subscriber<R>> {
    // SAFETY: the value is a live `T`, and the caller gives it up.
    let value: T = unsafe { CellPtr(header).take_as() };
    let boxed: Box<dyn Any> = Box::new(value);
    match boxed.downcast::<Box<dyn Subscriber<R>>>() {
        // The value was boxed already; that box is returned.
        Ok(came_boxed) => *came_boxed,
        Err(boxed) => match boxed.downcast::<T>() {
            Ok(value) => value,
            Err(_) => unreachable!("the box was made of a T three lines above"),
        },
    }
}

/// The address of a cell. The registration tables and the kernel hold copies of it; see the
/// module's protocol.
pub(crate) struct CellPtr<R: 'static = Reactor>(NonNull<CellHeader<R>>);

impl<R> Clone for CellPtr<R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for CellPtr<R> {}
impl<R> PartialEq for CellPtr<R> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<R> fmt::Debug for CellPtr<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellPtr({:p})", self.0)
    }
}

/// Declares the getter and the setter of a header field.
macro_rules! field {
    ($field:ident: $type:ty, $get:ident, $set:ident) => {
        pub(crate) fn $get(self) -> $type {
            // SAFETY: the header is allocated (protocol 1), and its fields are accessed only in
            // this way (protocol 2).
            unsafe { (*self.0.as_ptr()).$field }
        }

        pub(crate) fn $set(self, to: $type) {
            // SAFETY: as for the getter; no other thread has the pointer (protocol 4).
            unsafe { (*self.0.as_ptr()).$field = to }
        }
    };
}

impl<R: ReactorOps> CellPtr<R> {
    field!(fd: i32, fd, set_fd);
    field!(key: Key, key, set_key);
    field!(group: u32, group_bits, set_group);
    field!(interest: u32, interest_bits, set_interest_bits);
    field!(armed: u32, armed_bits, set_armed_bits);

    fn set_dispatch_fn(self, to: DispatchFn<R>) {
        // SAFETY: as for the fields above.
        unsafe { (*self.0.as_ptr()).dispatch = to }
    }

    pub(crate) fn group(self) -> u32 {
        self.group_bits() & !PAUSED
    }

    pub(crate) fn is_paused(self) -> bool {
        self.group_bits() & PAUSED != 0
    }

    /// Events of the member do not reach its handler, until its owner
    /// [resumes](OwnedCell::resume) it.
    pub(crate) fn pause(self) {
        self.set_group(self.group_bits() | PAUSED);
        self.set_dispatch_fn(paused_dispatch::<R>);
    }

    pub(crate) fn interest(self) -> Interest {
        Interest::from_bits(self.interest_bits())
    }

    /// The mask that the kernel has for this cell.
    pub(crate) fn armed_mask(self) -> u32 {
        self.armed_bits() & !CellFlags::ALL
    }

    pub(crate) fn set_armed_mask(self, mask: u32) {
        self.set_armed_bits(self.armed_bits() & CellFlags::ALL | mask);
    }

    pub(crate) fn has_flag(self, flag: CellFlags) -> bool {
        self.armed_bits() & flag.0 != 0
    }

    pub(crate) fn set_flag(self, flag: CellFlags, on: bool) {
        let bits = self.armed_bits() & !flag.0;
        self.set_armed_bits(if on { bits | flag.0 } else { bits });
    }

    /// Makes later events of this cell do nothing (rule 9).
    pub(crate) fn disarm(self) {
        self.set_dispatch_fn(noop_dispatch);
    }

    /// Makes later events of this cell request a rebuild of the epoll set (rule 7).
    pub(crate) fn disarm_stale(self) {
        self.set_dispatch_fn(stale_dispatch::<R>);
    }

    /// The address that the kernel stores for this cell (rule 11).
    pub(crate) fn expose(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// The cell whose address the kernel has returned (rule 11).
    ///
    /// # Safety
    /// The number comes from [`expose`](Self::expose) of a cell that has not been freed (rule 2).
    #[inline(always)]
    pub(crate) unsafe fn from_exposed(address: u64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a pointer has 64 bits here: lib.rs rejects others"
        )]
        let header = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller promises that the number was a cell's address, so it is not null.
        Self(unsafe { NonNull::new_unchecked(header) })
    }

    /// Calls the cell's dispatch function: the handler's trampoline, or a function that replaced
    /// it.
    ///
    /// # Safety
    /// No handler runs, so neither the value nor the reactor is borrowed. `reactor` is the live
    /// reactor that the cell is registered with.
    #[inline(always)]
    pub(crate) unsafe fn call(self, ready: u32, reactor: *mut R) {
        // SAFETY: the header is allocated (protocol 1).
        let dispatch = unsafe { (*self.0.as_ptr()).dispatch };
        // SAFETY: functions other than the trampoline do not access the value. The trampoline is
        // set only while the value is alive, because `disarm` and `disarm_stale` come before
        // `drop_value`, `take_boxed` and `take_as`. (A cell that has deleted itself keeps the
        // trampoline until its handler has returned, and the batch is halted meanwhile.) The
        // remaining preconditions are the caller's promise.
        unsafe { dispatch(self.0.as_ptr(), ready, reactor) }
    }

    /// Moves the value out if its type is known. The block stays allocated.
    ///
    /// # Safety
    /// As [`OwnedCell::drop_value`], and the value is a `T`.
    pub(crate) unsafe fn take_as<T: Subscriber<R>>(self) -> T {
        let block = self.0.as_ptr().cast::<Block<T, R>>();
        // SAFETY: the block is allocated as one of `T` (the caller's promise), so the field lies
        // inside the block.
        let value = unsafe { &raw const (*block).value };
        // SAFETY: the value is alive, and the caller gives it up.
        ManuallyDrop::into_inner(unsafe { value.read() })
    }
}

const _: () = {
    // A registration costs at most 64 bytes beside its value: this header, 24 bytes of a slot and 1
    // of the descriptor table. The last two reserve an eighth of room to grow.
    assert!(mem::size_of::<CellHeader<Reactor>>() == 32);
    assert!(mem::offset_of!(CellHeader<Reactor>, dispatch) == 24);
    assert!(mem::offset_of!(Block<u64, Reactor>, header) == 0);
    // A ring's completions carry the address with a tag in its low three bits.
    assert!(mem::align_of::<CellHeader<Reactor>>() >= 8);
    // The flags share a word with the kernel's mask.
    assert!(
        CellFlags::ALL
            & Interest::from_bits(0)
                .read()
                .write()
                .priority()
                .read_hangup()
                .error()
                .hangup()
                .bits()
            == 0
    );
    assert!(
        CellFlags::ALL
            & Interest::from_bits(0).edge_triggered().one_shot().exclusive().wakeup().bits()
            == 0
    );
};
