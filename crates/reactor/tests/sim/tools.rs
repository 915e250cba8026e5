//! What the tests share.

use std::{cell::RefCell, net::SocketAddr, rc::Rc};

use windlass::{
    Key, Reactor, Turn,
    sim::{Faults, Sim},
    stream::{DisconnectReason, Input, Listener, ListenerKey, Stream, StreamHandler},
};
pub(crate) use windlass_testkit::faults::again;

pub(crate) fn calm() -> Sim {
    Sim::new(1, Faults::calm())
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// What has happened, in order.
pub(crate) struct Log<T>(Rc<RefCell<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Rc::default())
    }

    pub(crate) fn note(&self, what: T) {
        self.0.borrow_mut().push(what);
    }

    pub(crate) fn take(&self) -> Vec<T> {
        self.0.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Open,
    Data(Vec<u8>),
    End,
    Close(DisconnectReason),
}

/// Notes its callbacks, and sends its input back.
pub(crate) struct Echo(pub(crate) Log<Said>);

impl StreamHandler for Echo {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.0.note(Said::Open);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.0.note(Said::Data(input.to_vec()));
        stream.reply(input, ..).unwrap();
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.0.note(Said::End);
        stream.close();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.0.note(Said::Close(reason));
    }
}

/// Listens at an address, with an echo for each connection.
pub(crate) fn listen(reactor: &mut Reactor, at: SocketAddr, log: &Log<Said>) -> ListenerKey {
    let log = log.clone();
    let listener = again(|| Listener::tcp(at));
    listener.with_handler(move |_| Some(Echo(log.clone()))).register_into(reactor).unwrap()
}
