//! Black-box tests of the engine: events and output for received bytes, however they are cut.

mod closing;
#[cfg(feature = "deflate")]
mod compressed;
#[cfg(feature = "deflate")]
mod compressed_pieces;
mod copies;
mod fixture;
mod fragments;
mod limits;
mod memory;
mod misuse;
mod pair;
mod pieces;
mod replies;
mod splits;
mod text;
mod violations;
