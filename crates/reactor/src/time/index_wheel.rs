//! A wheel of plain indices, with its own array of nodes.

use super::wheel::{Node, Nodes, Wheel};
use crate::util::arena::reserve_one;

/// Nodes by index. They need no allocation once the array has grown.
#[derive(Debug)]
pub(super) struct NodeList(pub(super) Vec<Node>);

/// An index in the wheel has a node.
impl Nodes for NodeList {
    fn find(&self, index: u32) -> Option<&Node> {
        self.0.get(index as usize)
    }

    fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.0[index as usize]
    }

    fn prefetch(&self, _: u32) {}
}

/// A [`Wheel`] of indices.
#[derive(Debug)]
pub(crate) struct IndexWheel {
    pub(super) wheel: Wheel,
    pub(super) nodes: NodeList,
}

impl IndexWheel {
    pub(crate) const fn new() -> Self {
        Self { wheel: Wheel::new(), nodes: NodeList(Vec::new()) }
    }

    /// Adds an index that is not in the wheel. See [`Wheel::insert`].
    pub(crate) fn insert(&mut self, index: u32, deadline: u64) {
        self.make_node(index);
        self.wheel.insert(&mut self.nodes, index, deadline);
    }

    /// Makes nodes up to that of an index.
    pub(super) fn make_node(&mut self, index: u32) {
        while self.nodes.0.len() <= index as usize {
            reserve_one(&mut self.nodes.0);
            self.nodes.0.push(Node::ABSENT);
        }
    }

    /// Removes an index. True if it was in the wheel.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        (index as usize) < self.nodes.0.len() && self.wheel.remove(&mut self.nodes, index)
    }

    /// See [`Wheel::pop_due`].
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u32, u64)> {
        self.wheel.pop_due(&mut self.nodes, now)
    }

    /// See [`Wheel::next_deadline`].
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.wheel.next_deadline()
    }
}
