//! Which types may leave the thread, checked when this is compiled. hyper needs a sleep that is
//! `Send`, `Sync` and `Unpin`.

use windlass_task::time::{Elapsed, Interval, MissedTickBehavior, Sleep, TimeoutFuture};

const _: fn() = || {
    fn may_leave<T: Send + Sync + Unpin>() {}
    fn is_error<T: std::error::Error>() {}
    may_leave::<Sleep>();
    may_leave::<Interval>();
    may_leave::<TimeoutFuture<std::future::Ready<()>>>();
    may_leave::<Elapsed>();
    may_leave::<MissedTickBehavior>();
    is_error::<Elapsed>();
};
