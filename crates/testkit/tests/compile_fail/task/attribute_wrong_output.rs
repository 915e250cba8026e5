//! The type of the body is checked as that of a function.
#[windlass_task::main]
async fn main() -> std::io::Result<()> {
    1
}
