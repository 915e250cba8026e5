//! A mock reactor with expectations, to test handlers without a kernel.

use std::time::Instant;

use crate::{
    AddError, DeferError, Deferred, ErasedGroup, GroupError, GroupState, Interest, Key, KickError,
    ModifyError, NotFound, ReactorOps, Ready, Schedule, Stats, Subscription, Timer, TimerError,
    Turn, api::ops::sealed::Sealed,
};

mockall::mock! {
    /// A mock of [`ReactorOps`]. Set the calls that a handler is expected to make, then call the
    /// handler with [`turn!`](macro@crate::turn).
    ///
    /// Subscribers, timers and closures arrive type-erased. [`Subscription::into_inner`] returns
    /// the typed value. `into_boxed().handle(event, turn!(mock))`, [`Timer::fire`] and
    /// [`Deferred::run`] run it. Use `returning_st` for expectations whose closures hold an `Rc`.
    ///
    /// ```
    /// use windlass::{Event, Key, MockReactor, Ready, ReactorOps, Turn, interest, turn};
    ///
    /// fn on_ready(event: Event, mut turn: Turn<'_, impl ReactorOps>) {
    ///     if event.has_hangup() {
    ///         turn.delete(event.key()).expect("it is registered");
    ///     }
    /// }
    ///
    /// let event = Event::new(Key::from_bits(7), interest().read(), Ready::empty().hangup());
    /// let mut mock = MockReactor::new();
    /// mock.expect_delete().times(1).withf(|key| key.to_bits() == 7).returning(|_| Ok(()));
    /// on_ready(event, turn!(mock));
    /// ```
    pub Reactor {}

    impl ReactorOps for Reactor {
        fn add_cell(
            &mut self,
            subscription: Subscription<Self>,
        ) -> Result<Key, AddError<Subscription<Self>>>;
        fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError>;
        fn rearm(&mut self, key: Key) -> Result<(), ModifyError>;
        fn kick(&mut self, key: Key, ready: Ready) -> Result<(), KickError>;
        fn delete(&mut self, key: Key) -> Result<(), NotFound>;
        fn add_group(
            &mut self,
            group: ErasedGroup<Self>,
        ) -> Result<(Key, Vec<Key>), GroupError<ErasedGroup<Self>>>;
        fn group_state(&mut self, group: Key) -> Option<GroupState>;
        fn delete_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
        fn pause_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
        fn resume_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
        fn remove(&mut self, key: Key) -> Result<(), NotFound>;
        fn start_timer(&mut self, timer: Timer<Self>) -> Result<Key, TimerError<Timer<Self>>>;
        fn cancel(&mut self, key: Key) -> Result<(), NotFound>;
        fn reset_timer(&mut self, key: Key, schedule: Schedule) -> Result<(), NotFound>;
        fn defer_boxed(
            &mut self,
            closure: Deferred<Self>,
        ) -> Result<(), DeferError<Deferred<Self>>>;
        fn stop(&mut self);
        fn stats(&self) -> Stats;
        fn now(&mut self) -> Instant;
    }
}

impl Sealed for MockReactor {}

/// The function behind [`turn!`](macro@crate::turn): makes a turn on a mock.
///
/// ```
/// use windlass::{MockReactor, Turn, mock_turn};
///
/// fn on_ready(mut turn: Turn<'_, impl windlass::ReactorOps>) {
///     turn.stop();
/// }
///
/// let mut mock = MockReactor::new();
/// mock.expect_stop().times(1).return_const(());
/// on_ready(mock_turn(&mut mock));
/// ```
pub fn mock_turn(mock: &mut MockReactor) -> Turn<'_, MockReactor> {
    Turn::new(mock)
}

/// Makes a [`Turn`] on a [`MockReactor`], to pass to a handler.
///
/// ```
/// use windlass::{MockReactor, ReactorOps, Turn, turn};
///
/// fn on_ready(mut turn: Turn<'_, impl ReactorOps>) {
///     turn.stop();
/// }
///
/// let mut mock = MockReactor::new();
/// mock.expect_stop().times(1).return_const(());
/// on_ready(turn!(mock));
/// ```
#[macro_export]
macro_rules! turn {
    ($mock:expr) => {
        $crate::mock_turn(&mut $mock)
    };
}
