//! Which faults a simulation has, and how often.

use std::fmt;

/// A property of the way between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The time that a byte is under way, in nanoseconds.
    pub latency_ns: u64,
    /// A further time below this bound, chosen for each segment. The order of a connection stays.
    pub jitter_ns: u64,
    /// The bytes that each direction carries in a second; 0: no limit.
    pub bytes_per_s: u64,
}

/// The faults of a simulation. Each chance is in millionths, for each opportunity.
///
/// A simulation does only what a kernel may do. In particular no byte is lost or reordered on a
/// connection that is not reset, and a fault that holds readiness back reports it later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// An event of a wait for a descriptor that is not ready.
    pub spurious_event: u32,
    /// An event of a wait comes later. Further edges merge with it.
    pub delayed_event: u32,
    /// The events of a wait come in another order.
    pub reordered_batch: u32,
    /// A call or a wait ends with `EINTR`, at most 64 in a row.
    pub interrupted: u32,
    /// A read of TCP gets a part of what has arrived. The rest arrives again later.
    pub short_read: u32,
    /// A write takes a part, and room is reported later.
    pub short_write: u32,
    /// A read or write of a stream that was ready is `EAGAIN`, and readiness is reported later.
    pub would_block: u32,
    /// `ENOBUFS` of a datagram, of a new socket, or of a receive on a ring.
    pub no_buffers: u32,
    /// `EMFILE` of a call that makes a descriptor.
    pub too_many_files: u32,
    /// An accepted connection is already gone: `ECONNABORTED`.
    pub aborted_accept: u32,
    /// A connection is reset by the network, at any byte; for each delivery.
    pub reset: u32,
    /// The sending direction of a connection ends, as if another owner had shut it down. What was
    /// taken arrives, and the next write is `EPIPE`; for each write.
    pub half_close: u32,
    /// A reset overtakes bytes that are in flight.
    pub overtaking_reset: u32,
    /// A delivery waits for up to `stall_max_ns`.
    pub stall: u32,
    /// A link carries nothing for up to `partition_max_ns`; for each delivery.
    pub partition: u32,
    /// An actor runs without a reason; for each step.
    pub extra_run: u32,
    /// An actor that could run, or a deadline, waits for up to `delay_max_ns`.
    pub pause: u32,
    /// A completion of a ring comes later.
    pub late_completion: u32,
    /// A request that is cancelled completes all the same.
    pub cancel_race: u32,
    /// A completion finds the queue of a ring full.
    pub ring_overflow: u32,
    /// The wall clock steps by up to `clock_step_max_ns`; for each move of time.
    pub clock_step: u32,
    /// A process ends before it runs again, if it may.
    pub process_end: u32,
    /// A datagram is lost.
    pub lost_datagram: u32,
    /// A datagram comes twice.
    pub doubled_datagram: u32,
    /// The bound of short delays, in nanoseconds.
    pub delay_max_ns: u64,
    /// The bound of stalls, in nanoseconds.
    pub stall_max_ns: u64,
    /// The bound of partitions, in nanoseconds.
    pub partition_max_ns: u64,
    /// The bound of steps of the wall clock, in nanoseconds.
    pub clock_step_max_ns: u64,
    /// The least number of bytes that a stream holds between its ends.
    pub buffer_min: usize,
    /// The greatest one; each stream chooses.
    pub buffer_max: usize,
    /// The links between hosts.
    pub link: Link,
}

/// The link of the presets.
const LINK: Link = Link { latency_ns: 50_000, jitter_ns: 0, bytes_per_s: 0 };

