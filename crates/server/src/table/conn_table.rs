//! The connection table: the state of each connection that code outside its handler needs.

use windlass::{Key, Turn};

use crate::{
    api::{ConnectionId, GENERATION_MAX, INDEX_MAX, NO_CONN},
    metrics::{ConnectionCounts, StateLabel, Transport},
};

/// End of a list of subscriptions.
pub(crate) const NO_SUBSCRIPTION: u32 = u32::MAX;

/// The state of a connection as other code sees it, and that code's requests to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnFlags(u32);

impl ConnFlags {
    /// The handshake is in progress.
    pub(crate) const HANDSHAKE: Self = Self(1);
    /// The connection accepts messages.
    pub(crate) const OPEN: Self = Self(1 << 1);
    /// This side has sent its Close frame, or ends the connection in another way.
    pub(crate) const CLOSING: Self = Self(1 << 2);
    /// The connection accepts frames that were compressed for many receivers.
    pub(crate) const COMPRESSED: Self = Self(1 << 3);
    /// Output was waiting at the last delivery by others: the buffer must be checked before the
    /// next one.
    pub(crate) const LAGGING: Self = Self(1 << 4);
    /// Messages wait in the backlog, where the oldest can be dropped.
    pub(crate) const BACKLOG: Self = Self(1 << 5);
    /// The connection itself has published in the batch that waits for delivery.
    pub(crate) const PUBLISHED: Self = Self(1 << 6);
    /// The connection is in a pass, with output that is not in the stream yet.
    pub(crate) const IN_PASS: Self = Self(1 << 7);
    /// The user has paused reading.
    pub(crate) const PAUSED: Self = Self(1 << 8);
    /// The stream has reported that too much output waits, and will report when there is less. An
    /// open connection is not read from meanwhile.
    pub(crate) const FULL: Self = Self(1 << 10);
    /// Memory is short, and the connection is not read from.
    pub(crate) const LOW_MEMORY: Self = Self(1 << 11);
    /// The connection is not read from until the codecs have processed earlier input.
    pub(crate) const CODEC_QUEUED: Self = Self(1 << 12);
    /// The connection came through a Unix socket.
    pub(crate) const UNIX: Self = Self(1 << 13);
    /// The connection was adopted.
    pub(crate) const ADOPTED: Self = Self(1 << 14);
    /// The connection has TLS.
    pub(crate) const TLS: Self = Self(1 << 25);
    /// The connection has been notified of a drain.
    pub(crate) const DRAIN_NOTIFIED: Self = Self(1 << 9);

    /// Close the connection; code and reason stand beside the table.
    pub(crate) const WANTS_CLOSE: Self = Self(1 << 16);
    /// Call `on_drain`.
    pub(crate) const WANTS_DRAIN: Self = Self(1 << 17);
    /// Close it: the idle timeout has expired.
    pub(crate) const WANTS_IDLE_END: Self = Self(1 << 18);
    /// Close it: its maximum lifetime is exceeded.
    pub(crate) const WANTS_LIFETIME_END: Self = Self(1 << 19);
    /// Evict it: it does not read.
    pub(crate) const WANTS_EVICTION: Self = Self(1 << 20);
    /// Abort it: the closing handshake or the drain has timed out.
    pub(crate) const WANTS_ABORT: Self = Self(1 << 21);
    /// End it: the opening handshake has timed out.
    pub(crate) const WANTS_TIMEOUT: Self = Self(1 << 22);

    pub(crate) const WANTS: Self = Self(0x7f << 16);

    /// Requests after which no more messages of other code are accepted.
    const WANTS_END: Self = Self(Self::WANTS_CLOSE.0 | Self::WANTS_EVICTION.0);

    /// The flags of a transport, which a connection keeps.
    const TRANSPORTS: Self = Self(Self::UNIX.0 | Self::ADOPTED.0 | Self::TLS.0);

    #[inline]
    pub(crate) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(crate) const fn with(self, those: Self) -> Self {
        Self(self.0 | those.0)
    }

    #[inline]
    pub(crate) const fn without(self, those: Self) -> Self {
        Self(self.0 & !those.0)
    }

    #[inline]
    pub(crate) fn add(&mut self, those: Self) {
        *self = self.with(those);
    }

    #[inline]
    pub(crate) fn clear(&mut self, those: Self) {
        *self = self.without(those);
    }

    /// Returns whether other code can write to the stream of this open connection without further
    /// checks.
    #[inline]
    pub(crate) const fn allows_direct_write(self) -> bool {
        self.without(Self(Self::COMPRESSED.0 | Self::TRANSPORTS.0)).0 == Self::OPEN.0
    }

