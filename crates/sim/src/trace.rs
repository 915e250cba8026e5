//! The trace of a simulation: its hash, its last entries, and their text.
//!
//! The hash covers every entry in order: time, actor, descriptor, kind and value. Payload bytes,
//! addresses of memory, real clocks and the order of hash maps never reach it, so it is the same in
//! every build and on every machine.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use crate::faults::Fault;
use crate::ids::{ActorId, Fd};

macro_rules! what {
    ($($(#[$doc:meta])* $name:ident, $text:literal;)*) => {
        /// The kind of an entry of a trace. The comment says what its value is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum What { $($(#[$doc])* $name,)* }

        impl What {
            /// Its name in a trace.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

what! {
    /// An actor runs: its number.
    Run, "run";
    /// An actor waits: its deadline, or -1.
    Park, "park";
    /// An actor is woken by another: its number.
    Wake, "wake";
    /// An actor has ended: its number.
    End, "end";
    /// A descriptor was made: its host.
    Open, "open";
    /// A descriptor was closed.
    Close, "close";
    /// bind(2): the port, or 0.
    Bind, "bind";
    /// listen(2): the backlog.
    Listen, "listen";
    /// accept(2): the new slot, or a negative errno.
    Accept, "accept";
    /// connect(2): 0, or a negative errno.
    Connect, "connect";
    /// A write: its bytes, or a negative errno.
    Send, "send";
    /// A read: its bytes, or a negative errno.
    Receive, "receive";
    /// shutdown(2): 0 read, 1 write, 2 both.
    Shutdown, "shutdown";
    /// A descriptor is added to a set: its mask.
    Watch, "watch";
    /// Its mask is changed: the new mask.
    Modify, "modify";
    /// It is taken out of the set.
    Unwatch, "unwatch";
    /// An event of a wait: its mask.
    Event, "event";
    /// A wait has ended: the number of events, or a negative errno.
    Wait, "wait";
    /// A request of a ring: 0 receive, 1 send, 2 accept, 3 poll.
    Submit, "submit";
    /// A request is cancelled: 0, or a negative errno.
    Cancel, "cancel";
    /// A completion: its result.
    Complete, "complete";
    /// Bytes have arrived: their number.
    Deliver, "deliver";
    /// The end of the peer's output has arrived.
    Fin, "fin";
    /// A reset has arrived.
    Rst, "rst";
    /// A step of a handshake has arrived: its number.
    Handshake, "handshake";
    /// A timer of a descriptor has expired: the number of times.
    Expire, "expire";
    /// A signal was raised: its number.
    Signal, "signal";
    /// A link is cut: until when.
    Cut, "cut";
    /// A link is whole again.
    Heal, "heal";
    /// The wall clock was set: its new offset.
    Clock, "clock";
    /// A fault: see [`TraceEntry::fault`].
    Fault, "fault";
    /// A note of the test: its value.
    Note, "note";
}

/// An entry of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// The virtual time, in nanoseconds.
    pub at_ns: u64,
    /// The actor that runs; none in deliveries and in the test's own calls.
    pub actor: Option<ActorId>,
    /// The event.
    pub what: What,
    /// To which descriptor.
    pub fd: Option<Fd>,
    /// See [`What`].
    pub value: i64,
    /// The text of a note.
    pub note: Option<Box<str>>,
}

impl TraceEntry {
    /// The kind of a fault.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        if self.what != What::Fault {
            return None;
        }
        usize::try_from(self.value).ok().and_then(|index| Fault::ALL.get(index).copied())
    }
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6}.{:09}", self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000)?;
        match self.actor {
            Some(actor) => write!(f, "  actor {:<3}", actor.0)?,
            None => f.write_str("  -        ")?,
        }
        match self.fd {
            Some(fd) => write!(f, "  fd {:<7}", fd.to_string())?,
            None => f.write_str("            ")?,
        }
        match (self.fault(), &self.note) {
            (Some(fault), _) => write!(f, "  FAULT {fault}"),
            (_, Some(note)) => write!(f, "  note {note} {}", self.value),
            _ => match self.what {
                What::Watch | What::Modify | What::Event => {
                    write!(f, "  {} {}", self.what.name(), Bits(self.value))
                }
                _ if self.value < 0 => {
                    write!(f, "  {} error {}", self.what.name(), -self.value)
                }
                _ => write!(f, "  {} {}", self.what.name(), self.value),
            },
        }
    }
}

