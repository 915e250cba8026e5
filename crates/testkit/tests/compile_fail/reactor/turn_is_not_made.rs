//! Rule 4: only the crate itself can create a turn. Owning a reactor is not enough.
use windlass::{Reactor, Turn, turn};

fn main() {
    let mut reactor = Reactor::new().unwrap();
    let _ = Turn::new(&mut reactor);
    let _ = turn!(reactor);
}
