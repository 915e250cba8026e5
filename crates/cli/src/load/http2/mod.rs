//! The workers of `--http2`: WebSockets and requests as streams of connections of HTTP/2.
//!
//! 1. Each worker is an executor on a thread. Each stream is a task with its own messages: a
//!    WebSocket, or a place for one request at a time.
//! 2. All streams are open before the first message is sent, at a moment that the workers share.
//! 3. The start and the end of the measured time are changes, which all streams await.
//! 4. Borrows of the shared state last for one step, and never over an `await`.

mod open;
mod requests;
mod stream;
mod websocket;

use std::{
    cell::{Cell, RefCell},
    io,
    num::NonZeroU64,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use rustix::thread::set_current_timer_slack;
use windlass::{Reactor, Signal};
use windlass_task::{
    Executor, JoinHandle,
    cancel::{Cancel, Cancellation},
    race,
    signal::Signals,
    spawn,
    time::{sleep, sleep_until},
};

use super::{
    event_loop::{OTHER_SUBSCRIBERS, START_DELAY, TICK},
    exchange::ExchangeState,
    fault::{Fault, FaultKind},
    payload::PayloadPool,
    plan::LoadPlan,
    run_state::RunState,
    schedule::Nanos,
    worker::OPENING_MAX,
};
use open::Connection;
use stream::LoadStream;

/// The threads of the workers.
pub(crate) struct Http2Workers(Vec<thread::JoinHandle<io::Result<()>>>);

impl Http2Workers {
    pub(crate) fn start(plan: &Arc<LoadPlan>, run_state: &Arc<RunState>) -> io::Result<Self> {
        let stop = Cancel::new();
        let threads = (0..usize::from(plan.args.workers)).map(|worker| {
            let (plan, run_state, stop) = (Arc::clone(plan), Arc::clone(run_state), stop.clone());
            thread::Builder::new().name(format!("load-{worker}")).spawn(move || {
                // Whatever ends this worker, the others do not wait for it.
                let failed = stop.clone().cancel_on_drop();
                run(&plan, &run_state, &stop, worker)?;
                drop(failed.disarm());
                Ok(())
            })
        });
        threads.collect::<io::Result<_>>().map(Self)
    }

    pub(crate) fn join(self) -> anyhow::Result<()> {
        for thread in self.0 {
            let ended = thread.join().map_err(|_| anyhow!("it has panicked"));
            ended.and_then(|ended| Ok(ended?)).context("a worker failed")?;
        }
        Ok(())
    }
}

/// Runs a worker to its end.
fn run(
    plan: &Arc<LoadPlan>,
    run_state: &Arc<RunState>,
    stop: &Cancel,
    worker: usize,
) -> io::Result<()> {
    if plan.args.rate.is_some() {
        // By default the kernel lets timers be late by 50 µs, which would delay each message.
        set_current_timer_slack(NonZeroU64::new(1))?;
    }
    let connections = plan.connections_of(worker).count();
    let reactor = Reactor::builder()
        .backend(plan.args.backend)
        .subscribers_max(connections + OTHER_SUBSCRIBERS);
    let mut executor = Executor::builder().reactor(reactor).build().map_err(io::Error::other)?;
    run_state.built(&executor.with_turn(|turn| turn.stats()));
    let shared = Rc::new(Shared {
        exchanges: plan
            .targets
            .iter()
            .map(|_| RefCell::new(ExchangeState::new(&plan.args)))
            .collect(),
        pool: PayloadPool::of(&plan.args),
        plan: Arc::clone(plan),
        run_state: Arc::clone(run_state),
        ended: Cell::new(None),
        change: Change::default(),
    });
    let running = Rc::clone(&shared);
    let stopped = stop.cancelled();
    executor.block_on(async {
        if worker == 0 {
            spawn(Rc::clone(&running).end_on_signals(stop.clone())).detach();
        }
        spawn(Rc::clone(&running).tick(stop.clone())).detach();
        race(running.measure(worker), stopped).await;
    });
    // Streams that are under way count their unanswered messages.
    drop(executor);
    for (target, exchange) in shared.exchanges.iter().enumerate() {
        run_state.add_results(target, &exchange.borrow().results);
    }
    Ok(())
}

/// Something that tasks await again and again.
#[derive(Default)]
struct Change(RefCell<Cancel>);

impl Change {
    /// Waits for the next change.
    fn next(&self) -> Cancellation {
        self.0.borrow().cancelled()
    }

    fn tell(&self) {
        self.0.take().cancel();
    }
}

/// State that the streams of a worker share.
struct Shared {
    plan: Arc<LoadPlan>,
    run_state: Arc<RunState>,
    /// By target.
    exchanges: Vec<RefCell<ExchangeState>>,
    /// The messages to send, which are borrowed while they are fed to a socket.
    pool: PayloadPool,
    /// When the measured time has ended, if it has.
    ended: Cell<Option<Nanos>>,
    /// The beginning and the end of the measured time.
    change: Change,
}

impl Shared {
    fn now(&self) -> Nanos {
        self.run_state.clock.now()
    }

    /// Opens the connections, and waits for the end of their streams.
    async fn measure(self: Rc<Self>, worker: usize) {
        let numbers: Vec<u32> = self.plan.connections_of(worker).collect();
        let numbers = Rc::new(RefCell::new(numbers.into_iter()));
        let openers: Vec<_> = (0..OPENING_MAX)
            .map(|_| {
                let (shared, numbers) = (Rc::clone(&self), Rc::clone(&numbers));
                spawn(async move {
                    let mut streams = Vec::new();
                    loop {
                        let number = numbers.borrow_mut().next();
                        let Some(number) = number.filter(|_| !shared.run_state.is_given_up())
                        else {
                            return streams;
                        };
                        streams.extend(shared.open(number).await);
                    }
                })
            })
            .collect();
        let mut streams = Vec::new();
        for opener in openers {
            streams.extend(output(opener).await);
        }
        self.run_state.ready(START_DELAY);
        let origin = loop {
            match self.run_state.origin() {
                Some(origin) => break origin,
                None => sleep(TICK).await,
            }
        };
        self.sleep_until(origin).await;
        self.begin(origin);
        for stream in streams {
            output(stream).await;
        }
    }

    /// Opens a connection with its streams, and returns their tasks.
    async fn open(self: &Rc<Self>, number: u32) -> Vec<JoinHandle<()>> {
        let args = &self.plan.args;
        let streams = number * args.streams_per_connection()..;
        let streams = streams.take(args.streams_per_connection() as usize);
        let target = self.plan.target_of(number.into());
        let mut streams = streams.map(|number| LoadStream::new(self, number, target)).peekable();
        let opened = Connection::open(self, target).await;
        let connection = match opened {
            Ok(connection) => Rc::new(connection),
            Err(fault) => {
                streams.next().expect("a connection has at least one").fail_to_open(fault);
                return Vec::new();
            }
        };
        if args.is_http() {
            self.opened(target);
            return streams.map(|stream| stream.request_again_and_again(&connection)).collect();
        }
        let mut tasks = Vec::new();
        for stream in streams {
            match connection.websocket().await {
                Ok(socket) => {
                    self.opened(target);
                    tasks.push(stream.converse(socket, &connection));
                }
                Err(fault) => stream.fail_to_open(fault),
            }
        }
        tasks
    }

    fn opened(&self, target: usize) {
        self.exchanges[target].borrow_mut().results.opened += 1;
        self.run_state.opened.fetch_add(1, Relaxed);
    }

    /// Starts the schedule: from now on messages are sent.
    fn begin(self: &Rc<Self>, origin: Nanos) {
        let schedule = self.plan.schedule(origin);
        let end = schedule.window.end;
        for exchange in &self.exchanges {
            exchange.borrow_mut().schedule = schedule.clone();
        }
        self.change.tell();
        let shared = Rc::clone(self);
        spawn(async move {
            shared.sleep_until(end).await;
            shared.end();
        })
        .detach();
    }

    /// Ends the measured time, by the clock or on request.
    fn end(&self) {
        if self.ended.get().is_some() {
            return;
        }
        let now = self.now();
        self.ended.set(Some(now));
        self.exchanges.iter().for_each(|exchange| exchange.borrow_mut().end(now));
        self.change.tell();
    }

    /// Waits for a moment, or forever if it is too far away for the clock.
    async fn sleep_until(&self, moment: Nanos) {
        match self.run_state.clock.instant(moment) {
            Some(moment) => sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }

    /// The first signal ends the measurement in order, the second one immediately.
    async fn end_on_signals(self: Rc<Self>, stop: Cancel) {
        let Ok(mut signals) = Signals::new([Signal::INT, Signal::TERM]) else { return };
        while let Ok(signal) = signals.recv().await {
            if self.run_state.interrupt(signal.as_raw()) {
                stop.cancel();
            }
        }
    }

    /// Reports progress and notes the CPU time, again and again. Ends the run if it is to end.
    async fn tick(self: Rc<Self>, stop: Cancel) {
        let mut reported = 0;
        loop {
            sleep(TICK).await;
            let now = self.now();
            let messages = |exchange: &RefCell<ExchangeState>| exchange.borrow().results.messages;
            let messages = self.exchanges.iter().map(messages).sum();
            self.run_state.answered.fetch_add(messages - reported, Relaxed);
            reported = messages;
            // The process has no part of its CPU time for each target.
            let mut exchange = self.exchanges[0].borrow_mut();
            let window = &exchange.schedule.window;
            let has_begun = window.start < Nanos::MAX;
            if window.contains(&now) {
                exchange.results.sample_cpu(self.run_state.clock.sample());
            }
            drop(exchange);
            let is_interrupted = self.run_state.signal().is_some();
            if self.run_state.is_given_up() || (is_interrupted && !has_begun) {
                stop.cancel();
            } else if is_interrupted {
                self.end();
            }
        }
    }
}

/// The output of a task, or its panic.
async fn output<T>(task: JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|error| panic!("{error}"))
}

/// The texts of an error and its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The fault of something that took too long.
fn late(kind: FaultKind, what: &str, limit: Duration) -> Fault {
    let seconds = limit.as_secs_f64();
    Fault::new(kind, format_args!("no {what} within {seconds} s; --timeout sets the limit"))
}
