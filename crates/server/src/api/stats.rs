//! Counts of a service.

use core::cell::Cell;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a service, or of several together, since they started.
        ///
        /// ```
        /// use windlass_server::ServerStats;
        ///
        /// let mut one = ServerStats::default();
        /// one.messages_received = 3;
        /// let mut sum = ServerStats::default();
        /// sum.add(&one);
        /// sum.add(&one);
        /// assert_eq!(sum.messages_received, 6);
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ServerStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl ServerStats {
            /// Adds the counts of another service.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        /// The live counters: plain numbers, because one thread updates them.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> ServerStats {
                ServerStats { $($name: self.$name.0.get(),)* }
            }
        }
    };
}

counters! {
    /// Connections that exist now, including those whose handshake is in progress.
    connections,
    /// Maximum number of simultaneous connections. For the workers of a server, that of all of them
    /// together; of other services, [`add`](ServerStats::add) makes the sum of their maxima.
    connections_most,
    /// Completed handshakes.
    opened,
    /// Connections that were open and are closed.
    closed,
    /// Closed connections that failed: reset, or the peer did not read output in time.
    broken_off,
    /// Requests other than upgrades that were answered, for instance with a page. Rejected ones are
    /// not included.
    requests,
    /// Requests that were rejected, for upgrades and for pages, and handshakes that were broken
    /// off.
    rejected,
    /// Handshakes that timed out.
    handshake_timeouts,
    /// Messages received.
    messages_received,
    /// Payload bytes of received messages.
    bytes_received,
    /// Messages sent, including replies; each delivery of a publication counts.
    messages_sent,
    /// Publications to topics.
    published,
    /// Messages dropped for slow receivers.
    dropped,
    /// Connections that were closed because they did not read.
    evicted,
    /// Of these, connections that were closed because memory use exceeded
    /// [`memory_max`](crate::Options::memory_max).
    evicted_for_memory,
    /// Memory in bytes that waits for connections, as of the last timeout scan.
    memory,
    /// Maximum of that memory over all scans. For several services, the sum of their maxima.
    memory_most,
    /// Publications lost because another worker's queue was full.
    lost_between_workers,
    /// Connections that were closed because the peer violated the protocol or a limit.
    violations,
    /// Connections that were closed because nothing was received.
    idle_timeouts,
    /// Pings sent to idle peers.
    pings,
    /// Pings sent, these included.
    pings_sent,
    /// Pings received.
    pings_received,
    /// Pongs sent: the answers to pings.
    pongs_sent,
    /// Pongs received.
    pongs_received,
    /// Number of times that reading from a connection was paused, because too much output waited or
    /// memory was short.
    reading_paused,
    /// Number of times that a listener stopped accepting for a while, for lack of descriptors or
    /// memory.
    accepting_paused,
    /// Number of times that a listener reached its connection limit, so that further connections
    /// had to wait: see [`connections_max`](crate::Options::connections_max).
    connection_limits_reached,
    /// Number of times that a listener stopped accepting for a while because of a
    /// [rate](crate::RateLimits) over all.
    connection_rates_reached,
    /// Topics that have subscribers now.
    topics,
    /// Bytes produced by decompressing messages. Compressed bytes that produce little count more:
    /// see [`CodecBytes`](windlass_ws::deflate::CodecBytes).
    bytes_inflated,
    /// Bytes given to compressors, including those of publications and prepared messages.
    bytes_deflated,
    /// Maximum number of bytes inflated in one turn of the loop. For several services, the sum of
    /// their maxima.
    inflated_per_turn_most,
    /// Maximum number of bytes deflated in one turn of the loop. For several services, the sum of
    /// their maxima.
    deflated_per_turn_most,
    /// Number of times that a connection had to wait because a turn's codec budget was spent.
    codec_waits,
    /// Of the received messages, those that are text. The others are binary.
    text_received,
    /// Of the sent messages, those that are text. The others are binary.
    text_sent,
    /// Payload bytes of sent messages, before compression.
    bytes_sent,
    /// Bytes received from sockets, with the requests of handshakes.
    wire_received,
    /// Bytes given to streams for sending: frames, and responses to requests. What waits for the
    /// socket is included, and so are bytes that a broken connection never sent.
    wire_sent,
    /// Subscriptions that exist now.
    subscriptions,
}

/// Messages of which one receiver gets a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentMessages {
    pub(crate) count: u32,
    pub(crate) text: u32,
    /// Payload bytes.
    pub(crate) bytes: usize,
}

impl SentMessages {
    pub(crate) fn one(is_text: bool, len: usize) -> Self {
        Self { count: 1, text: u32::from(is_text), bytes: len }
    }
}

impl Counters {
    /// Number of bytes that have passed through a codec.
    pub(crate) fn codec_bytes(&self) -> u64 {
        self.bytes_inflated.get() + self.bytes_deflated.get()
    }

    /// Counts messages for this number of receivers.
    pub(crate) fn note_sent(&self, sent: SentMessages, receivers: u64) {
        self.messages_sent.add(u64::from(sent.count) * receivers);
        self.text_sent.add(u64::from(sent.text) * receivers);
        self.bytes_sent.add(sent.bytes as u64 * receivers);
    }
}

/// One counter.
///
/// The alignment keeps counters apart. The compiler would add to two adjacent ones in a vector
/// register, which takes more instructions than two additions.
#[derive(Default)]
#[repr(align(16))]
pub(crate) struct Counter(Cell<u64>);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        // A benchmark compares both.
        if !cfg!(windlass_uncounted) {
            self.0.set(self.0.get().wrapping_add(count));
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.set(count);
    }

    /// Keeps the maximum.
    pub(crate) fn set_max(&self, count: u64) {
        self.0.set(count.max(self.0.get()));
    }
}
