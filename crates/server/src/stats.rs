//! What a service counts.

use core::cell::Cell;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a service, or of several together, since they began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Adds the counts of another service.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        /// The same where they are counted: plain numbers, for one thread counts them.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.0.get(),)* }
            }
        }
    };
}

counters! {
    /// Connections that are there now, those whose handshake goes on included.
    connections,
    /// The most that were there at once; of several services, the sum of these.
    connections_most,
    /// Handshakes that were completed.
    opened,
    /// Connections that were open and are closed.
    closed,
    /// Of these, those that have failed: reset, or the peer took no output in time.
    broken_off,
    /// Requests that were no upgrade and were answered, with a page for instance.
    requests,
    /// Handshakes that were refused or broken off.
    refused,
    /// Handshakes that took too long.
    handshake_timeouts,
    /// Messages that have come.
    messages_received,
    /// Bytes of their payloads.
    bytes_received,
    /// Messages that were sent, replies included, each delivery of a publication counted.
    messages_sent,
    /// Publications to topics.
    published,
    /// Messages that slow receivers did not get.
    dropped,
    /// Connections that were closed for not reading.
    evicted,
    /// Of these, those that were closed since connections held more memory than
    /// [`memory_max`](crate::Options::memory_max).
    evicted_for_memory,
    /// Bytes of memory that wait for connections, by the last look at timeouts.
    memory,
    /// The most that there were when it was looked at; of several services, the sum of these.
    memory_most,
    /// Publications that another worker was too busy to take.
    lost_between_workers,
    /// Connections that were closed since the peer broke a rule.
    violations,
    /// Connections that were closed since nothing was heard.
    idle_timeouts,
    /// Pings that were sent to silent peers.
    pings,
    /// How often a connection was not read from since too much output waited, or memory was short.
    reading_paused,
    /// How often a listener has left connections alone for a while for want of descriptors or
    /// memory.
    accepting_paused,
    /// How often a listener had as many connections as may be open, so that further ones had to
    /// wait: see [`connections_max`](crate::Options::connections_max).
    connection_limits_reached,
    /// Topics that somebody listens to now.
    topics,
    /// Bytes that were made by decompressing messages. Compressed bytes that make little count
    /// more: see [`CodecBytes`](windlass_ws::deflate::CodecBytes).
    bytes_inflated,
    /// Bytes that were given to compressors, for publications and prepared messages too.
    bytes_deflated,
    /// The most bytes that were inflated in one turn of the loop; of several services, the sum of
    /// these.
    inflated_per_turn_most,
    /// The most bytes that were deflated in one turn of the loop; of several services, the sum of
    /// these.
    deflated_per_turn_most,
    /// How often a connection had to wait because the codecs had done enough in a turn.
    codec_waits,
}

/// One number.
#[derive(Default)]
pub(crate) struct Counter(Cell<u64>);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.set(self.0.get().wrapping_add(count));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.set(count);
    }

    /// Keeps the largest.
    pub(crate) fn raise(&self, count: u64) {
        self.0.set(count.max(self.0.get()));
    }
}
