//! Nobody calls the function with arguments, or chooses its types.
#[windlass_task::main]
async fn main(arguments: Vec<String>) {}

#[windlass_task::test]
async fn with_a_parameter(number: u32) {}

#[windlass_task::test]
async fn with_a_type<T>() {}
