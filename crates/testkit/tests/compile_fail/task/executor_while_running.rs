//! The executor that runs is borrowed.
use windlass_task::Executor;

fn main() {
    let mut executor = Executor::new().unwrap();
    let other = Executor::new().unwrap();
    executor.block_on(async {
        executor.block_on(async {});
    });
    drop(other);
}
