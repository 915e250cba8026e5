//! The settings of the executor are not in the attribute.
#[windlass_task::main(threads = 2)]
async fn main() {}

#[windlass_task::test(flavor = "multi_thread")]
async fn with_options() {}
