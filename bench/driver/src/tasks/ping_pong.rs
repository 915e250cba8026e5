//! Pairs of sockets that exchange messages.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::WARM_MESSAGES;
use super::laps::Laps;
use super::runtime::{Runtime, Stream};
use crate::measured::Error;
use crate::protocol::EchoedBy;

/// What the tasks of all pairs share.
#[derive(Debug)]
pub(crate) struct Shared {
    laps: Rc<Laps>,
    /// Number of pairs that are not warm.
    cold: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
    /// Number of pairs that have not exchanged all messages.
    unfinished: Cell<usize>,
    messages: u64,
    would_block: Cell<u64>,
    error: RefCell<Option<io::Error>>,
}

impl Shared {
    pub(crate) fn new(laps: Rc<Laps>, pairs: usize, messages: u64) -> Self {
        Self {
            laps,
            cold: Cell::new(pairs),
            waiting: RefCell::new(Vec::with_capacity(pairs)),
            unfinished: Cell::new(pairs),
            messages,
            would_block: Cell::new(0),
            error: RefCell::default(),
        }
    }

    /// Waits until all pairs are warm. The last one starts the clock.
    pub(crate) async fn warm(&self) {
        self.cold.set(self.cold.get().saturating_sub(1));
        if self.cold.get() == 0 {
            self.laps.start();
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
            return;
        }
        poll_fn(|context| {
            if self.cold.get() == 0 {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The last pair stops the clock.
    pub(crate) fn finished(&self) {
        self.unfinished.set(self.unfinished.get() - 1);
        if self.unfinished.get() == 0 {
            self.laps.stop(self.messages);
        }
    }

    pub(crate) fn failed(&self, error: io::Error) {
        self.error.borrow_mut().get_or_insert(error);
        // Nothing waits for a pair that will never be warm.
        self.cold.set(0);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// The clock of the slice.
    pub(crate) fn laps(&self) -> &Laps {
        &self.laps
    }

    /// Returns the first error.
    pub(crate) fn result(&self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn add_would_block(&self, stream: &impl Stream, before: Option<u32>) {
        if let Some((before, now)) = before.zip(stream.would_block_count()) {
            self.would_block.set(self.would_block.get() + u64::from(now - before));
        }
    }
}

pub(super) async fn run<R: Runtime>(
    echoed_by: EchoedBy,
    pairs: usize,
    exact_reads: bool,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let each = rounds.div_ceil(pairs as u64);
    let shared = Rc::new(Shared::new(Rc::clone(&laps), pairs, each * pairs as u64));
    let (listener, address) = R::listen().await?;
    let mut pending = Vec::new();
    let mut echoing = Vec::new();
    let mut counts = false;
    for _ in 0..pairs {
        let mut client = R::connect(address).await?;
        let mut server = R::accept(&listener).await?;
        if exact_reads {
            client.read_exactly();
            server.read_exactly();
        }
        counts |= client.would_block_count().is_some();
        let server = match echoed_by {
            EchoedBy::SameTask => Some(server),
            EchoedBy::OwnTask => {
                echoing.push(R::spawn(echo(server, Rc::clone(&shared))));
                None
            }
        };
        pending.push(Pair { client, server });
    }
    let exchanging: Vec<_> = pending
        .into_iter()
        .map(|pair| {
            let shared = Rc::clone(&shared);
            R::spawn(async move {
                if let Err(error) = pair.exchange_all(each, &shared).await {
                    shared.failed(error);
                }
            })
        })
        .collect();
    for task in exchanging.into_iter() {
        task.await;
    }
    for task in echoing {
        task.await;
    }
    shared.result()?;
    if counts {
        laps.gauge(
            "would_block_per_message",
            shared.would_block.get() as f64 / shared.messages as f64,
        );
    }
    Ok(())
}

struct Pair<S> {
    client: S,
    /// The other end, if this task echoes.
    server: Option<S>,
}

impl<S: Stream> Pair<S> {
    async fn exchange_all(mut self, each: u64, shared: &Shared) -> io::Result<()> {
        self.exchange(0..WARM_MESSAGES, None).await?;
        shared.warm().await;
        let before = self.client.would_block_count();
        let server_before = self.server.as_ref().and_then(Stream::would_block_count);
        self.exchange(WARM_MESSAGES..WARM_MESSAGES + each, Some(&shared.laps)).await?;
        shared.finished();
        shared.add_would_block(&self.client, before);
        if let Some(server) = &self.server {
            shared.add_would_block(server, server_before);
        }
        Ok(())
    }

    #[inline(always)]
    async fn exchange(&mut self, numbers: Range<u64>, laps: Option<&Laps>) -> io::Result<()> {
        let mut lap = laps.map(Laps::lap);
        for number in numbers {
            self.client.send(number).await?;
            if let Some(server) = &mut self.server {
                let received = server.receive().await?;
                server.send(received.ok_or(io::ErrorKind::UnexpectedEof)?).await?;
            }
            if self.client.receive().await? != Some(number) {
                return Err(io::Error::other("another message came back"));
            }
            if let Some((laps, lap)) = laps.zip(lap.as_mut()) {
                laps.record(lap);
            }
        }
        Ok(())
    }
}

/// Echoes until the end of the stream.
async fn echo<S: Stream>(mut server: S, shared: Rc<Shared>) {
    let mut before = None;
    let echoed = async {
        while let Some(number) = server.receive().await? {
            server.send(number).await?;
            if number == WARM_MESSAGES {
                // The reads of the first measured message are not counted.
                before = server.would_block_count();
            }
        }
        Ok(())
    };
    if let Err(error) = echoed.await {
        shared.failed(error);
    }
    shared.add_would_block(&server, before);
}
