//! [`Shared`]: what the parts of a service are given.

use core::cell::{Cell, RefCell};
use std::{rc::Rc, sync::Arc, time::Instant};

use windlass_ws::{Config, Engine, Scratch, deflate::Agreement};

use super::{
    codec_budget::CodecBudget, memory_budget::MemoryBudget, message_rates::MessageRates,
    pass::CurrentPass,
};
use crate::{
    api::{CloseReason, Counters, Options},
    http::{Hosts, Origins, Proxies},
    mailbox::{Reconfiguration, WorkerHandle},
    metrics::{Closing, LabelCounters},
    table::{CloseInfo, LARGE_LEN},
};

/// What the parts of a service share. All of it may be used while the tables are borrowed: what is
/// behind a `RefCell` here is borrowed within its own methods alone.
pub(crate) struct Shared {
    /// The settings at the start. Those that may change are in the [`Rules`].
    pub(crate) options: Options,
    rules: RefCell<Rc<Rules>>,
    pub(crate) bounds: OutputBounds,
    pub(crate) memory: MemoryBudget,
    pub(crate) codec: CodecBudget,
    pub(crate) message_rates: MessageRates,
    pub(crate) pass: CurrentPass,
    pub(crate) stats: Counters,
    pub(crate) labels: LabelCounters,
    pub(crate) worker: Arc<WorkerHandle>,
    /// The time, in ticks of the timeout scan.
    tick: Cell<u32>,
    /// The time of the last timer event.
    timer_event: Cell<Instant>,
    /// The time in seconds, for the rate limit of control frames.
    second: Cell<u32>,
    /// Is here unless a pass has taken it.
    scratch: Cell<Option<Box<Scratch>>>,
}

/// The rules for new requests and connections, which may change.
pub(crate) struct Rules {
    pub(crate) origins: Origins,
    pub(crate) hosts: Hosts,
    pub(crate) proxies: Proxies,
    pub(crate) connections_max: usize,
    engine: Arc<Config>,
}

impl Rules {
    fn new(from: &Reconfiguration) -> Rc<Self> {
        let Reconfiguration { origins, hosts, limits, proxies, .. } = from;
        let engine = Arc::new(Config::server().with_limits(*limits));
        Rc::new(Self {
            origins: origins.clone(),
            hosts: hosts.clone(),
            proxies: proxies.clone(),
            connections_max: from.connections_max,
            engine,
        })
    }
}

/// Bounds derived from the options.
#[derive(Clone, Copy)]
pub(crate) struct OutputBounds {
    /// High watermark of waiting bytes, above which a connection is not read from.
    pub(crate) high_watermark: usize,
    /// Number of bytes sent after which a pass ends.
    pub(crate) pass_output_max: u32,
    /// Number of bytes that a pass may send before the waiting bytes are checked.
    pub(crate) pass_output_unchecked: u32,
    /// Longer messages count against the pass's output limit as if they were sent back. If messages
    /// may be compressed, all of them count: even short ones can add up to more than was received.
    pub(crate) large_len: usize,
}

/// Number of bytes that a pass may send before the waiting bytes are checked, if the buffer is much
/// larger.
const PASS_OUTPUT_UNCHECKED: u32 = 4 << 10;

impl OutputBounds {
    fn new(options: &Options) -> Self {
        let pass_output_max = options.pass_output_max() as u32;
        let large_len = if options.deflate.is_some() { 0 } else { LARGE_LEN };
        Self {
            high_watermark: options.high_watermark(),
            pass_output_max,
            pass_output_unchecked: PASS_OUTPUT_UNCHECKED.min(pass_output_max),
            large_len,
        }
    }
}

impl Shared {
    pub(crate) fn new(options: Options, memory: MemoryBudget, worker: Arc<WorkerHandle>) -> Self {
        Self {
            rules: RefCell::new(Rules::new(&Reconfiguration::of(&options))),
            bounds: OutputBounds::new(&options),
            codec: CodecBudget::new(&options),
            message_rates: MessageRates::new(&options.rates),
            options,
            memory,
            pass: CurrentPass::new(),
            stats: Counters::default(),
            labels: LabelCounters::default(),
            worker,
            tick: Cell::new(0),
            timer_event: Cell::new(windlass::now()),
            second: Cell::new(0),
            scratch: Cell::new(None),
        }
    }

    /// Returns the rules of now.
    pub(crate) fn rules(&self) -> Rc<Rules> {
        Rc::clone(&self.rules.borrow())
    }

    /// Changes the rules for requests and connections that begin afterwards.
    pub(crate) fn set_rules(&self, from: &Reconfiguration) {
        // The old ones are dropped after the borrow.
        drop(self.rules.replace(Rules::new(from)));
        self.message_rates.set(&from.rates);
    }

    /// The time, in ticks of the timeout scan.
    #[inline]
    pub(crate) fn tick(&self) -> u32 {
        self.tick.get()
    }

    /// The time of the last timer event, by the clock of the reactor.
    pub(crate) fn timer_event(&self) -> Instant {
        self.timer_event.get()
    }

    pub(crate) fn set_timer_event(&self, now: Instant) {
        self.timer_event.set(now);
    }

    /// Sets the time. By the seconds, the engines limit the rate of control frames.
    pub(crate) fn set_time(&self, tick: u32, second: u32) {
        self.tick.set(tick);
        self.second.set(second);
        if let Some(mut scratch) = self.scratch.take() {
            scratch.set_second(second);
            self.scratch.set(Some(scratch));
        }
    }

    /// Takes the scratch out of its cell. If a panic has lost it, there is a new one.
    #[inline]
    pub(crate) fn take_scratch(&self) -> Box<Scratch> {
        match self.scratch.take() {
            Some(scratch) => scratch,
            None => self.new_scratch(),
        }
    }

    /// Puts the scratch back.
    #[inline]
    pub(crate) fn put_scratch(&self, scratch: Box<Scratch>) {
        self.scratch.set(Some(scratch));
    }

    #[cold]
    fn new_scratch(&self) -> Box<Scratch> {
        let mut scratch = Box::new(Scratch::new());
        self.codec.reset_scratch_count();
        scratch.set_second(self.second.get());
        scratch
    }

    /// Frees the scratch.
    pub(crate) fn release_scratch(&self) {
        drop(self.scratch.take());
    }

    pub(crate) fn engine(&self, agreement: Option<&Agreement>) -> Engine {
        let rules = self.rules();
        match (agreement, &self.options.deflate) {
            (Some(agreement), Some(config)) => {
                Engine::with_deflate(&rules.engine, agreement, config)
            }
            _ => Engine::new(&rules.engine),
        }
    }

    /// Returns whether a connection with this agreement accepts frames that were compressed for
    /// many.
    pub(crate) fn takes_compressed(&self, agreement: Option<&Agreement>) -> bool {
        agreement
            .zip(self.options.deflate.as_ref())
            .is_some_and(|(agreement, config)| agreement.can_read_broadcast(config))
    }

    /// Counts a connection that has ended.
    pub(crate) fn count_end(&self, close_info: &CloseInfo) {
        let stats = &self.stats;
        stats.closed.add(1);
        let CloseInfo { reason, code, own_code, .. } = *close_info;
        self.labels.count_close(&Closing { reason, code, own_code });
        match close_info.reason {
            CloseReason::Violation(_) => stats.violations.add(1),
            CloseReason::Idle => stats.idle_timeouts.add(1),
            CloseReason::Failed(_) | CloseReason::WriteStall => stats.broken_off.add(1),
            _ => {}
        }
    }
}
