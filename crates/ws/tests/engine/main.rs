//! The engine from outside: what comes out of bytes that go in, however they are cut.

mod bed;
mod closing;
#[cfg(feature = "deflate")]
mod compressed;
mod limits;
mod memory;
mod misuse;
mod pair;
mod replies;
mod splits;
mod violations;
