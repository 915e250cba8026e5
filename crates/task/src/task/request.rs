//! [`Request`]: a call that waits for the executor's next turn.

use std::rc::Rc;

use windlass::Turn;

/// See the module. One that has not run is dropped at the executor's end.
pub(crate) enum Request {
    Once(Box<dyn FnOnce(Turn<'_>)>),
    AtEnd(AtEnd),
}

/// Work that is done once for all that a round has left. Its request takes no allocation.
pub(crate) trait RoundEnd {
    /// Does the work.
    fn run(&self, turn: Turn<'_>);

    /// The request was dropped, because the executor has no turn left.
    fn give_up(&self);
}

/// `None` once it runs. What is left from then on has a request of its own.
pub(crate) struct AtEnd(Option<Rc<dyn RoundEnd>>);

impl Request {
    pub(crate) const fn at_end(work: Rc<dyn RoundEnd>) -> Self {
        Self::AtEnd(AtEnd(Some(work)))
    }

    pub(crate) fn run(self, turn: Turn<'_>) {
        match self {
            Self::Once(call) => call(turn),
            Self::AtEnd(mut at_end) => {
                if let Some(work) = at_end.0.take() {
                    work.run(turn);
                }
            }
        }
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work.give_up();
        }
    }
}
