//! A turn is valid for one call.
use windlass_task::{block_on, with_turn};

fn main() {
    block_on(async {
        let turn = with_turn(|turn| turn);
        drop(turn);
    });
}
