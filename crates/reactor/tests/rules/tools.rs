//! Tools for these tests: descriptors that are ready on request, and values that record their drop.

use windlass_testkit::panics;

use std::{
    cell::{Cell, RefCell},
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Reactor, interest};

pub(crate) use panics::caught;

/// An eventfd, and a duplicate of it that outlives the owner of the first.
pub(crate) struct Pair {
    pub(crate) ours: OwnedFd,
    pub(crate) theirs: Option<OwnedFd>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let theirs = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        Self { ours: rustix::io::dup(&theirs).unwrap(), theirs: Some(theirs) }
    }

    pub(crate) fn take(&mut self) -> OwnedFd {
        self.theirs.take().unwrap()
    }

    pub(crate) fn fire(&self) {
        fire(&self.ours);
    }
}

pub(crate) fn fire(fd: impl AsFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

pub(crate) fn drain(fd: impl AsFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

/// A new eventfd that is readable already.
pub(crate) fn ready() -> OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// Interest in reading, edge-triggered if the backend has that.
pub(crate) fn edge(reactor: &Reactor) -> windlass::Interest {
    let read = interest().read();
    if reactor.backend() == windlass::Backend::Poll { read } else { read.edge_triggered() }
}

/// A list that several closures write to.
#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub(crate) fn say(&self, what: impl Into<String>) {
        self.0.borrow_mut().push(what.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

/// Records its drop, and panics in it if told to.
pub(crate) struct Witness {
    log: Log,
    name: &'static str,
    pub(crate) panics: bool,
}

impl Witness {
    pub(crate) fn new(log: &Log, name: &'static str) -> Self {
        Self { log: log.clone(), name, panics: false }
    }

    pub(crate) fn bomb(log: &Log, name: &'static str) -> Self {
        Self { log: log.clone(), name, panics: true }
    }

    /// A closure that calls this captures the whole value.
    pub(crate) fn here(&self) {}
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.log.say(format!("drop {}", self.name));
        assert!(!self.panics, "the destructor of {} panics", self.name);
    }
}

/// Registers a descriptor whose handler runs `act`. The closure owns its data.
pub(crate) fn on_ready(
    reactor: &mut Reactor,
    fd: OwnedFd,
    act: impl FnMut(windlass::Turn<'_, Reactor>, windlass::Event) + 'static,
) -> windlass::Key {
    let mut act = act;
    interest()
        .read()
        .with_fd(fd)
        .with_handler(move |event: windlass::Event, turn: windlass::Turn<'_, _>| act(turn, event))
        .register_into(reactor)
        .unwrap()
}

/// Runs one turn that does not wait.
pub(crate) fn turn(reactor: &mut Reactor) -> usize {
    reactor.run_once(Duration::ZERO).unwrap()
}

/// Runs one turn that must panic, and returns the panic's message.
pub(crate) fn turn_panics(reactor: &mut Reactor) -> String {
    let load = caught(|| reactor.run_once(Duration::ZERO)).expect_err("the turn must panic");
    message(&*load)
}

pub(crate) fn message(load: &(dyn std::any::Any + Send)) -> String {
    load.downcast_ref::<String>()
        .cloned()
        .or_else(|| load.downcast_ref::<&str>().map(|s| (*s).into()))
        .unwrap_or_default()
}

/// A counter with two owners.
pub(crate) fn counter() -> (Rc<Cell<usize>>, Rc<Cell<usize>>) {
    let cell = Rc::new(Cell::new(0));
    (cell.clone(), cell)
}
