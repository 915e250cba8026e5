//! [`WindlassExecutor`].

use core::future::Future;

use crate::handle::Handle;

/// Spawns hyper's futures on the executor that runs on this thread. They need not be `Send`.
///
/// hyper spawns the requests of HTTP/2 with it. A handle is not bound to an executor: it may be
/// made anywhere and sent to other threads.
///
/// ```
/// use std::rc::Rc;
/// use hyper::rt::Executor as _;
/// use windlass_task::{block_on, rt::WindlassExecutor, yield_now};
///
/// block_on(async {
///     let shared = Rc::new(std::cell::Cell::new(false));
///     let is_done = Rc::clone(&shared);
///     WindlassExecutor.execute(async move { is_done.set(true) });
///     yield_now().await;
///     assert!(shared.get());
/// });
/// ```
///
/// # Panics
/// `execute` panics if no executor runs on this thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindlassExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for WindlassExecutor {
    #[track_caller]
    fn execute(&self, future: F) {
        Handle::expect_current().owner().spawn_detached(future);
    }
}
