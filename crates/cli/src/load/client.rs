//! The handler of a connection's stream: forwards every callback to the worker's desk.

use std::{cell::RefCell, rc::Rc};

use windlass::{
    Key, Turn,
    stream::{CloseReason, Input, Stream, StreamHandler},
};

use super::{desk::Desk, worker};

/// The handler of one connection. Its state is stored in the desk, which the worker's timers use
/// too.
pub(crate) struct Client {
    desk: Rc<RefCell<Desk>>,
    index: usize,
}

impl Client {
    pub(crate) fn new(desk: &Rc<RefCell<Desk>>, index: usize) -> Self {
        Self { desk: Rc::clone(desk), index }
    }
}

impl StreamHandler for Client {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let may_go_on = self.desk.borrow_mut().connected(self.index, stream);
        if may_go_on {
            worker::open_more(&self.desk, &mut stream.turn());
        }
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let may_go_on = self.desk.borrow_mut().data(self.index, stream, input);
        if may_go_on {
            worker::open_more(&self.desk, &mut stream.turn());
        }
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.desk.borrow_mut().ended(self.index, stream);
    }

    fn on_close(&mut self, _: Key, reason: CloseReason, mut turn: Turn<'_>) {
        self.desk.borrow_mut().closed(self.index, reason);
        worker::open_more(&self.desk, &mut turn);
        worker::end_if_done(&self.desk, &mut turn);
    }
}