/// A mask by the names of its bits.
struct Bits(i64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::ids::mask;
        const NAMES: [(u32, &str); 9] = [
            (mask::IN, "IN"),
            (mask::PRI, "PRI"),
            (mask::OUT, "OUT"),
            (mask::ERR, "ERR"),
            (mask::HUP, "HUP"),
            (mask::RDHUP, "RDHUP"),
            (mask::EXCLUSIVE, "EXCLUSIVE"),
            (mask::ONESHOT, "ONESHOT"),
            (mask::ET, "ET"),
        ];
        let mut bar = "";
        for (bit, name) in NAMES {
            if self.0 & i64::from(bit) != 0 {
                write!(f, "{bar}{name}")?;
                bar = "|";
            }
        }
        if bar.is_empty() { f.write_str("0") } else { Ok(()) }
    }
}

/// The hash of all entries, and the last ones.
#[derive(Debug)]
pub(crate) struct Recorder {
    hash: u64,
    count: u64,
    entries: VecDeque<TraceEntry>,
    entries_max: usize,
    faults: [u64; Fault::ALL.len()],
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            hash: 0x6a09_e667_f3bc_c908,
            count: 0,
            entries: VecDeque::new(),
            entries_max: 0,
            faults: [0; Fault::ALL.len()],
        }
    }
}

impl Recorder {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = (self.hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.hash = product.rotate_left(29) ^ word;
    }

    /// How many entries are kept.
    pub(crate) fn set_entries_max(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
        let excess = self.entries.len().saturating_sub(entries_max);
        self.entries.drain(..excess);
    }

    /// Adds an entry.
    #[inline]
    pub(crate) fn add(
        &mut self,
        at_ns: u64,
        actor: Option<ActorId>,
        what: What,
        fd: Option<Fd>,
        value: i64,
    ) {
        self.count += 1;
        let actor_word = actor.map_or(0, |actor| u64::from(actor.0) + 1);
        self.mix(at_ns);
        self.mix((what as u64) << 32 | actor_word);
        self.mix(fd.map_or(0, Fd::as_raw));
        self.mix(value as u64);
        if what == What::Fault {
            self.faults[usize::try_from(value).expect("the index of a fault")] += 1;
        }
        if self.entries_max > 0 {
            self.keep(TraceEntry { at_ns, actor, what, fd, value, note: None });
        }
    }

