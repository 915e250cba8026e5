//! Futures of other threads are `Send`. A closure that makes one is.
use std::rc::Rc;
use windlass_task::Executor;

fn main() {
    let executor = Executor::new().unwrap();
    let number = Rc::new(1);
    let _ = executor.spawner().spawn({
        let number = number.clone();
        async move { drop(number) }
    });
    let _ = executor.spawner().spawn_with(move || async move { drop(number) });
}
