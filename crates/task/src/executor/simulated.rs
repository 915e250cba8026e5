//! Executors that a simulation runs.

use core::future::Future;
use std::io;

use windlass::{
    Reactor,
    sim::{Guest, Next, Running, Sim},
};

use crate::{
    executor::{Driver, Executor},
    join::JoinHandle,
    sync::Arc,
    task::current::Entered,
};

/// An executor with the future that it runs.
struct Simulated {
    /// Dropped first, as by `block_on`.
    root: Option<JoinHandle<()>>,
    executor: Executor,
}

impl Guest for Simulated {
    fn reactor(&mut self) -> &mut Reactor {
        &mut self.executor.reactor
    }

    fn turn(&mut self) -> io::Result<Next> {
        let Self { root, executor } = self;
        let Some(running) = root else { return Ok(Next::Ends) };
        let entered = Entered::new(Arc::as_ptr(executor.handle.owner().shared()));
        let mut driver = Driver::new(&executor.handle, running.inner());
        let next = executor.reactor.turn_in_world(Some(&mut driver));
        drop(entered);
        if !running.is_finished() {
            // A request to stop the reactor does not end it.
            return next.map(|next| if next == Next::Ends { Next::Soon } else { next });
        }
        let output = root.take().and_then(|root| root.inner().take_output());
        if let Some(Err(error)) = output {
            let Err(_cancelled) = error.resume_panic();
        }
        next.map(|_| Next::Ends)
    }
}

impl Executor {
    /// Runs a future, and the executor's tasks, as a program of a simulation, until the future is
    /// ready. The executor is dropped then. [`ExecutorBuilder::reactor`] makes the executor one of
    /// the simulation, by [`windlass::Builder::sim`].
    ///
    /// A panic of the future leaves the simulation's step.
    ///
    /// ```
    /// use std::{io::{Read, Write}, time::Duration};
    /// use windlass::sim::{Faults, Sim};
    /// use windlass_task::{Executor, net::TcpListener, time::sleep};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let sim = Sim::new(1, Faults::calm());
    /// Executor::builder().reactor(sim.builder()).build()?.simulate(&sim, async {
    ///     let listener = TcpListener::bind("10.0.0.1:80").await.unwrap();
    ///     let (mut stream, _) = listener.accept().await.unwrap();
    ///     sleep(Duration::from_secs(3600)).await;
    ///     stream.write_all(b"an hour later").await.unwrap();
    /// });
    /// sim.run_for(Duration::from_millis(1))?;
    /// let mut text = String::new();
    /// sim.connect("10.0.0.1:80".parse().unwrap())?.read_to_string(&mut text)?;
    /// assert_eq!(text, "an hour later");
    /// assert!(sim.elapsed() >= Duration::from_secs(3600));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the executor does not belong to this simulation.
    ///
    /// [`ExecutorBuilder::reactor`]: crate::ExecutorBuilder::reactor
    pub fn simulate(self, sim: &Sim, future: impl Future<Output = ()> + 'static) -> Running {
        let root = Some(self.spawn(future));
        sim.spawn_guest(Simulated { root, executor: self })
    }
}
