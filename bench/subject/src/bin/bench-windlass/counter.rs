//! `EventCounter` instead of an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use windlass_bench_driver::Error;
use windlass_bench_driver::flow::{CounterSetup, CounterSubject};
use windlass_flow::{CounterReader, CounterWriter, EventCounter, ReadError, WriteError};

pub(crate) struct Counter {
    counter: EventCounter,
    /// Created only for sides that are polled, because others then cost nothing.
    reader: Option<CounterReader>,
    writer: Option<CounterWriter>,
}

impl CounterSubject for Counter {
    fn new(setup: &CounterSetup) -> Result<Self, Error> {
        let counter = EventCounter::builder()
            .maximum(setup.maximum.unwrap_or(u32::MAX))
            .semaphore(setup.semaphore)
            .nonblocking(setup.nonblocking)
            .build()?;
        let reader = setup.polls_reader.then(|| counter.reader()).transpose()?;
        let writer = setup.polls_writer.then(|| counter.writer()).transpose()?;
        Ok(Self { counter, reader, writer })
    }

    #[inline]
    fn write(&self) -> io::Result<()> {
        self.counter.write(1).map_err(|error| match error {
            // The kind alone: an error with a source allocates a box, unlike that of a system call.
            WriteError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            error => error.into(),
        })
    }

    #[inline]
    fn read(&self) -> io::Result<u64> {
        self.counter.read().map(u64::from).map_err(|error| match error {
            ReadError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            error => error.into(),
        })
    }

    fn count(&self) -> Option<u64> {
        self.counter.count().ok().map(u64::from)
    }

    fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_ref().expect("asked for when it was made").as_fd()
    }

    fn writer(&self) -> BorrowedFd<'_> {
        self.writer.as_ref().expect("asked for when it was made").as_fd()
    }
}