    /// Returns whether it receives messages from other code.
    #[inline]
    pub(crate) const fn takes_messages(self) -> bool {
        self.0 & (Self::OPEN.0 | Self::CLOSING.0 | Self::WANTS_END.0) == Self::OPEN.0
    }

    /// Returns whether the open connection does not read its output fast enough.
    pub(crate) const fn is_slow(self) -> bool {
        self.any(Self::OPEN) && self.any(Self(Self::FULL.0 | Self::BACKLOG.0))
    }

    /// Returns the state and the transport as they are named.
    pub(crate) fn label_texts(self) -> (&'static str, &'static str) {
        let (state, transport) = self.labels();
        (StateLabel::TEXTS[state as usize], Transport::TEXTS[transport as usize])
    }

    /// Returns the state and the transport as they are counted.
    fn labels(self) -> (StateLabel, Transport) {
        let state = if self.any(Self::CLOSING) {
            StateLabel::Closing
        } else if self.any(Self::OPEN) {
            StateLabel::Open
        } else {
            StateLabel::Handshake
        };
        let transport = if self.any(Self::ADOPTED) {
            Transport::Adopted
        } else if self.any(Self::TLS) {
            Transport::Tls
        } else if self.any(Self::UNIX) {
            Transport::Unix
        } else {
            Transport::Tcp
        };
        (state, transport)
    }

    pub(crate) const fn is_vacant(self) -> bool {
        self.0 == 0
    }
}

impl core::ops::BitOr for ConnFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

/// One connection, as other code sees it.
pub(crate) struct ConnEntry {
    pub(crate) stream: Key,
    generation: u32,
    pub(crate) flags: ConnFlags,
    /// The tick in which bytes were last received. While closing, the tick in which closing began.
    pub(crate) last_rx: u32,
    /// The tick in which the connection was opened. During the handshake, the tick from
    /// which the handshake timeout counts.
    pub(crate) opened: u32,
    /// The first of its subscriptions. In a vacant slot, the next vacant slot.
    pub(crate) subscriptions: u32,
    /// Memory in bytes of a partly received message, frame or request.
    pub(crate) partial_bytes: u32,
}

impl ConnEntry {
    /// Clears flags that kept the connection from being read from. Its idle time starts again.
    pub(crate) fn read_again(&mut self, flags: ConnFlags, tick: u32) {
        self.flags.clear(flags);
        if !self.flags.any(ConnFlags::CLOSING) {
            self.last_rx = tick;
        }
    }

    /// Pauses reading. Returns false if it is paused already.
    pub(crate) fn pause(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.flags.any(ConnFlags::PAUSED) {
            return false;
        }
        self.flags.add(ConnFlags::PAUSED);
        if let Ok(mut stream) = turn.stream(self.stream) {
            // Input that arrives before the next turn is not read until the connection handler has
            // been called.
            stream.pause();
            stream.notify();
        }
        true
    }

    /// Resumes reading. Returns false if it is not paused.
    pub(crate) fn resume(&mut self, turn: &mut Turn<'_>, tick: u32) -> bool {
        if !self.flags.any(ConnFlags::PAUSED) {
            return false;
        }
        self.flags.clear(ConnFlags::PAUSED);
        // The idle time starts again.
        self.last_rx = tick;
        self.notify(turn);
        true
    }

    /// Schedules a callback of the connection's handler. A failed stream reports its end
    /// separately.
    pub(crate) fn notify(&self, turn: &mut Turn<'_>) {
        if let Ok(mut stream) = turn.stream(self.stream) {
            stream.notify();
        }
    }
}

/// A service with this many connections is likely to get many more.
const MANY: usize = 512;
/// Number of slots that fill 128 KiB.
const PAGES: usize = (128 << 10) / size_of::<ConnEntry>();

// Memory cost of a connection in the table.
const _: () = assert!(size_of::<ConnEntry>() == 32);

/// All connections of a service.
pub(crate) struct ConnTable {
    entries: Vec<ConnEntry>,
    vacant: u32,
    len: usize,
    tls_handshakes: u64,
    counts: ConnectionCounts,
    worker: u16,
    first_generation: u32,
}

impl ConnTable {
    /// Generations start at `first_generation`, so that IDs of different services differ.
    pub(crate) fn new(worker: u16, first_generation: u32) -> Self {
        Self {
            entries: Vec::new(),
            vacant: NO_CONN,
            len: 0,
            tls_handshakes: 0,
            counts: ConnectionCounts::default(),
            worker,
            first_generation: first_generation & (GENERATION_MAX >> 1),
        }
    }

