//! Rule 4: nobody but the crate makes a turn, from a reactor least of all.
use windlass::{Reactor, Turn, turn};

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let _ = Turn::new(&mut reactor);
    let _ = turn!(reactor);
}
