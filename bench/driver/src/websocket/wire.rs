//! The other end of the connection, in memory: provides the bytes of a client, and takes the
//! answers of the server.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;

/// A connection without a kernel. `recv` copies, as recv(2) does, the same bytes in every round.
/// `send` only uses the address and the length, because the work of send(2) belongs to the kernel.
#[derive(Clone, Debug)]
pub struct Wire(Rc<State>);

#[derive(Debug)]
struct State {
    /// The bytes that the client sends in a round.
    input: Vec<u8>,
    /// Maximum number of bytes per read.
    read_max: usize,
    position: Cell<usize>,
    sent_bytes: Cell<u64>,
    sends: Cell<u64>,
    is_recording: Cell<bool>,
    recorded: RefCell<Vec<u8>>,
}

/// The number of bytes sent since the last query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    pub(crate) sends: u64,
}

impl Wire {
    pub(crate) fn new(input: Vec<u8>, read_max: usize) -> Self {
        let position = Cell::new(input.len());
        Self(Rc::new(State {
            input,
            read_max,
            position,
            sent_bytes: Cell::new(0),
            sends: Cell::new(0),
            is_recording: Cell::new(false),
            recorded: RefCell::default(),
        }))
    }

    /// Copies the next bytes into `buffer`, at most the length of a read in this case. Returns
    /// their number; zero if there are none until the next round.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> usize {
        self.recv_with(buffer.len(), |bytes| buffer[..bytes.len()].copy_from_slice(bytes))
    }

    /// The same, for a buffer with space for `room` bytes that `copy` fills.
    #[inline]
    pub fn recv_with(&self, room: usize, copy: impl FnOnce(&[u8])) -> usize {
        let rest = &self.0.input[self.0.position.get()..];
        let length = rest.len().min(room).min(self.0.read_max);
        copy(&rest[..length]);
        self.0.position.set(self.0.position.get() + length);
        length
    }

    /// Takes bytes in one call, like send(2) on a writable socket.
    #[inline]
    pub fn send(&self, bytes: &[u8]) {
        self.note(bytes);
        self.0.sends.set(self.0.sends.get() + 1);
    }

    /// Takes several pieces in one call, like sendmsg(2), and returns their total length.
    #[inline]
    pub fn send_vectored<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut length = 0;
        for piece in pieces {
            self.note(piece);
            length += piece.len();
        }
        self.0.sends.set(self.0.sends.get() + 1);
        length
    }

    #[inline]
    fn note(&self, bytes: &[u8]) {
        // All writes to this memory have happened before.
        black_box(bytes.as_ptr());
        self.0.sent_bytes.set(self.0.sent_bytes.get() + bytes.len() as u64);
        if self.0.is_recording.get() {
            self.0.recorded.borrow_mut().extend_from_slice(bytes);
        }
    }

    /// Begins a round: all of its bytes can be read again.
    #[inline]
    pub(crate) fn rewind(&self) {
        self.0.position.set(0);
    }

    /// Returns whether all bytes of the round have been read.
    pub(crate) fn is_read(&self) -> bool {
        self.0.position.get() == self.0.input.len()
    }

    /// Returns the number of bytes sent since the last call.
    pub(crate) fn take_sent(&self) -> Sent {
        Sent { bytes: self.0.sent_bytes.take(), sends: self.0.sends.take() }
    }

    /// Records the sent bytes until [`recorded`](Self::recorded) is called.
    pub(crate) fn record(&self) {
        self.0.is_recording.set(true);
    }

    pub(crate) fn recorded(&self) -> Vec<u8> {
        self.0.is_recording.set(false);
        self.0.recorded.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_read_in_pieces_and_then_again() {
        let wire = Wire::new(b"abcdef".to_vec(), 4);
        let mut buffer = [0; 8];
        assert_eq!(wire.recv(&mut buffer), 0, "nothing before the first round");
        for _ in 0..2 {
            wire.rewind();
            assert_eq!((wire.recv(&mut buffer), &buffer[..4]), (4, &b"abcd"[..]));
            assert_eq!((wire.recv(&mut buffer[..1]), wire.is_read()), (1, false));
            assert_eq!((wire.recv(&mut buffer), wire.is_read()), (1, true));
            assert_eq!(wire.recv(&mut buffer), 0);
        }
    }

    #[test]
    fn what_is_sent_is_counted_and_kept_when_asked_for() {
        let wire = Wire::new(Vec::new(), 1);
        wire.send(b"ab");
        wire.record();
        assert_eq!(wire.send_vectored([&b"c"[..], b"de"].into_iter()), 3);
        assert_eq!(wire.recorded(), b"cde");
        assert_eq!(wire.take_sent(), Sent { bytes: 5, sends: 2 });
        assert_eq!(wire.take_sent(), Sent::default());
    }
}
