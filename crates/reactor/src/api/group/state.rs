//! The state of a group, and the members that borrow it.
//!
//! # The protocol of this module
//!
//! 1. Each member holds a counted reference to the [`SharedState`], so the state lives until the
//!    last member is dropped. A running member is dropped only after its handler has returned
//!    (rule 1). Therefore the state outlives the handler, whatever the handler deletes.
//! 2. The state is borrowed in three places only:
//!    - while a member's handler runs. The dispatcher runs one handler at a time, and no handler
//!      can make it run another (rule 4).
//!    - in `Turn::with_group`, which asks first whether the state is borrowed. A handler of a
//!      descriptor is the running cell, which the reactor knows. So its borrow costs nothing.
//!      Timers, streams and `with_group` itself mark the state ([`SharedState::with_mark`]).
//!    - in `Reactor::group_mut`, through the reactor itself, so while no handler runs.
//!
//!    Therefore only one borrow exists at a time.
//! 3. A group belongs to one reactor. The reference is not `Send`, and a registered state can be
//!    joined or borrowed only through its own reactor. Through a mock, only states can be borrowed
//!    that were made by [`GroupState::new`], which no reactor has.

#![allow(
    unsafe_code,
    reason = "several members reach one state without a lock; the protocol above"
)]

use core::{
    any::Any,
    cell::{Cell, UnsafeCell},
    fmt,
    marker::PhantomData,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
};

use crate::{
    Event, Interest, Tick, Turn,
    api::{
        group::{GroupKey, GroupStateError},
        handler_fn::{MemberFn, MemberTimerFn},
        ops::{ReactorOps, Subscriber, Token},
        timer::TimerCall,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// The state that all members share.
pub(crate) struct SharedState<S> {
    /// Whether [`with_mark`](Self::with_mark) has borrowed it.
    is_borrowed: Cell<bool>,
    state: UnsafeCell<UnwindSafeDrop<S>>,
}

impl<S> SharedState<S> {
    pub(super) fn new(state: S) -> Rc<Self> {
        let state = UnsafeCell::new(UnwindSafeDrop::new(state));
        Rc::new(Self { is_borrowed: Cell::new(false), state })
    }

    /// Borrows the state during a call.
    ///
    /// # Safety
    /// No other borrow of the state is alive, and no other borrow is made during the call.
    #[inline(always)]
    unsafe fn with<T>(&self, run: impl FnOnce(&mut S) -> T) -> T {
        // SAFETY: this is the only borrow (the caller's promise).
        run(unsafe { &mut *self.state.get() })
    }

    /// Borrows the state during a call, and marks it as borrowed, so that `Turn::with_group`
    /// rejects another borrow.
    ///
    /// # Safety
    /// As for a member's handler: no other borrow is alive, and during the call none is made but by
    /// `Turn::with_group`.
    pub(crate) unsafe fn with_mark<T>(&self, run: impl FnOnce(&mut S) -> T) -> T {
        /// Takes the mark away, also after a panic.
        struct Mark<'s>(&'s Cell<bool>);
        impl Drop for Mark<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        self.is_borrowed.set(true);
        let _mark = Mark(&self.is_borrowed);
        // SAFETY: no other borrow is alive (the caller's promise), and none is made during the
        // call, because `with_group` finds the mark.
        unsafe { self.with(run) }
    }
}

/// Borrows the state of a registered group during a call.
pub(crate) fn with_group<S: 'static, R: ReactorOps, T>(
    reactor: &mut R,
    group: GroupKey<S>,
    run: impl FnOnce(&mut S, Turn<'_, R>) -> T,
) -> Result<T, GroupStateError> {
    let state = reactor.group_state(group.key()).ok_or(GroupStateError::NotFound)?;
    // It keeps the state alive, whatever the closure deletes.
    let shared = state.typed::<S>().ok_or(GroupStateError::NotFound)?;
    if shared.is_borrowed.get() || !reactor.may_borrow(group.key(), &state, Token(())) {
        return Err(GroupStateError::Borrowed);
    }
    // SAFETY: no other borrow is alive: neither a marked one nor that of a running descriptor
    // member (checked above), and `group_mut` borrows the reactor itself. The closure gets no more
    // than a turn, so no handler runs during it (protocol 2).
    Ok(unsafe { shared.with_mark(|state| run(state, Turn::new(reactor))) })
}

/// The type-erased state of a group, as the reactor stores it.
///
/// ```
/// use windlass::{GroupKey, GroupState, Key, MockReactor, turn};
///
/// let mut mock = MockReactor::new();
/// mock.expect_group_state().times(1).returning_st(|_| Some(GroupState::new(7_u32)));
/// let key = GroupKey::<u32>::from_key(Key::from_bits(1));
/// assert!(turn!(mock).group(key).is_ok());
/// ```
pub struct GroupState {
    pub(super) shared: Rc<dyn Any>,
    /// Made by [`new`](Self::new), for a mock.
    pub(super) is_made_by_hand: bool,
}

impl GroupState {
    /// Makes a state as a reactor would store it, for a mock's `group_state` to return.
    #[must_use]
    pub fn new<S: 'static>(state: S) -> Self {
        Self { shared: SharedState::new(state), is_made_by_hand: true }
    }

    pub(super) fn of<S: 'static>(state: &Rc<SharedState<S>>) -> Self {
        Self { shared: Rc::<SharedState<S>>::clone(state), is_made_by_hand: false }
    }

    pub(super) fn typed<S: 'static>(&self) -> Option<Rc<SharedState<S>>> {
        Rc::clone(&self.shared).downcast().ok()
    }

    /// Whether both refer to the same state.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn share(&self) -> Self {
        Self { shared: Rc::clone(&self.shared), is_made_by_hand: self.is_made_by_hand }
    }

    pub(crate) fn is_made_by_hand(&self) -> bool {
        self.is_made_by_hand
    }

    /// Borrows the state. `None` if it is not an `S`.
    ///
    /// # Safety
    /// The state lives as long as the result, and is not borrowed elsewhere meanwhile.
    pub(crate) unsafe fn borrow<'a, S: 'static>(&self) -> Option<&'a mut S> {
        let shared = self.typed::<S>()?;
        // SAFETY: the caller's promise.
        Some(unsafe { &mut *shared.state.get() })
    }
}

