//! The attributes need an `async fn`.
#[windlass_task::main]
fn main() {}

#[windlass_task::test]
fn not_async() {}
