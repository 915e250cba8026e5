//! `#[windlass_task::main]` and `#[windlass_task::test]`.

#![deny(unsafe_code)]

use windlass_task::{spawn, yield_now};

#[windlass_task::test]
async fn a_test_runs_on_an_executor() {
    let task = spawn(async { 1 });
    yield_now().await;
    assert_eq!(task.await.unwrap(), 1);
}

#[windlass_task::test]
#[should_panic(expected = "of the body")]
async fn a_panic_of_the_body_fails_the_test() {
    yield_now().await;
    std::panic::resume_unwind(Box::new("a panic of the body"));
}

#[windlass_task::test]
async fn a_test_may_return_a_result() -> std::io::Result<()> {
    spawn(async {}).await?;
    Ok(())
}

#[windlass_task::test(paused_clock = true)]
async fn a_test_may_pause_the_clock() {
    let start = windlass_task::time::now();
    let day = std::time::Duration::from_secs(24 * 3600);
    windlass_task::time::sleep(day).await;
    assert_eq!(windlass_task::time::now() - start, day);
}

mod program {
    /// Attributes and visibility stay.
    #[windlass_task::main]
    #[must_use]
    pub(super) async fn main() -> u32 {
        windlass_task::yield_now().await;
        5
    }
}

#[test]
fn main_is_a_plain_function() {
    assert_eq!(program::main(), 5);
}
