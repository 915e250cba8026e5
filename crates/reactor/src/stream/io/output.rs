//! The output of a stream that its socket has not accepted: own and shared pieces in order.

use std::{collections::VecDeque, io::IoSlice, os::fd::OwnedFd, rc::Rc, sync::Arc};

use crate::stream::{SharedBytes, io::memory::BufferMemory};

/// The maximum size of an own piece. An emptied output keeps at most this much memory.
pub(in crate::stream) const CHUNK: usize = 16 << 10;

/// Shared bytes up to this length are copied: a piece of their own would cost as much.
const COPIED_MAX: usize = 256;

/// The maximum number of places for pieces that an emptied output keeps.
const PLACES_MAX: usize = 64;

enum OutputPiece {
    Own(Vec<u8>),
    /// The shared bytes, and the offset at which they start.
    Shared(Arc<[u8]>, usize),
}

impl OutputPiece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes, from) => &bytes[*from..],
        }
    }
}

/// Buffered bytes in the order of sending.
#[derive(Default)]
pub(crate) struct Output {
    pieces: VecDeque<OutputPiece>,
    /// The number of bytes of the first piece that are sent.
    sent: usize,
    len: usize,
    /// The memory of a sent piece, to be reused.
    spare: Vec<u8>,
    /// The memory of own pieces and the spare one, as counted in `memory`.
    own: usize,
    memory: Rc<BufferMemory>,
    /// TLS records that the socket has not accepted. They go out before the pieces, which are not
    /// encrypted yet.
    records: Vec<u8>,
    /// The descriptors, if there are any. In a box, for the size of this struct.
    fds: Option<Box<OutputFds>>,
}

/// Parts with descriptors: the number of bytes before the one that they go with. In order.
struct OutputFds(VecDeque<(usize, Vec<OwnedFd>)>);

// Outputs are allocated and freed often if many streams write at once. From 121 bytes on, an
// allocation is too large for the fast bins of glibc, and freeing it costs 300 instructions more.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Output>() <= 120);

impl Output {
    pub(in crate::stream) fn new(memory: &Rc<BufferMemory>) -> Self {
        let mut output = Self::default();
        output.memory = Rc::clone(memory);
        output
    }

    /// The memory that it holds, with its share of shared bytes.
    pub(in crate::stream) fn memory(&self) -> usize {
        let shared = self.pieces.iter().map(|piece| match piece {
            OutputPiece::Own(_) => 0,
            OutputPiece::Shared(bytes, _) => self.memory.share(bytes),
        });
        self.own + shared.sum::<usize>()
    }

    /// Called before the first piece: from now on the spare memory counts.
    fn begin(&mut self) {
        if self.pieces.is_empty() && self.own == 0 {
            self.own = self.spare.capacity();
            self.memory.add(self.own);
        }
    }

    fn note_growth(&mut self, bytes: usize) {
        self.own += bytes;
        self.memory.add(bytes);
    }

    /// The number of buffered bytes.
    pub(in crate::stream) fn len(&self) -> usize {
        self.len
    }

