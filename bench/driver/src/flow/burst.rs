//! A writer without a pause, and a reader that sleeps a millisecond after each read: the processor
//! time of the writer.

use std::io::ErrorKind;
use std::marker::PhantomData;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::subject::{CounterSetup, CounterSubject, ReadCounts, WriteCounts, setup_for};
use crate::measured::{Error, Measured};
use crate::poll::{Side, poll};
use crate::protocol::{Outcome, Writer};
use crate::{affinity, clock};

/// Maximum wait of the reader for something to read.
const READER_WAIT: Duration = Duration::from_millis(5);
/// Maximum wait of a polling writer for the counter to be writable.
const WRITER_WAIT: Duration = Duration::from_millis(20);
/// Time for which the reader sleeps after a read.
const READER_SLEEP: Duration = Duration::from_millis(1);

pub(super) struct Burst<C> {
    writer: Writer,
    setup: CounterSetup,
    counter: PhantomData<C>,
}

impl<C: CounterSubject> Burst<C> {
    pub(super) fn new(writer: Writer, maximum: Option<u32>) -> Result<Self, Error> {
        let setup = setup_for(writer, maximum);
        drop(C::new(&setup)?);
        Ok(Self { writer, setup, counter: PhantomData })
    }
}

/// The state that both threads use.
struct Run<'a, C> {
    counter: &'a C,
    start: Barrier,
    stop: AtomicBool,
}

impl<C: CounterSubject> Run<'_, C> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn write(&self, mode: Writer) -> Result<WriteCounts, Error> {
        let mut written = WriteCounts::default();
        self.start.wait();
        let cpu = clock::thread_cpu_ns();
        while !self.is_stopped() {
            if mode == Writer::Poll && !poll(self.counter.writer(), Side::Writable, WRITER_WAIT)? {
                continue;
            }
            match self.counter.write() {
                Ok(()) => written.writes += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => written.would_blocks += 1,
                Err(error) => return Err(error.into()),
            }
        }
        written.cpu_ns = clock::thread_cpu_ns() - cpu;
        Ok(written)
    }

    fn read(&self) -> Result<ReadCounts, Error> {
        let mut taken = ReadCounts::default();
        self.start.wait();
        let cpu = clock::thread_cpu_ns();
        // A blocked writer has filled the counter, and this read lets it continue and end.
        while !self.is_stopped() || poll(self.counter.reader(), Side::Readable, Duration::ZERO)? {
            if poll(self.counter.reader(), Side::Readable, READER_WAIT)? {
                taken.add(self.counter.read()?);
                // sleep: the case is about a slow reader.
                std::thread::sleep(READER_SLEEP);
            }
        }
        taken.cpu_ns = clock::thread_cpu_ns() - cpu;
        Ok(taken)
    }
}

impl<C: CounterSubject> Measured for Burst<C> {
    /// A round is a millisecond.
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let counter = C::new(&self.setup)?;
        let run = Run { counter: &counter, start: Barrier::new(3), stop: AtomicBool::new(false) };
        let (run, mode) = (&run, self.writer);
        let mut elapsed = Duration::ZERO;
        let (written, mut taken) = std::thread::scope(|scope| -> Result<_, Error> {
            let writer = scope.spawn(move || {
                affinity::pin_opposite();
                run.write(mode).map_err(|error| error.to_string())
            });
            let reader = scope.spawn(move || {
                affinity::pin_with_main();
                run.read().map_err(|error| error.to_string())
            });
            run.start.wait();
            let started = Instant::now();
            // sleep: the measurement has this length.
            std::thread::sleep(Duration::from_millis(rounds));
            run.stop.store(true, Ordering::Release);
            elapsed = started.elapsed();
            let panicked = |_| "a thread panicked";
            Ok((writer.join().map_err(panicked)??, reader.join().map_err(panicked)??))
        })?;
        // The writer may have written once more after the reader's last read.
        if poll(counter.reader(), Side::Readable, Duration::ZERO)? {
            taken.add(counter.read()?);
        }
        taken.check(written.writes, self.setup.maximum)?;
        let per_s = |count: u64| count as f64 / elapsed.as_secs_f64();
        let gauges = [
            ("writer_cpu_us_per_s", per_s(written.cpu_ns) / 1e3),
            ("reader_cpu_us_per_s", per_s(taken.cpu_ns) / 1e3),
            ("writes_per_s", per_s(written.writes)),
            ("reads_per_s", per_s(taken.reads)),
            ("would_blocks_per_s", per_s(written.would_blocks)),
            ("items_per_read_max", taken.batch_max as f64),
        ];
        let gauges = gauges.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Outcome { ns: elapsed.as_nanos() as u64, units: rounds, gauges, ..Outcome::default() })
    }
}