    pub(crate) fn is_first_worker(&self) -> bool {
        self.worker == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, including vacant ones.
    pub(crate) fn slots(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Number of connections, with those in their TLS handshake, which have no slot.
    pub(crate) fn count(&self) -> u64 {
        self.len as u64 + self.tls_handshakes
    }

    /// Number of connections whose request is not answered yet.
    pub(crate) fn handshakes(&self) -> u64 {
        self.counts[StateLabel::Handshake as usize].iter().sum()
    }

    /// Counts a connection that has begun a TLS handshake.
    pub(crate) fn begin_tls_handshake(&mut self) {
        self.tls_handshakes += 1;
        self.counts[StateLabel::Handshake as usize][Transport::Tls as usize] += 1;
    }

    /// The TLS handshake of a connection has ended, or the connection has.
    pub(crate) fn end_tls_handshake(&mut self) {
        self.tls_handshakes -= 1;
        self.counts[StateLabel::Handshake as usize][Transport::Tls as usize] -= 1;
    }

    /// Schedules a callback of every connection, each in a frame of its own, with this request.
    pub(crate) fn notify_all(&mut self, turn: &mut Turn<'_>, wants: ConnFlags) {
        for entry in self.entries.iter_mut().filter(|entry| !entry.flags.is_vacant()) {
            entry.flags.add(wants);
            entry.notify(turn);
        }
    }

    /// Aborts every connection in any state. A lingering connection, whose stream is already
    /// closed, would not receive a notification.
    pub(crate) fn abort_all(&self, turn: &mut Turn<'_>) {
        for entry in self.entries.iter().filter(|entry| !entry.flags.is_vacant()) {
            if let Ok(mut stream) = turn.stream(entry.stream) {
                stream.abort();
            }
        }
    }

    /// Number of connections by state and transport.
    pub(crate) fn counts(&self) -> &ConnectionCounts {
        &self.counts
    }

    /// Adds a connection, with the flag of its transport. Returns `None` if no ID is available.
    pub(crate) fn insert(&mut self, stream: Key, tick: u32, transport: ConnFlags) -> Option<u32> {
        let index = self.insert_entry(stream, tick, ConnFlags::HANDSHAKE | transport)?;
        let (state, transport) = self.entry(index).flags.labels();
        self.counts[state as usize][transport as usize] += 1;
        Some(index)
    }

    /// Changes the flags that count a connection, which is done here so that the counts stay right.
    fn recount(&mut self, index: u32, change: impl FnOnce(&mut ConnFlags)) {
        let flags = &mut self.entries[index as usize].flags;
        let (state, transport) = flags.labels();
        self.counts[state as usize][transport as usize] -= 1;
        change(flags);
        let (state, transport) = flags.labels();
        self.counts[state as usize][transport as usize] += 1;
    }

    /// Marks a connection as open.
    pub(crate) fn set_open(&mut self, index: u32, is_compressed: bool) {
        self.recount(index, |flags| {
            flags.clear(ConnFlags(!(ConnFlags::TRANSPORTS.0 | ConnFlags::FULL.0)));
            flags.add(ConnFlags::OPEN);
            if is_compressed {
                flags.add(ConnFlags::COMPRESSED);
            }
        });
    }

    /// Marks a connection as closing. Pausing ends here, because the peer's Close frame must be
    /// read.
    pub(crate) fn set_closing(&mut self, index: u32) {
        self.recount(index, |flags| {
            flags.add(ConnFlags::CLOSING);
            let until_now = ConnFlags::PAUSED | ConnFlags::LOW_MEMORY | ConnFlags::WANTS_CLOSE;
            flags.clear(until_now);
        });
    }

    fn insert_entry(&mut self, stream: Key, tick: u32, flags: ConnFlags) -> Option<u32> {
        let mut entry = ConnEntry {
            stream,
            generation: self.first_generation,
            flags,
            last_rx: tick,
            opened: tick,
            subscriptions: NO_SUBSCRIPTION,
            partial_bytes: 0,
        };
        let index = self.vacant;
        if let Some(slot) = self.entries.get_mut(index as usize) {
            self.vacant = slot.subscriptions;
            entry.generation = slot.generation;
            *slot = entry;
            self.len += 1;
            return Some(index);
        }
        let index = self.entries.len() as u32;
        if index > INDEX_MAX {
            return None;
        }
        if self.entries.len() == self.entries.capacity() {
            let more = match self.entries.len() {
                // At this size an allocator uses pages of their own (glibc: from 128 KiB on). Only
                // pages that were written to are resident. The allocator enlarges the block without
                // copying, and leaves no hole behind.
                len @ MANY..PAGES => PAGES - len,
                // Grows by an eighth, so that spare slots cost little per connection.
                len => (len / 8).max(16),
            };
            self.entries.reserve_exact(more);
        }
        self.entries.push(entry);
        self.len += 1;
        Some(index)
    }

    /// Makes the slot vacant. Its ID is invalid from here on.
    pub(crate) fn remove(&mut self, index: u32) {
        let vacant = self.vacant;
        let entry = &mut self.entries[index as usize];
        debug_assert!(!entry.flags.is_vacant(), "a connection leaves once");
        let (state, transport) = entry.flags.labels();
        self.counts[state as usize][transport as usize] -= 1;
        entry.flags = ConnFlags::default();
        self.len -= 1;
        if entry.generation < GENERATION_MAX {
            entry.generation += 1;
            entry.subscriptions = vacant;
            self.vacant = index;
        }
    }

    #[inline]
    pub(crate) fn entry(&mut self, index: u32) -> &mut ConnEntry {
        &mut self.entries[index as usize]
    }

    /// Returns the entry in a slot, unless the slot is vacant.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut ConnEntry> {
        self.entries.get_mut(index as usize).filter(|entry| !entry.flags.is_vacant())
    }

    pub(crate) fn id(&self, index: u32) -> ConnectionId {
        ConnectionId::new(self.worker, index, self.entries[index as usize].generation)
    }

    /// Schedules a callback of a connection in its handshake, if it has not ended.
    pub(crate) fn notify_handshake(&self, id: ConnectionId, turn: &mut Turn<'_>) {
        let entry = self.entries.get(id.index() as usize).filter(|entry| {
            id.worker() == self.worker
                && entry.generation == id.generation()
                && entry.flags.any(ConnFlags::HANDSHAKE)
        });
        if let Some(entry) = entry {
            entry.notify(turn);
        }
    }

    /// The stream of the connection in a slot.
    pub(crate) fn stream(&self, index: u32) -> Key {
        self.entries[index as usize].stream
    }

    /// Returns the index of a connection in any state.
    pub(crate) fn index_of(&self, id: ConnectionId) -> Option<u32> {
        let entry = self.entries.get(id.index() as usize)?;
        let is_current = id.worker() == self.worker && entry.generation == id.generation();
        (is_current && !entry.flags.is_vacant()).then(|| id.index())
    }

    /// Returns the index of a connection that accepts messages.
    pub(crate) fn find(&self, id: ConnectionId) -> Option<u32> {
        let entry = self.entries.get(id.index() as usize)?;
        let is_current = id.worker() == self.worker
            && entry.generation == id.generation()
            && entry.flags.takes_messages();
        is_current.then(|| id.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        // Any key will do: nothing here uses it.
        let mut reactor = windlass::Reactor::new().unwrap();
        reactor.after(std::time::Duration::ZERO, |_: windlass::Turn<'_>| {}).unwrap()
    }

    #[test]
    fn an_id_is_stale_when_its_connection_has_left() {
        let mut conns = ConnTable::new(3, 10);
        let key = key();
        let index = conns.insert(key, 0, ConnFlags::default()).unwrap();
        conns.set_open(index, false);
        let id = conns.id(index);
        assert_eq!((id.worker(), id.generation()), (3, 10));
        assert_eq!(conns.find(id), Some(index));
        assert_eq!(
            conns.find(ConnectionId::new(2, id.index(), id.generation())),
            None,
            "another worker's"
        );
        conns.remove(index);
        assert_eq!((conns.find(id), conns.len()), (None, 0));
        let again = conns.insert(key, 0, ConnFlags::default()).unwrap();
        conns.set_open(again, false);
        assert_eq!(again, index, "slots are used again");
        assert_ne!(conns.id(again), id);
        assert_eq!(conns.find(id), None);
    }

    #[test]
    fn a_slot_without_generations_is_retired() {
        let mut conns = ConnTable::new(0, 0);
        let key = key();
        let index = conns.insert(key, 0, ConnFlags::default()).unwrap();
        conns.entry(index).generation = GENERATION_MAX;
        conns.remove(index);
        assert_eq!(conns.insert(key, 0, ConnFlags::default()), Some(1));
        assert_eq!(conns.slots(), 2);
    }
}
