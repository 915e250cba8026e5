//! An executor stays on its thread, and so do the handles to its tasks.
use windlass_task::{Executor, JoinSet, spawn};

fn main() {
    let mut executor = Executor::new().unwrap();
    std::thread::spawn(move || executor.block_on(async {}));

    let task = spawn(async {});
    std::thread::spawn(move || task.is_finished());

    let set = JoinSet::<()>::new();
    std::thread::spawn(move || set.len());
}
