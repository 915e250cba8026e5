//! Rule 4: a turn ends with its call, and is neither its result nor sent elsewhere.
use std::sync::{Arc, Mutex, mpsc};
use windlass::{Reactor, Remote, Turn};

fn results(remote: &Remote) {
    remote.call(|turn: Turn<'_>| turn).ok();
}

fn slots(remote: &Remote) {
    let kept: Arc<Mutex<Option<Turn<'static, Reactor>>>> = Arc::default();
    remote.post(move |turn: Turn<'_>| *kept.lock().unwrap() = Some(turn)).ok();
}

fn channels(remote: &Remote) {
    let (sender, _receiver) = mpsc::channel();
    remote.post(move |turn: Turn<'_>| sender.send(turn).unwrap()).ok();
}

fn main() {}