impl fmt::Debug for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupState").finish_non_exhaustive()
    }
}

pub(super) struct DescriptorMember<S, Fd, H, Args> {
    pub(super) handler: UnwindSafeDrop<H>,
    pub(super) fd: UnwindSafeDrop<Fd>,
    pub(super) interest: Interest,
    /// Last, so that the member's own fields are dropped before the state can be dropped.
    pub(super) shared: Rc<SharedState<S>>,
    pub(super) args: PhantomData<fn(Args)>,
}

impl<R, S, Fd, H, Args> Subscriber<R> for DescriptorMember<S, Fd, H, Args>
where
    R: ReactorOps,
    S: 'static,
    Fd: AsFd + 'static,
    H: MemberFn<S, Fd, R, Args>,
    Args: 'static,
{
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    #[inline(always)]
    fn handle(&mut self, event: Event, turn: Turn<'_, R>) {
        let Self { handler, fd, shared, .. } = self;
        // SAFETY: only the dispatcher calls `handle`, one handler at a time, and the turn gives no
        // other access to the state (protocol 2). No other code can obtain a member to call: the
        // type is private, an `ErasedGroup` does not expose its members, and no registered member
        // can be taken out of the reactor (`TakeError::InGroup`).
        unsafe { shared.with(|state| handler.call(state, fd, event, turn)) };
    }

    #[cfg(feature = "sim")]
    fn sim_id(&self) -> Option<crate::world::SimId> {
        crate::api::ops::sim_id_of(&*self.fd)
    }
}

pub(super) struct TimerMember<S, H, Args> {
    pub(super) handler: UnwindSafeDrop<H>,
    pub(super) shared: Rc<SharedState<S>>,
    pub(super) args: PhantomData<fn(Args)>,
}

impl<R, S, H, Args> TimerCall<R> for TimerMember<S, H, Args>
where
    R: ReactorOps,
    S: 'static,
    H: MemberTimerFn<S, R, Args>,
    Args: 'static,
{
    fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        let Self { handler, shared, .. } = self;
        // SAFETY: as in `DescriptorMember::handle`.
        unsafe { shared.with_mark(|state| handler.call(state, tick, turn)) };
    }
}
