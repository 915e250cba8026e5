//! The state of a group, and the members that borrow it.
//!
//! # The protocol of this module
//!
//! 1. Each member holds a counted reference to the [`SharedState`] state, so the state lives until
//!    the last member is dropped. A running member is dropped only after its handler has returned
//!    (rule 1). Therefore the state outlives the handler, whatever the handler deletes.
//! 2. The state is borrowed in two places only. A member's trampoline borrows it in
//!    [`SharedState::with`] while its handler runs. `Reactor::group_mut` borrows it through the
//!    reactor itself, so it cannot be called while a handler runs. The dispatcher runs one handler
//!    at a time, and no handler can make it run another (rule 4). Therefore only one borrow exists
//!    at a time.
//! 3. A group belongs to one reactor. The reference is not `Send`, and a registered state can be
//!    joined only through its own reactor.

#![allow(
    unsafe_code,
    reason = "several members reach one state without a lock; the protocol above"
)]

use core::{any::Any, cell::UnsafeCell, fmt, marker::PhantomData};
use std::{
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
};

use crate::{
    Event, Interest, Tick, Turn,
    api::{
        handler_fn::{MemberFn, MemberTimerFn},
        ops::{ReactorOps, Subscriber},
        timer::TimerCall,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// The state that all members share.
pub(super) struct SharedState<S> {
    state: UnsafeCell<UnwindSafeDrop<S>>,
}

impl<S> SharedState<S> {
    pub(super) fn new(state: S) -> Rc<Self> {
        Rc::new(Self { state: UnsafeCell::new(UnwindSafeDrop::new(state)) })
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
pub struct GroupState(pub(super) Rc<dyn Any>);

impl GroupState {
    /// Makes a state as a reactor would store it, for a mock's `group_state` to return.
    #[must_use]
    pub fn new<S: 'static>(state: S) -> Self {
        Self(SharedState::new(state))
    }

    pub(super) fn typed<S: 'static>(&self) -> Option<Rc<SharedState<S>>> {
        Rc::clone(&self.0).downcast().ok()
    }

    /// Whether both refer to the same state.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
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
        unsafe { shared.with(|state| handler.call(state, tick, turn)) };
    }
}
