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

use core::{
    mem,
    sync::atomic::{AtomicBool, Ordering},
    task::Waker,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use windlass_flow::panics::Panics;

use crate::cancel::slots::Slots;

#[derive(Default)]
pub(super) struct Node {
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
    fn new(is_cancelled: bool, parent: Option<Parent>) -> Self {
        Self { is_cancelled: AtomicBool::new(is_cancelled), parent, lists: Mutex::default() }
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
            return Arc::new(Self::new(true, None));
        }
        let slot = lists.children.insert(Weak::new());
        let parent = Some(Parent { node: Arc::clone(self), slot });
        let child = Arc::new(Self::new(false, parent));
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
            let mut lists = node.lock();
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
        let mut lists = self.lock();
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
            let mut lists = node.lock();
            let removed = lists.children.remove(slot);
            drop(lists);
            drop(removed);
            // Protocol 4: if this was the last reference, its own parent is next. Of several
            // threads that drop the last references, one gets the node.
            next = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
    }
}