    pub(in crate::stream) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.begin();
        self.len += bytes.len();
        if let Some(OutputPiece::Own(last)) = self.pieces.back_mut() {
            if last.len() + bytes.len() <= CHUNK {
                let before = last.capacity();
                last.extend_from_slice(bytes);
                let more = last.capacity() - before;
                return self.note_growth(more);
            }
        }
        let mut piece = core::mem::take(&mut self.spare);
        let before = piece.capacity();
        piece.extend_from_slice(bytes);
        self.note_growth(piece.capacity() - before);
        self.pieces.push_back(OutputPiece::Own(piece));
    }

    /// Buffers bytes, and descriptors that go with the first of them.
    pub(in crate::stream) fn push_with_fds(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        debug_assert!(!bytes.is_empty(), "descriptors go with a byte");
        let parts = self.fds.get_or_insert_with(|| Box::new(OutputFds(VecDeque::new())));
        parts.0.push_back((self.len, fds));
        self.push(bytes);
    }

    #[inline]
    pub(in crate::stream) fn has_fds(&self) -> bool {
        self.fds.is_some()
    }

    fn parts_with_fds(&self) -> impl Iterator<Item = &(usize, Vec<OwnedFd>)> {
        self.fds.iter().flat_map(|parts| &parts.0)
    }

    pub(in crate::stream) fn waiting_fds(&self) -> usize {
        self.parts_with_fds().map(|(_, fds)| fds.len()).sum()
    }

    /// The descriptors, each with the offset of the byte that they go with.
    pub(in crate::stream) fn take_fds(&mut self) -> Vec<(usize, Vec<OwnedFd>)> {
        self.fds.take().map_or_else(Vec::new, |parts| parts.0.into())
    }

    /// Like [`slices`](Self::slices), up to the byte that the next descriptors go with. Returns
    /// also the descriptors that go with the first byte.
    pub(in crate::stream) fn slices_with_fds<'o>(
        &'o self,
        slices: &mut [IoSlice<'o>],
    ) -> (usize, &'o [OwnedFd]) {
        let first = self.parts_with_fds().next().filter(|(at, _)| *at == 0);
        let fds = first.map_or(&[][..], |(_, fds)| fds);
        let end = self.parts_with_fds().map(|(at, _)| *at).find(|at| *at > 0);
        let (mut skip, mut left) = (self.sent, end.unwrap_or(self.len));
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let bytes = &piece.bytes()[skip..];
            let taken = bytes.len().min(left);
            if taken == 0 {
                break;
            }
            *slice = IoSlice::new(&bytes[..taken]);
            (skip, left) = (0, left - taken);
            count += 1;
        }
        (count, fds)
    }

    /// Removes the first `count` bytes, which were sent, and the descriptors that went with the
    /// first of them.
    pub(in crate::stream) fn advance_with_fds(&mut self, count: usize) {
        if let Some(OutputFds(parts)) = self.fds.as_deref_mut().filter(|_| count > 0) {
            if parts.front().is_some_and(|(at, _)| *at == 0) {
                parts.pop_front();
            }
            for (at, _) in parts.iter_mut() {
                *at -= count;
            }
            if parts.is_empty() {
                self.fds = None;
            }
        }
        self.advance(count);
    }

    /// Buffers shared bytes, starting at offset `from`.
    pub(in crate::stream) fn push_shared(&mut self, shared: &SharedBytes<'_>, from: usize) {
        let rest = &shared.bytes()[from..];
        if rest.len() <= COPIED_MAX {
            return self.push(rest);
        }
        self.begin();
        self.len += rest.len();
        self.memory.hold(shared.kept());
        self.pieces.push_back(OutputPiece::Shared(Arc::clone(shared.kept()), from));
    }

    /// Writes the first pieces to `slices`, and returns the number of slices used.
    pub(in crate::stream) fn slices<'o>(&'o self, slices: &mut [IoSlice<'o>]) -> usize {
        let mut skip = self.sent;
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(&piece.bytes()[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// The piece, if there is exactly one.
    pub(in crate::stream) fn single(&self) -> Option<&[u8]> {
        match (self.pieces.len(), self.pieces.front()) {
            (1, Some(piece)) => Some(&piece.bytes()[self.sent..]),
            _ => None,
        }
    }

    pub(in crate::stream) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// The TLS records that wait.
    pub(in crate::stream) fn records(&self) -> &[u8] {
        &self.records
    }

    pub(in crate::stream) fn push_records(&mut self, bytes: &[u8]) {
        self.begin();
        let before = self.records.capacity();
        self.records.extend_from_slice(bytes);
        self.len += bytes.len();
        let more = self.records.capacity() - before;
        self.note_growth(more);
    }

    /// Removes the first `count` bytes of the records, which were sent.
    pub(in crate::stream) fn advance_records(&mut self, count: usize) {
        if count == self.records.len() {
            return self.drop_records();
        }
        self.len -= count;
        self.records.drain(..count);
    }

    /// Removes the records and frees their memory.
    pub(in crate::stream) fn drop_records(&mut self) {
        let records = core::mem::take(&mut self.records);
        self.len -= records.len();
        self.own -= records.capacity();
        self.memory.subtract(records.capacity());
    }

    /// Removes everything but the records.
    pub(in crate::stream) fn drop_pieces(&mut self) {
        self.advance(self.len - self.records().len());
    }

    /// Appends the first bytes of the pieces to `to`, at most `max`, and returns how many.
    pub(in crate::stream) fn copy_to(&self, to: &mut Vec<u8>, max: usize) -> usize {
        let (mut skip, mut left) = (self.sent, max);
        for piece in &self.pieces {
            let bytes = &piece.bytes()[skip..];
            let taken = bytes.len().min(left);
            to.extend_from_slice(&bytes[..taken]);
            left -= taken;
            skip = 0;
            if left == 0 {
                break;
            }
        }
        max - left
    }

    /// Removes the first `count` bytes, which were sent.
    pub(in crate::stream) fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0 {
            let left = self.pieces.front().map_or(0, |piece| piece.bytes().len()) - self.sent;
            if count < left {
                self.sent += count;
                return;
            }
            count -= left;
            self.sent = 0;
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        match self.pieces.pop_front() {
            Some(OutputPiece::Own(mut bytes))
                if self.spare.capacity() == 0 && bytes.capacity() <= CHUNK =>
            {
                bytes.clear();
                self.spare = bytes;
            }
            Some(OutputPiece::Own(bytes)) => {
                self.own -= bytes.capacity();
                self.memory.subtract(bytes.capacity());
            }
            Some(OutputPiece::Shared(bytes, _)) => self.memory.release(&bytes),
            None => {}
        }
    }

    /// Frees memory that an emptied output should not keep.
    pub(in crate::stream) fn trim(&mut self) {
        for piece in self.pieces.drain(..) {
            if let OutputPiece::Shared(bytes, _) = piece {
                self.memory.release(&bytes);
            }
        }
        // The memory that an emptied output keeps is bounded and does not count.
        self.memory.subtract(core::mem::take(&mut self.own));
        if self.pieces.capacity() > PLACES_MAX {
            self.pieces = VecDeque::new();
        }
        (self.sent, self.len) = (0, 0);
        self.fds = None;
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(output: &Output) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); output.pieces()];
        assert_eq!(output.slices(&mut slices), output.pieces());
        slices.iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn small_pieces_share_a_chunk_and_large_ones_stand_alone() {
        let mut output = Output::default();
        for _ in 0..8 {
            output.push(&[1; 1000]);
        }
        assert_eq!((output.pieces(), output.len()), (1, 8000));
        output.push(&[2; CHUNK]);
        output.push(&[3; 10]);
        output.push_shared(&SharedBytes::new(&[4; COPIED_MAX]), 0);
        output.push_shared(&SharedBytes::new(&[5; COPIED_MAX + 1]), 0);
        assert_eq!(output.pieces(), 4);
        assert!(output.single().is_none());
        output.advance(8000 + CHUNK + 10 + COPIED_MAX + 1);
        assert_eq!(output.single(), Some(&[5; COPIED_MAX][..]));
    }

    #[test]
    fn an_emptied_output_keeps_a_chunk_of_memory_and_no_more() {
        let mut output = Output::default();
        output.push(&[1; 100]);
        output.push(&[1; 4 * CHUNK]);
        output.advance(output.len());
        output.trim();
        let kept = output.spare.capacity();
        assert!((100..=CHUNK).contains(&kept), "{kept}");
        output.push(&[2; 4 * CHUNK]);
        output.advance(output.len());
        assert!(output.spare.capacity() <= CHUNK);
    }

    #[test]
    fn memory_counts_by_capacity_while_it_is_held() {
        let memory = Rc::new(BufferMemory::default());
        let mut output = Output::new(&memory);
        output.push(&[1; 100]);
        output.push(&[2; 3 * CHUNK]);
        assert!(memory.bytes() >= 100 + 3 * CHUNK);
        assert_eq!(output.memory(), memory.bytes());
        // Most of the large piece is sent, but all of its memory is still held.
        output.advance(3 * CHUNK);
        assert!(memory.bytes() >= 3 * CHUNK);
        output.advance(output.len());
        output.trim();
        assert_eq!(memory.bytes(), 0, "what is kept to be used again is not counted");
        output.push(&[1; 10]);
        assert!(memory.bytes() >= 100, "{}: it has the old memory", memory.bytes());
        let shared: Arc<[u8]> = vec![3; 5000].into();
        let mut other = Output::new(&memory);
        let before = memory.bytes();
        output.push_shared(&SharedBytes::of(&shared), 0);
        other.push_shared(&SharedBytes::of(&shared), 4000);
        assert!(
            (before + 5000..before + 6000).contains(&memory.bytes()),
            "{}: shared bytes count once",
            memory.bytes()
        );
        assert_eq!(output.memory() + other.memory(), memory.bytes());
        drop((output, other));
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn records_go_before_the_pieces_and_are_counted_with_them() {
        let memory = Rc::new(BufferMemory::default());
        let mut output = Output::new(&memory);
        output.push(&[1; 100]);
        output.push_shared(&SharedBytes::new(&[2; 1000]), 0);
        output.push_records(&[8; 30]);
        output.push_records(&[9; 20]);
        assert_eq!((output.len(), output.records().len()), (1150, 50));
        let mut copied = Vec::new();
        assert_eq!(output.copy_to(&mut copied, 101), 101);
        assert_eq!((copied[99], copied[100]), (1, 2));
        output.advance_records(30);
        assert_eq!((output.len(), output.records()), (1120, &[9; 20][..]));
        output.advance(60);
        copied.clear();
        assert_eq!(output.copy_to(&mut copied, 5000), 1040);
        assert_eq!((copied[39], copied[40]), (1, 2));
        output.drop_pieces();
        assert_eq!((output.len(), output.records().len()), (20, 20));
        output.advance_records(20);
        assert_eq!(output.len(), 0);
        output.trim();
        assert_eq!(memory.bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 256,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Compares it with a plain row of bytes.
        #[test]
        #[cfg_attr(miri, ignore = "long loops over safe code")]
        fn bytes_come_out_as_they_went_in(
            ops in prop::collection::vec(
                (0usize..40_000, any::<bool>(), 0usize..50_000),
                1..20,
            ),
        ) {
            let (mut output, mut model) = (Output::default(), Vec::new());
            let mut next = 0u8;
            for (len, shared, gone) in ops {
                let mut count = || {
                    next = next.wrapping_add(1);
                    next
                };
                let bytes: Vec<u8> = (0..len).map(|_| count()).collect();
                let from = gone % (len + 1);
                if shared {
                    output.push_shared(&SharedBytes::new(&bytes), from);
                } else {
                    output.push(&bytes[from..]);
                }
                model.extend_from_slice(&bytes[from..]);
                let gone = gone.min(model.len());
                output.advance(gone);
                model.drain(..gone);
                prop_assert_eq!(output.len(), model.len());
                prop_assert_eq!(&whole(&output), &model);
            }
        }
    }
}
