//! The programs in this folder are its contents; see `examples/README.md`.
