//! A reactor, an embedded one and a set of signals belong to one thread.
use windlass::{Embedded, Reactor, SignalSet, Subscription};

fn send<T: Send>() {}
fn sync<T: Sync>() {}

fn main() {
    send::<Reactor>();
    sync::<Reactor>();
    send::<Embedded>();
    send::<SignalSet>();
    send::<Subscription<Reactor>>();
}
