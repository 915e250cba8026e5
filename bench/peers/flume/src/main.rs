//! The bounded channel of flume under the workload of `windlass-bench`.

use std::process::ExitCode;

use flume::{Receiver, Sender, bounded};
use windlass_bench_driver::wakeup::{Item, QueueSender, QueueSubject, Sink};
use windlass_bench_driver::{Error, Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "flume");
    Program { version, suites: vec![Suite::post::<Queue>()] }.serve()
}

struct Queue {
    sender: Sender<Item>,
    receiver: Receiver<Item>,
}

impl QueueSubject for Queue {
    type Sender = End;

    fn new(_backend: &str, bound: usize) -> Result<Self, Error> {
        let (sender, receiver) = bounded(bound);
        Ok(Self { sender, receiver })
    }

    fn sender(&self) -> End {
        End(self.sender.clone())
    }

    fn run(&mut self, sink: &'static Sink) -> Result<(), Error> {
        while !sink.is_done() {
            sink.take(self.receiver.recv()?);
        }
        Ok(())
    }
}

struct End(Sender<Item>);

impl QueueSender for End {
    #[inline]
    fn send(&mut self, item: Item, _sink: &'static Sink) -> Result<(), Error> {
        Ok(self.0.send(item)?)
    }
}
