//! Tasks: one allocation each, with the future behind a header that wakers point to.
//!
//! ```text
//!   JoinHandle  AbortHandle  Waker      Shared, one for each executor
//!        \           |         /          injector  any thread: woken tasks, spawned futures
//!         v          v        v           local     the owner's thread: run queue, live tasks
//!   +----------------------------+           ^
//!   | Header                     |-----------+  one `Arc` for each task
//!   |   any thread: refs, flags  |
//!   |   the owner: OwnerPart     |
//!   +----------------------------+
//!   | Slot: future, then output  |
//!   +----------------------------+
//! ```
//!
//! # The protocol of this module
//!
//! The *owner* is the thread of the executor, which is `!Send`.
//!
//! 1. *References.* `Header::refs` counts the pointers to a task. The last one frees the memory, on
//!    any thread. The executor has one reference to each task that is not finished or is linked in
//!    the run queue. Each join handle, abort handle and waker has one, and so has the injector
//!    while the task is linked there.
//! 2. *Owner's part.* Only the owner touches `OwnerPart`, `Header::content`, the slot, and
//!    `Shared::local`. A thread is the owner if its current executor (`current`) has the same
//!    `Shared`, or if it holds a value that is `!Send` and was made on the owner's thread.
//! 3. *Slot.* `Header::content` says what is in the slot. It is changed before the destructor of
//!    the content runs. A task is finished when its future is gone. From then on the slot holds the
//!    output or nothing.
//! 4. *Empty before the end.* The future is dropped before the executor gives up its reference. The
//!    output is dropped or taken before the join handle gives up its own. So the last reference
//!    finds an empty slot, and frees memory only.
//! 5. *Local wake.* `OwnerPart::next` is `UNLINKED` while a task is neither linked in the run queue
//!    nor finished. A wake on the owner's thread links such a task, and does nothing to others.
//! 6. *Remote wake.* `is_remote` is true while a task is linked in the injector. The thread that
//!    sets it links the task, with a reference of its own, and then wakes the latch. The owner
//!    clears it by a read-modify-write before it schedules the task. So it sees all that was
//!    written before a wake that found the flag set.
//! 7. *Close.* The end of the executor closes the injector. A later wake gives its reference back
//!    and does nothing else.
//! 8. *User code.* Futures, outputs, wakers and their destructors run while nothing of this module
//!    is borrowed or half changed. A wake runs no user code.
//! 9. *Run.* `OwnerPart::run` is the function that the executor calls when it comes to a task in
//!    the run queue. It polls the future. An abort replaces it by the function that drops the
//!    future, and the end of the task by the one that gives up the executor's reference. So a poll
//!    tests no state. An abort on another thread leaves a note, which the owner reads when it takes
//!    the task out of the injector.

pub(crate) mod body;
pub(crate) mod current;
pub(crate) mod error;
pub(crate) mod header;
pub(crate) mod injector;
pub(crate) mod join_ref;
pub(crate) mod polls;
pub(crate) mod queue;
#[cfg(not(loom))]
pub(crate) mod request;
pub(crate) mod shared;
pub(crate) mod waker;
#[cfg(not(loom))]
pub(crate) mod waker_slot;

#[cfg(all(test, loom))]
mod models;
