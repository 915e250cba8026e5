//! What `windlass-bench` and a measured program say to each other, one JSON object a line.
//!
//! `windlass-bench` writes [`Request`]s to the program's standard input and reads one [`Reply`] for
//! each from its standard output. A case is prepared once and then measured in slices, so that the
//! slices of several programs can be interleaved. At the end of its input a program ends.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What is asked of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Says who you are, after pinning yourself to the processor, if one is named.
    Hello {
        /// Number of the processor, as sched_setaffinity(2) counts them.
        cpu: Option<usize>,
        /// Come before all others that share it, if that is allowed: for the client, whose server
        /// does so.
        #[serde(default)]
        first: bool,
    },
    /// Sets the case up; whatever was prepared before is torn down.
    Prepare {
        /// What to set up.
        case: Case,
        /// Kernel interface to use, `epoll` unless the implementation has several.
        backend: String,
        /// Does everything but the turns: what the workload itself costs.
        idle: bool,
    },
    /// To the client of the suites that measure servers: connects to one and sets the case up;
    /// whatever was connected before is closed.
    Connect {
        /// What to set up.
        case: Case,
        /// The server.
        server: Server,
    },
    /// Runs some rounds of the prepared case and checks which handlers ran.
    Slice {
        /// How many.
        rounds: u64,
    },
}

/// What a program answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// Version of the library that is measured.
        version: String,
        /// True if the processor could be pinned as asked.
        pinned: bool,
    },
    /// To [`Request::Prepare`].
    Ready,
    /// To [`Request::Slice`].
    Slice(Outcome),
    /// The implementation has no such thing; not a failure.
    Unsupported {
        /// Why.
        reason: String,
    },
    /// It went wrong: a call failed or the wrong handlers ran.
    Failed {
        /// What happened.
        reason: String,
    },
}

/// What a server program says of itself, once, on its standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// Number of its process: whoever started it may have started strace(1) instead.
    pub process: u32,
    /// Version of the library that is measured.
    pub version: String,
    /// Where its memory has the number of allocations so far, eight bytes.
    pub allocations_at: u64,
}

/// What one slice came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Time of all rounds together.
    pub ns: u64,
    /// Things done in that time, to divide by: events, pairs of calls, timers.
    pub units: u64,
    /// Turns taken in that time.
    pub turns: u64,
    /// Calls to the allocator in that time.
    pub allocations: u64,
    /// Figures of another kind, by the name they have in the report.
    #[serde(default)]
    pub gauges: BTreeMap<String, f64>,
}

/// Level- or edge-triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The handler reads the eventfd to zero.
    Level,
    /// The handler never reads: every write is a new edge.
    Edge,
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Level => "level",
            Self::Edge => "edge",
        })
    }
}

/// What a writer does when the counter is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// Waits in the write.
    Blocking,
    /// Tries again at once.
    Spin,
    /// Waits in poll(2) until the counter can be written.
    Poll,
}

/// What keeps a loop from sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Awake {
    /// It is in a handler all the time, so only the first wake is news.
    InHandler,
    /// It takes one turn after the other, for its handler wakes it again: every turn takes the
    /// wakes that came.
    Turning,
}

/// What a message is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Random bytes, in a binary message.
    Binary,
    /// Text of one byte a character.
    Ascii,
    /// Text of two bytes a character.
    TwoByte,
    /// JSON, which compresses as the messages of services do.
    Json,
}

/// What text is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Script {
    /// One byte a character.
    Ascii,
    /// One byte a character for the most part, two for some.
    Latin,
    /// Two bytes a character: Cyrillic and Greek, without spaces.
    Cyrillic,
    /// Three bytes a character.
    Cjk,
    /// Four bytes a character.
    Emoji,
    /// One to four.
    Mixed,
}

impl Script {
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::Ascii, Self::Latin, Self::Cyrillic, Self::Cjk, Self::Emoji, Self::Mixed];
}

/// Whose compressor it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compressor {
    /// The thread's; only without context takeover.
    Shared,
    /// The connection's.
    Dedicated,
}

