//! Rule 4: a turn is neither `Clone`, nor `Send`, nor `Sync`.
use windlass::{MockReactor, Reactor, Turn};

fn clone<T: Clone>() {}
fn send<T: Send>() {}
fn sync<T: Sync>() {}

fn main() {
    clone::<Turn<'static, Reactor>>();
    send::<Turn<'static, Reactor>>();
    sync::<Turn<'static, Reactor>>();
    send::<Turn<'static, MockReactor>>();
}
