//! Cancellation: tokens that end operations from outside.
//!
//! ```
//! use std::{future::pending, time::Duration};
//! use windlass_task::{
//!     block_on,
//!     cancel::{Cancel, CancelExt, Cancelled},
//!     spawn, time::sleep,
//! };
//!
//! block_on(async {
//!     let shutdown = Cancel::new();
//!     let connection = shutdown.child();
//!     let task = spawn(async move { pending::<()>().cancelled_by(&connection).await });
//!     sleep(Duration::from_millis(1)).await;
//!     shutdown.cancel();
//!     assert_eq!(task.await.unwrap(), Err(Cancelled));
//! });
//! ```
//!
//! # Rules for all of it
//!
//! - *For good.* A token is cancelled once and stays so. An operation that was cancelled is dropped
//!   before its [`Cancelled`] is returned.
//! - *Before the start.* An operation whose token is cancelled before its first poll is never
//!   polled.
//! - *Tree.* Cancelling a token cancels its descendants, also those whose parent was dropped. It
//!   does not cancel its parent or its siblings.
//! - *Threads.* Tokens may be used and dropped on any thread, with any executor or none.
//! - *Wakers.* They are called after the whole tree was marked, with no lock held. A panic of one
//!   does not keep the others from being woken.
//! - *Memory.* A token takes an allocation, and gives it back when it and its descendants are
//!   dropped. Waiting operations take a place in a list of their token.
//! - *Which end.* A cancelled operation gives [`Cancelled`], one that was too slow
//!   [`Elapsed`](crate::time::Elapsed), and one that failed its own error. An aborted task gives
//!   [`JoinError::Cancelled`](crate::JoinError::Cancelled).

mod limit;
mod node;
mod slots;
mod token;

pub use limit::{CancelExt, Cancelled, CancelledBy};
pub use token::{Cancel, CancelOnDrop, Cancellation};
