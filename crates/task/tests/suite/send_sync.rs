//! Which types may leave the thread, checked when this is compiled.

use windlass_task::{
    AbortHandle, BlockingError, BlockingHandle, Executor, ExecutorBuilder, ExecutorStats,
    JoinError, JoinHandle, JoinSet, PanicPayload, PushError, SpawnError, Spawner, WorkerContext,
    WorkerInbox, WorkerStats, Workers, WorkersBuilder, WorkersHandle, YieldNow, budget::Proceed,
    cancel::Cancelled, time::Elapsed,
};

/// Fails to compile if the type has the trait: two implementations would match then.
macro_rules! assert_not {
    ($type:ty: $trait:path) => {
        const _: fn() = || {
            struct IfSo;
            trait Ambiguous<Why> {
                fn chosen() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + $trait> Ambiguous<IfSo> for T {}
            let _ = <$type as Ambiguous<_>>::chosen;
        };
    };
}

macro_rules! assert_is {
    ($type:ty: $($trait:path),+) => {
        const _: fn() = || {
            fn is<T: ?Sized $(+ $trait)+>() {}
            is::<$type>();
        };
    };
}

/// Neither `Send` nor `Sync`.
type Local = *const ();
/// `Send` and not `Sync`: an error that returns it is both.
type Moved = core::cell::Cell<u8>;

assert_not!(Executor: Send);
assert_not!(Executor: Sync);
assert_not!(ExecutorBuilder: Sync);
assert_is!(ExecutorStats: Send, Sync, Unpin);
assert_not!(JoinHandle<()>: Send);
assert_not!(JoinHandle<()>: Sync);
assert_is!(JoinHandle<core::marker::PhantomPinned>: Unpin);
assert_not!(JoinSet<()>: Send);
assert_not!(JoinSet<()>: Sync);
assert_is!(JoinSet<core::marker::PhantomPinned>: Unpin);
assert_is!(AbortHandle: Send, Sync, Unpin, Clone);
assert_is!(Spawner: Send, Sync, Unpin, Clone);
assert_is!(SpawnError<Moved>: Send, Sync, std::error::Error);
assert_not!(SpawnError<Local>: Send);
assert_is!(BlockingHandle<()>: Send, Sync, Unpin);
assert_is!(BlockingError<Moved>: Send, Sync, std::error::Error);
assert_is!(Cancelled: Send, Sync, std::error::Error);
assert_is!(Elapsed: Send, Sync, std::error::Error);
assert_is!(JoinError: Send, Sync, Unpin, std::error::Error);
assert_is!(PanicPayload: Send, Sync, Unpin);
assert_is!(WorkersBuilder: Send, Sync);
assert_is!(Workers<Moved, Moved>: Send, Sync);
assert_is!(WorkersHandle<Moved>: Send, Sync, Unpin, Clone);
assert_not!(WorkerContext<()>: Send);
assert_not!(WorkerContext<()>: Sync);
assert_not!(WorkerInbox<()>: Send);
assert_is!(WorkerInbox<core::marker::PhantomPinned>: Unpin);
assert_is!(WorkerStats: Send, Sync, Unpin);
assert_is!(PushError<Moved>: Send, Sync, std::error::Error);
assert_is!(YieldNow: Send, Sync, Unpin);
assert_is!(Proceed: Send, Unpin);

/// The futures of a set, and of `block_on`'s caller, stay on the thread.
const _: fn() = || {
    fn is_unpin_or_not<T>(_: T) {}
    is_unpin_or_not(windlass_task::yield_now());
};
