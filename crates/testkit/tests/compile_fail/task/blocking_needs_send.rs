//! A closure that blocks runs on another thread.
use std::rc::Rc;
use windlass_task::{block_on, spawn_blocking};

fn main() {
    block_on(async {
        let number = Rc::new(1);
        let _ = spawn_blocking(move || drop(number));
        let _ = spawn_blocking(|| Rc::new(1));
    });
}
