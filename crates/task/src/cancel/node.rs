//! The tree behind the tokens.
//!
//! # The protocol of this module
//!
//! 1. A token is a reference to its node. A node has a reference to its parent. So a cancellation
//!    reaches all descendants that anybody holds. The parent has weak references, and a node
//!    removes its own when it goes.
//! 2. `is_cancelled` is set once, under the node's lock, and never cleared. The lists of a
//!    cancelled node are empty, and nothing is inserted.
//! 3. One thread holds the lock of one node at a time, and runs no code of others meanwhile: no
//!    waker is cloned, woken or dropped, and no node is dropped.
//! 4. Walks over the tree use a list, not the stack of the thread. So the depth is not limited.
//! 5. In a child of fork(2), a destructor does not wait for a lock: a thread of the parent may have
//!    held it, and there it is never released.

use core::{
    mem,
    sync::atomic::{AtomicBool, Ordering},
    task::Waker,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use windlass_flow::panics::Panics;

use crate::{cancel::slots::Slots, process::OwnProcess};

#[derive(Default)]
pub(super) struct Node {
    /// The process that has made the root of the tree.
    process: OwnProcess,
    is_cancelled: AtomicBool,
    parent: Option<Parent>,
    lists: Mutex<Lists>,
}

struct Parent {
    node: Arc<Node>,
    /// The place among its children.
    slot: usize,
}

#[derive(Default)]
struct Lists {
    wakers: Slots<Waker>,
    children: Slots<Weak<Node>>,
}

impl Node {
    fn new(process: OwnProcess, is_cancelled: bool, parent: Option<Parent>) -> Self {
        let is_cancelled = AtomicBool::new(is_cancelled);
        Self { process, is_cancelled, parent, lists: Mutex::default() }
    }

    /// As [`lock`](Self::lock), for destructors (protocol 5).
    fn lock_in_drop(&self) -> Option<MutexGuard<'_, Lists>> {
        self.process.lock(&self.lists)
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        // Nothing that may panic runs under the lock (protocol 3).
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn is_cancelled(&self) -> bool {
        // Acquire: whoever sees it sees also what came before the cancellation.
        self.is_cancelled.load(Ordering::Acquire)
    }

    pub(super) fn child(self: &Arc<Self>) -> Arc<Self> {
        let mut lists = self.lock();
        if self.is_cancelled() {
            return Arc::new(Self::new(self.process, true, None));
        }
        let slot = lists.children.insert(Weak::new());
        let parent = Some(Parent { node: Arc::clone(self), slot });
        let child = Arc::new(Self::new(self.process, false, parent));
        let dangling = lists.children.replace(slot, Arc::downgrade(&child));
        drop(lists);
        drop(dangling);
        child
    }

    pub(super) fn cancel(self: &Arc<Self>) {
        if self.is_cancelled() {
            return;
        }
        let mut wakers = Vec::new();
        let mut nodes = vec![Arc::clone(self)];
        while let Some(node) = nodes.pop() {
            let Some(mut lists) = node.lock_in_drop() else { continue };
            if node.is_cancelled.swap(true, Ordering::AcqRel) {
                continue;
            }
            let Lists { wakers: listed, children } = mem::take(&mut *lists);
            drop(lists);
            wakers.extend(listed.into_values());
            nodes.extend(children.into_values().filter_map(|child| child.upgrade()));
        }
        let mut panics = Panics::default();
        for waker in wakers {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }

    /// Lists a waker, in place of the one in `slot`. False if the node is cancelled.
    pub(super) fn listen(&self, slot: &mut Option<usize>, waker: &Waker) -> bool {
        {
            let lists = self.lock();
            if self.is_cancelled() {
                return false;
            }
            let listed = slot.and_then(|slot| lists.wakers.get(slot));
            if listed.is_some_and(|listed| listed.will_wake(waker)) {
                return true;
            }
        }
        let waker = waker.clone();
        let mut lists = self.lock();
        if self.is_cancelled() {
            drop(lists);
            return false;
        }
        let old = match *slot {
            Some(slot) => lists.wakers.replace(slot, waker),
            None => {
                *slot = Some(lists.wakers.insert(waker));
                None
            }
        };
        drop(lists);
        drop(old);
        true
    }

    /// Removes a waker.
    pub(super) fn forget(&self, slot: usize) {
        let Some(mut lists) = self.lock_in_drop() else { return };
        // Protocol 2: the lists of a cancelled node are empty.
        let removed = lists.wakers.remove(slot);
        drop(lists);
        drop(removed);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(Parent { node, slot }) = next {
            if let Some(mut lists) = node.lock_in_drop() {
                let removed = lists.children.remove(slot);
                drop(lists);
                drop(removed);
            }
            // Protocol 4: if this was the last reference, its own parent is next. Of several
            // threads that drop the last references, one gets the node.
            next = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    /// As after fork(2), when another thread of the parent has held all locks.
    #[test]
    fn destructors_in_a_child_of_fork_do_not_wait_for_locks() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let root = Arc::new(Node::new(OwnProcess::foreign(), false, None));
            let child = root.child();
            let mut slot = None;
            assert!(child.listen(&mut slot, Waker::noop()));
            let (held, held_too) = (root.lists.lock().unwrap(), child.lists.lock().unwrap());
            child.forget(slot.unwrap());
            child.cancel();
            drop(held_too);
            drop(child);
            drop(held);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("it waits for a lock");
    }
}