impl Faults {
    /// No faults. Buffers have 208 KiB, and links a latency of 50 µs.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            spurious_event: 0,
            delayed_event: 0,
            reordered_batch: 0,
            interrupted: 0,
            short_read: 0,
            short_write: 0,
            would_block: 0,
            no_buffers: 0,
            too_many_files: 0,
            aborted_accept: 0,
            reset: 0,
            half_close: 0,
            overtaking_reset: 0,
            stall: 0,
            partition: 0,
            extra_run: 0,
            pause: 0,
            late_completion: 0,
            cancel_race: 0,
            ring_overflow: 0,
            clock_step: 0,
            process_end: 0,
            lost_datagram: 0,
            doubled_datagram: 0,
            delay_max_ns: 1_000_000,
            stall_max_ns: 1_000_000_000,
            partition_max_ns: 2_000_000_000,
            clock_step_max_ns: 86_400_000_000_000,
            buffer_min: 212_992,
            buffer_max: 212_992,
            link: LINK,
        }
    }

    /// The faults of a bad week: all but those that end a session.
    #[must_use]
    pub const fn rough() -> Self {
        Self {
            spurious_event: 10_000,
            delayed_event: 10_000,
            reordered_batch: 100_000,
            interrupted: 5_000,
            short_read: 50_000,
            short_write: 30_000,
            would_block: 10_000,
            no_buffers: 2_000,
            too_many_files: 2_000,
            stall: 1_000,
            partition: 100,
            extra_run: 5_000,
            pause: 10_000,
            late_completion: 20_000,
            cancel_race: 200_000,
            ring_overflow: 1_000,
            clock_step: 1_000,
            lost_datagram: 5_000,
            doubled_datagram: 5_000,
            buffer_min: 4_096,
            link: Link { jitter_ns: 20_000, ..LINK },
            ..Self::calm()
        }
    }

    /// Everything, and often. Buffers may have a few bytes only.
    #[must_use]
    pub const fn hostile() -> Self {
        Self {
            spurious_event: 50_000,
            delayed_event: 50_000,
            reordered_batch: 300_000,
            interrupted: 30_000,
            short_read: 200_000,
            short_write: 150_000,
            would_block: 50_000,
            no_buffers: 20_000,
            too_many_files: 20_000,
            aborted_accept: 20_000,
            reset: 5_000,
            half_close: 2_000,
            overtaking_reset: 500_000,
            stall: 10_000,
            partition: 1_000,
            extra_run: 30_000,
            pause: 50_000,
            late_completion: 100_000,
            cancel_race: 500_000,
            ring_overflow: 10_000,
            clock_step: 10_000,
            process_end: 500,
            lost_datagram: 50_000,
            doubled_datagram: 50_000,
            delay_max_ns: 5_000_000,
            buffer_min: 16,
            link: Link { jitter_ns: 500_000, bytes_per_s: 50_000_000, ..LINK },
            ..Self::calm()
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::calm()
    }
}

macro_rules! faults {
    ($($name:ident, $chance:ident, $text:literal;)*) => {
        /// A kind of fault, for traces and counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Fault {
            $(#[doc = concat!("See [`Faults::", stringify!($chance), "`].")] $name,)*
        }

        impl Fault {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in a trace.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Its chance, in millionths.
            pub(crate) const fn chance(self, faults: &Faults) -> u32 {
                match self { $(Self::$name => faults.$chance,)* }
            }
        }
    };
}

faults! {
    SpuriousEvent, spurious_event, "spurious event";
    DelayedEvent, delayed_event, "delayed event";
    ReorderedBatch, reordered_batch, "reordered batch";
    Interrupted, interrupted, "EINTR";
    ShortRead, short_read, "short read";
    ShortWrite, short_write, "short write";
    WouldBlock, would_block, "EAGAIN";
    NoBuffers, no_buffers, "ENOBUFS";
    TooManyFiles, too_many_files, "EMFILE";
    AbortedAccept, aborted_accept, "ECONNABORTED";
    Reset, reset, "reset";
    HalfClose, half_close, "half-close";
    OvertakingReset, overtaking_reset, "overtaking reset";
    Stall, stall, "stall";
    Partition, partition, "partition";
    ExtraRun, extra_run, "extra run";
    Pause, pause, "pause";
    LateCompletion, late_completion, "late completion";
    CancelRace, cancel_race, "cancel race";
    RingOverflow, ring_overflow, "ring overflow";
    ClockStep, clock_step, "clock step";
    ProcessEnd, process_end, "process end";
    LostDatagram, lost_datagram, "lost datagram";
    DoubledDatagram, doubled_datagram, "doubled datagram";
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_get_worse() {
        let presets = [Faults::calm(), Faults::rough(), Faults::hostile()];
        for fault in Fault::ALL {
            let chances: Vec<u32> = presets.iter().map(|preset| fault.chance(preset)).collect();
            assert!(chances.is_sorted() && chances[0] == 0 && chances[2] > 0, "{fault}");
            assert!(chances[2] <= 1_000_000, "{fault}");
        }
    }
}