    #[cold]
    fn keep(&mut self, entry: TraceEntry) {
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Adds a note of the test.
    pub(crate) fn note(&mut self, at_ns: u64, actor: Option<ActorId>, text: &str, value: i64) {
        self.add(at_ns, actor, What::Note, None, value);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        if let (true, Some(last)) = (self.entries_max > 0, self.entries.back_mut()) {
            last.note = Some(text.into());
        }
    }

    /// The hash of all entries so far.
    pub(crate) fn hash(&self) -> u64 {
        let mut last = self.hash ^ self.count;
        last = (last ^ (last >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        last ^ (last >> 32)
    }

    /// The number of entries so far, kept or not.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// How often a fault has happened.
    pub(crate) fn fault_count(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// The entries that are kept, as a trace.
    pub(crate) fn trace(&self, actors: Vec<Box<str>>) -> Trace {
        Trace {
            hash: self.hash(),
            left_out: self.count - self.entries.len() as u64,
            entries: self.entries.iter().cloned().collect(),
            actors,
        }
    }
}

/// The trace of a simulation: the last entries that were kept. Its `Display` is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The hash of all entries.
    pub hash: u64,
    /// The number of entries before the first one that is kept.
    pub left_out: u64,
    /// The entries that are kept.
    pub entries: Vec<TraceEntry>,
    /// The names of the actors.
    pub actors: Vec<Box<str>>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.actors.iter().enumerate() {
            writeln!(f, "actor {index}: {name}")?;
        }
        if self.left_out > 0 {
            writeln!(f, "({} entries before)", self.left_out)?;
        }
        for entry in &self.entries {
            writeln!(f, "{entry}")?;
        }
        writeln!(f, "hash {:016x}", self.hash)
    }
}

impl Trace {
    /// The trace as one JSON object: `hash`, `left_out`, `actors` and `entries`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = format!("{{\"hash\":\"{:016x}\",\"left_out\":{},", self.hash, self.left_out);
        json.push_str("\"actors\":[");
        for (index, name) in self.actors.iter().enumerate() {
            json.push_str(if index == 0 { "" } else { "," });
            push_string(&mut json, name);
        }
        json.push_str("],\"entries\":[");
        for (index, entry) in self.entries.iter().enumerate() {
            json.push_str(if index == 0 { "\n" } else { ",\n" });
            push_entry(&mut json, entry);
        }
        json.push_str("]}\n");
        json
    }
}

fn push_entry(json: &mut String, entry: &TraceEntry) {
    let mut add = |args: fmt::Arguments<'_>| json.write_fmt(args).expect("a string takes all");
    add(format_args!("{{\"at_ns\":{}", entry.at_ns));
    if let Some(actor) = entry.actor {
        add(format_args!(",\"actor\":{}", actor.0));
    }
    if let Some(fd) = entry.fd {
        add(format_args!(",\"fd\":\"{fd}\""));
    }
    add(format_args!(",\"fault\":{}", entry.fault().is_some()));
    add(format_args!(",\"value\":{},\"what\":", entry.value));
    push_string(json, entry.fault().map_or(entry.what.name(), Fault::name));
    if let Some(note) = &entry.note {
        json.push_str(",\"note\":");
        push_string(json, note);
    }
    json.push('}');
}

fn push_string(json: &mut String, text: &str) {
    json.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            char if char < ' ' => {
                write!(json, "\\u{:04x}", u32::from(char)).expect("a string takes all");
            }
            char => json.push(char),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(value: i64) -> Recorder {
        let mut recorder = Recorder::default();
        recorder.set_entries_max(2);
        recorder.add(1, None, What::Open, Some(Fd::from_raw(1 << 32)), 0);
        recorder.add(2_000_000_003, Some(ActorId(0)), What::Send, None, value);
        recorder.note(4, None, "a \"b\"\n", 5);
        recorder
    }

    #[test]
    fn the_hash_covers_values_notes_and_order() {
        let hash = |notes: &[&str]| {
            let mut recorder = recorder(3);
            notes.iter().for_each(|note| recorder.note(5, None, note, 0));
            recorder.hash()
        };
        assert_eq!(recorder(3).hash(), recorder(3).hash());
        assert_ne!(recorder(3).hash(), recorder(4).hash());
        let at = |at_ns| {
            let mut recorder = recorder(3);
            recorder.add(at_ns, None, What::Open, None, 0);
            recorder.hash()
        };
        assert_ne!(at(7), at(8));
        assert_ne!(hash(&["a", "b"]), hash(&["b", "a"]));
    }

    #[test]
    fn the_hash_does_not_depend_on_what_is_kept() {
        let (all, mut none) = (recorder(3), recorder(3));
        none.set_entries_max(0);
        assert_eq!(all.hash(), none.hash());
        assert!(none.trace(Vec::new()).entries.is_empty());
    }

    #[test]
    fn the_text_shows_the_last_entries() {
        let text = recorder(-11).trace(vec!["server".into()]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "actor 0: server");
        assert_eq!(lines[1], "(1 entries before)");
        assert!(lines[2].starts_with("     2.000000003  actor 0"), "{text}");
        assert!(lines[2].ends_with("  send error 11"), "{text}");
        assert!(lines[5].starts_with("hash "), "{text}");
    }

    #[test]
    fn json_escapes_the_texts_of_notes() {
        let json = recorder(1).trace(Vec::new()).to_json();
        assert!(json.contains("\"note\":\"a \\\"b\\\"\\u000a\""), "{json}");
        assert!(json.contains("\"value\":5,\"what\":\"note\""), "{json}");
    }
}
