//! mio with a slab from token to handler, for the workloads of `windlass-bench`.

mod subject;

use std::process::ExitCode;

use mio::Token;
use slab::Slab;
use windlass_bench_driver::{Program, Suite, locked_version};

use subject::{Callback, MioWith, Table};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "mio");
    Program { version, suites: vec![Suite::dispatch::<MioWith<SlabTable>>()] }.serve()
}

#[derive(Default)]
struct SlabTable(Slab<Callback>);

impl Table for SlabTable {
    fn insert(&mut self, handler: Callback) -> Token {
        Token(self.0.insert(handler))
    }

    fn get(&mut self, token: Token) -> Option<&mut Callback> {
        self.0.get_mut(token.0)
    }

    fn remove(&mut self, token: Token) -> Option<Callback> {
        self.0.try_remove(token.0)
    }
}
