//! mio with an `FxHashMap` from token to handler, for the workloads of `windlass-bench`.

mod subject;
mod wake;

use std::process::ExitCode;

use mio::Token;
use rustc_hash::FxHashMap;
use windlass_bench_driver::{Program, Suite, locked_version};

use subject::{Callback, MioWith, Table};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "mio");
    type Poll = MioWith<HashMapTable>;
    let suites = vec![
        Suite::dispatch::<Poll>(),
        Suite::poll0::<Poll>(),
        Suite::wake::<wake::Loop>(),
        Suite::first_event::<Poll>(),
    ];
    Program { version, suites }.serve()
}

#[derive(Default)]
struct HashMapTable {
    handlers: FxHashMap<Token, Callback>,
    next: usize,
}

impl Table for HashMapTable {
    fn insert(&mut self, handler: Callback) -> Token {
        let token = Token(self.next);
        self.next += 1;
        self.handlers.insert(token, handler);
        token
    }

    fn get(&mut self, token: Token) -> Option<&mut Callback> {
        self.handlers.get_mut(&token)
    }

    fn remove(&mut self, token: Token) -> Option<Callback> {
        self.handlers.remove(&token)
    }
}
