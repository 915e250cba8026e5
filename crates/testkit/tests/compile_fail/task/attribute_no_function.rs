//! The attributes stand before functions.
#[windlass_task::main]
struct NotAFunction;

#[windlass_task::test]
const NUMBER: u32 = 1;

trait HasTest {
    #[windlass_task::test]
    async fn without_a_body();
}

fn main() {}
