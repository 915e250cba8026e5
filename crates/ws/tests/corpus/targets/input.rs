//! Turns a fuzzer's bytes into operations.
//!
//! Committed corpora depend on this mapping, so it must not change. Past the end of the bytes,
//! every value is zero.

/// The unread rest of a fuzzer's input.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        byte
    }

    /// A number below 65 536; small ones take one byte.
    pub(crate) fn number(&mut self) -> usize {
        match self.byte() {
            255 => usize::from(self.byte()) << 8 | usize::from(self.byte()),
            small => usize::from(small),
        }
    }

    /// At most `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// A payload: literal bytes, or a long one generated from a few bytes.
    pub(crate) fn payload(&mut self) -> Vec<u8> {
        let kind = self.byte();
        let count = self.number();
        match kind % 4 {
            0 => self.bytes(count).to_vec(),
            1 => vec![b'a' + kind % 16; count],
            // Text without repetition nearby, so that a shift is noticed. Pieces end within
            // characters.
            2 => "aé€😀-"
                .bytes()
                .cycle()
                .skip(usize::from(kind >> 2))
                .zip((0..).map(|at: u32| at / 13))
                .map(|(byte, round)| if byte == b'-' { b'0' + (round % 10) as u8 } else { byte })
                .take(count)
                .collect(),
            _ => {
                let mut state = u64::from(kind) << 32 | 1;
                let next = move || {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                };
                std::iter::repeat_with(next).take(count).collect()
            }
        }
    }

    /// Text: a payload whose invalid UTF-8 is replaced.
    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.payload()).into_owned()
    }
}

/// How bytes are cut into pieces. The lengths repeat.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    lengths: Vec<usize>,
    next: usize,
}

impl Cuts {
    /// Up to four lengths from the input. No length means a single piece.
    pub(crate) fn new(input: &mut Input<'_>) -> Self {
        let count = input.byte() % 5;
        let lengths = (0..count).map(|_| input.number().max(1)).collect();
        Self { lengths, next: 0 }
    }

    /// Byte by byte.
    pub(crate) fn single() -> Self {
        Self { lengths: vec![1], next: 0 }
    }

    /// All at once.
    pub(crate) fn none() -> Self {
        Self { lengths: Vec::new(), next: 0 }
    }

    /// The length of the next piece, at most `available`.
    pub(crate) fn next(&mut self, available: usize) -> usize {
        let Some(&length) = self.lengths.get(self.next) else { return available };
        self.next = (self.next + 1) % self.lengths.len();
        length.min(available)
    }
}
