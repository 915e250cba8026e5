//! Starts worker threads, each of which runs a reactor.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use crate::{
    Reactor, Stats, Stop,
    stream::{OnPanic, RunningWorkers, Worker, Workers},
};

impl Workers {
    /// Starts the threads. Each calls `set_up` for its reactor, and runs the reactor once all of
    /// them are set up.
    ///
    /// It returns when every worker runs. If one of them ends, by a stop, an error or a panic, the
    /// others are stopped too.
    ///
    /// If the thread has a simulation, the workers are programs of it, and no threads. Their
    /// reactors need [`Backend::Sim`](crate::Backend::Sim). A panic of a handler reaches the test,
    /// and the worker goes on; the hook of [`on_panic`](Self::on_panic) is not called.
    ///
    /// # Errors
    /// The first error of a `set_up`, of pinning, or of starting a thread. All threads have ended
    /// then.
    ///
    /// # Panics
    /// With the panic of a `set_up`. All threads have ended then.
    pub fn start<F>(self, set_up: F) -> io::Result<RunningWorkers>
    where
        F: Fn(Worker) -> io::Result<Reactor> + Send + Sync + 'static,
    {
        #[cfg(feature = "sim")]
        if let Some(world) = crate::world::World::current() {
            return super::hosted::start_workers(&self, &world, set_up);
        }
        let workers = self.list()?;
        let set_up = Arc::new(set_up);
        let mut running = RunningWorkers::new();
        let mut starting = Vec::new();
        let (report, reports) = mpsc::channel();
        for worker in workers {
            let index = worker.index;
            let (set_up, report) = (Arc::clone(&set_up), report.clone());
            let (go, may_go) = mpsc::channel();
            let on_panic = self.on_panic.clone();
            let body = move || work(worker, &*set_up, report, &may_go, on_panic.as_ref());
            // Dropping `running` and the senders ends the threads that are already waiting.
            let thread =
                thread::Builder::new().name(format!("{}-{index}", self.name)).spawn(body)?;
            running.threads.push(thread);
            starting.push(go);
        }
        drop(report);
        for ready in reports.iter().take(self.count) {
            match ready {
                Ok((stop, stats)) => running.add(stop, &stats),
                Err(error) => return Err(error),
            }
        }
        if running.stops.len() < self.count {
            // A `set_up` has panicked: its thread ended without a report.
            drop(starting);
            running.join()?;
            unreachable!(
                "a worker that says nothing has panicked, and joining it resumes the panic"
            );
        }
        let everyone: Arc<[Stop]> = running.stops.clone().into();
        for go in starting {
            // The thread is blocked in receiving this, so it cannot have ended.
            let _ = go.send(Arc::clone(&everyone));
        }
        Ok(running)
    }
}

/// Stops all workers when one of them has ended for any reason.
pub(super) struct StopAll(pub(super) Arc<[Stop]>);

impl Drop for StopAll {
    fn drop(&mut self) {
        for stop in self.0.iter() {
            stop.stop();
        }
    }
}

fn work(
    worker: Worker,
    set_up: &dyn Fn(Worker) -> io::Result<Reactor>,
    report: Sender<io::Result<(Stop, Stats)>>,
    may_go: &Receiver<Arc<[Stop]>>,
    on_panic: Option<&OnPanic>,
) -> io::Result<()> {
    let reactor = worker.pin().and_then(|()| set_up(worker));
    let mut reactor = match reactor {
        Ok(reactor) => reactor,
        Err(error) => {
            // `start` returns this error; there is nothing to run.
            let _ = report.send(Err(error));
            return Ok(());
        }
    };
    let _ = report.send(Ok((reactor.stop_handle(), reactor.stats())));
    // Dropping the sender without a report tells `start` that this thread has panicked.
    drop(report);
    let Ok(everyone) = may_go.recv() else {
        // Another worker could not be set up.
        return Ok(());
    };
    let _stop_all = StopAll(everyone);
    let Some(on_panic) = on_panic else { return reactor.run() };
    loop {
        // Unwind safety: the reactor is still consistent after a panic (rule 8). The state of the
        // user's own handlers is the user's responsibility.
        match catch_unwind(AssertUnwindSafe(|| reactor.run())) {
            Ok(outcome) => return outcome,
            Err(panic) => on_panic(worker, panic),
        }
    }
}
