//! The programs in `examples/examples/` are this package's contents; `examples/README.md` lists them.

#![deny(unsafe_code)]