/// One workload with its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum Case {
    /// One of `registered` sources is ready in each turn, a random one.
    OneReady {
        /// Number of sources.
        registered: usize,
        /// How they are watched.
        trigger: Trigger,
    },
    /// All `registered` sources are ready in each turn.
    AllReady {
        /// Number of sources.
        registered: usize,
        /// How they are watched.
        trigger: Trigger,
    },
    /// Each subscriber has four sources and one state; one source is ready in each turn.
    FourFds {
        /// Number of subscribers, so a quarter of the number of sources.
        subscribers: usize,
        /// How they are watched.
        trigger: Trigger,
    },
    /// Eight types of handler; `ready` of `registered` sources are ready in each turn, in random
    /// order.
    EightTypes {
        /// Number of sources.
        registered: usize,
        /// How many are ready at once.
        ready: usize,
    },
    /// Registers and deletes sources beside `registered` others; the unit is one such pair.
    RegisterDelete {
        /// Number of sources that stay.
        registered: usize,
    },
    /// What registering costs in memory.
    RegistrationMemory {
        /// Number of registrations to divide by.
        registered: usize,
    },
    /// A turn that does not wait and finds nothing.
    EmptyTurn {
        /// Number of sources that are watched.
        registered: usize,
    },
    /// Starts a timer and cancels it before it fires, with `alive` others waiting.
    InsertCancel {
        /// Number of timers that wait.
        alive: usize,
    },
    /// Starts `count` timers with random deadlines, none of which comes.
    Insert {
        /// Number of timers.
        count: usize,
    },
    /// Fires `count` timers that are all due.
    Fire {
        /// Number of timers.
        count: usize,
    },
    /// One periodic timer that is always due.
    Every {
        /// Its period.
        period_ns: u64,
    },
    /// Moves a random one of `alive` timers to another deadline.
    Reset {
        /// Number of timers that wait.
        alive: usize,
    },
    /// A writer that writes as fast as it may against a reader that sleeps a millisecond after each
    /// read. A round is a millisecond of it.
    Burst {
        /// What the writer does when the counter is full.
        writer: Writer,
        /// Maximum of the counter; `None` for one without.
        maximum: Option<u32>,
    },
    /// Events one by one, 10 000 a second written and 8 000 read: how old an event gets. A round is
    /// an event.
    Latency {
        /// Maximum of the counter; `None` for one without.
        maximum: Option<u32>,
    },
    /// A writer without a pause against a reader that works 125 µs after each read: how many writes
    /// a read takes. A round is a write.
    Coalescing {
        /// Maximum of the counter; `None` for one without.
        maximum: Option<u32>,
    },
    /// One thread writes and reads in turn; the unit is such a pair.
    Uncontended {
        /// Both sides have a descriptor that could be polled.
        polled: bool,
    },
    /// Wakes a loop that is awake; the time is that of the call alone.
    WakeRunning {
        /// What keeps the loop awake.
        awake: Awake,
    },
    /// Wakes a loop that sleeps on another processor; the time is that from the call to the
    /// handler.
    WakeSleeping,
    /// Two loops on two processors wake each other in turn.
    RoundTrip {
        /// How long each looks for a wake without sleeping.
        spin_us: u64,
    },
    /// Has a closure run on a loop on another processor, and waits for its result.
    Call {
        /// Most calls that may be queued.
        bound: usize,
        /// How long the loop looks for a call without sleeping, which it then hardly does.
        spin_us: u64,
    },
    /// Sends items to a loop on another processor, waiting where there is no room.
    Post {
        /// Number of threads that send.
        senders: usize,
        /// Most items that may be queued.
        bound: usize,
    },
    /// A client's messages are in a buffer; the server's answers, the same messages, are ready to
    /// be sent. A round is a buffer.
    Echo {
        /// What the messages are made of.
        content: Content,
        /// Length of a message's payload.
        bytes: usize,
        /// Messages in a round.
        messages: usize,
        /// Frames in a message.
        fragments: usize,
        /// Most bytes that one read gives.
        read_bytes: usize,
    },
    /// What a server's end of a connection costs in memory once it has echoed and waits.
    IdleEngine {
        /// Number of connections to divide by.
        engines: usize,
    },
    /// Unmasks a payload where it lies, or as near as the implementation does.
    Unmask {
        /// Its length.
        bytes: usize,
        /// Where it begins, from a multiple of 64 bytes: as far as the frame's header is long.
        offset: usize,
    },
    /// Says that text is valid.
    Validate {
        /// What it is written in.
        script: Script,
        /// Its length.
        bytes: usize,
        /// In so many pieces, which end within characters.
        pieces: usize,
    },
    /// Compresses messages that follow each other.
    Compress {
        /// Length of a message.
        bytes: usize,
        /// Effort of the compressor.
        level: u8,
        /// Base-two logarithm of the window's size.
        window_bits: u8,
        /// A message may refer to those before it.
        takeover: bool,
        /// Whose compressor it is.
        compressor: Compressor,
    },
    /// Inflates messages that follow each other.
    Inflate {
        /// Length of a message when it is inflated.
        bytes: usize,
        /// Base-two logarithm of the window's size.
        window_bits: u8,
        /// A message may refer to those before it.
        takeover: bool,
    },
    /// Connections whose messages a server sends back. A round is a message.
    Messages {
        /// What the messages are made of.
        content: Content,
        /// Length of a message's payload.
        bytes: usize,
        /// How many connections.
        connections: usize,
        /// Messages of a connection that are under way.
        depth: usize,
        /// Compressed in both directions, without context takeover.
        deflate: bool,
    },
    /// A connection whose messages a server sends to all receivers. A round is a delivery.
    Publish {
        /// How many receive.
        receivers: usize,
        /// Length of a message's payload.
        bytes: usize,
        /// Messages that are under way.
        outstanding: usize,
    },
    /// Connections that are opened, upgraded and closed. A round is one of them.
    Upgrade {
        /// How many are under way.
        parallel: usize,
    },
    /// What a server keeps in memory for a connection that has echoed a message and waits.
    IdleConnection {
        /// Number of connections to divide by.
        connections: usize,
    },
}

