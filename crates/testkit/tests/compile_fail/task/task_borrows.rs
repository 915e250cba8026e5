//! A task may outlive the function that spawns it. The future of `block_on` may borrow.
use windlass_task::{block_on, spawn};

fn main() {
    let text = String::from("borrowed");
    block_on(async {
        assert_eq!(text.len(), 8);
        spawn(async { println!("{}", text.len()) }).await.unwrap();
    });
}