impl Case {
    /// Name of the suite it belongs to.
    pub fn suite(&self) -> &'static str {
        let part = self.part();
        part.split_once('/').map_or(part, |(suite, _)| suite)
    }

    /// The part of the suite that an implementation has or has not: the suite's name, with a word
    /// after a slash where the suite has several parts.
    pub fn part(&self) -> &'static str {
        match self {
            Self::OneReady { .. }
            | Self::AllReady { .. }
            | Self::FourFds { .. }
            | Self::EightTypes { .. }
            | Self::RegisterDelete { .. }
            | Self::RegistrationMemory { .. } => "dispatch",
            Self::EmptyTurn { .. } => "poll0",
            Self::InsertCancel { .. }
            | Self::Insert { .. }
            | Self::Fire { .. }
            | Self::Every { .. }
            | Self::Reset { .. } => "timers",
            Self::Burst { .. }
            | Self::Latency { .. }
            | Self::Coalescing { .. }
            | Self::Uncontended { .. } => "flow",
            Self::WakeRunning { .. } | Self::WakeSleeping | Self::RoundTrip { .. } => "wakeup/wake",
            Self::Call { .. } => "wakeup/call",
            Self::Post { .. } => "wakeup/post",
            Self::Echo { .. } | Self::IdleEngine { .. } => "engine",
            Self::Unmask { .. } => "unmask",
            Self::Validate { .. } => "utf8",
            Self::Compress { .. } | Self::Inflate { .. } => "deflate",
            Self::Messages { deflate: false, .. } => "echo",
            Self::Messages { deflate: true, .. } => "echo/deflate",
            Self::Publish { .. } => "broadcast",
            Self::Upgrade { .. } => "handshake",
            Self::IdleConnection { .. } => "memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_begins_with_its_suite() {
        let case = Case::Post { senders: 4, bound: 1024 };
        assert_eq!((case.suite(), case.part()), ("wakeup", "wakeup/post"));
        assert_eq!(Case::WakeSleeping.suite(), "wakeup");
        assert_eq!(Case::Uncontended { polled: false }.part(), "flow");
    }

    #[test]
    fn requests_are_one_line_and_come_back_the_same() {
        let request = Request::Prepare {
            case: Case::OneReady { registered: 3, trigger: Trigger::Edge },
            backend: "epoll".into(),
            idle: false,
        };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        let Request::Prepare { case, backend, idle } = serde_json::from_str(&line).unwrap() else {
            panic!("another request: {line}");
        };
        assert_eq!(case, Case::OneReady { registered: 3, trigger: Trigger::Edge });
        assert_eq!((backend.as_str(), idle), ("epoll", false));
    }
}
