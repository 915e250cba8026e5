//! A DEFLATE decoder that follows RFC 1951 bit by bit. It is an oracle for zlib-rs: it shares no
//! code with it, and it measures how far back a stream refers.

/// Everything that one side has sent so far.
#[derive(Default)]
pub(crate) struct Decoder {
    /// All messages, one after the other.
    pub(crate) output: Vec<u8>,
    /// The largest distance seen, in bytes.
    pub(crate) distance_max: usize,
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn left(&self) -> usize {
        self.bytes.len() * 8 - self.at
    }

    fn bit(&mut self) -> Option<usize> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Some(usize::from(bit))
    }

    fn number(&mut self, bits: usize) -> Option<usize> {
        (0..bits).try_fold(0, |number, shift| Some(number | self.bit()? << shift))
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }
}

/// A code as (length in bits, code, symbol). A lookup compares with each in turn.
struct Code(Vec<(usize, usize, usize)>);

impl Code {
    /// RFC 1951 section 3.2.2.
    fn new(lengths: &[usize]) -> Self {
        let mut code = 0;
        let mut all = Vec::new();
        for length in 1..=15 {
            code <<= 1;
            for symbol in (0..lengths.len()).filter(|&symbol| lengths[symbol] == length) {
                all.push((length, code, symbol));
                code += 1;
            }
        }
        Self(all)
    }

    fn symbol(&self, bits: &mut Bits<'_>) -> Option<usize> {
        let (mut length, mut code) = (0, 0);
        for &(wanted, value, symbol) in &self.0 {
            while length < wanted {
                code = code << 1 | bits.bit()?;
                length += 1;
            }
            if code == value {
                return Some(symbol);
            }
        }
        None
    }
}

const LENGTH_BASE: [usize; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const DISTANCE_BASE: [usize; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
    2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577,
];

impl Decoder {
    /// Decodes one message without the tail. `None` if it is not DEFLATE, or if the tail is not the
    /// end of an empty block. The output is then undefined.
    pub(crate) fn message(&mut self, compressed: &[u8]) -> Option<Vec<u8>> {
        let start = self.output.len();
        let bytes = [compressed, &[0, 0, 0xff, 0xff]].concat();
        let mut bits = Bits { bytes: &bytes, at: 0 };
        let mut ends_empty = false;
        while bits.left() > 0 {
            let last = bits.bit()? == 1;
            let before = self.output.len();
            let kind = bits.number(2)?;
            match kind {
                0 => self.stored(&mut bits)?,
                1 => self.compressed(&mut bits, &fixed_lengths(), &Code::new(&[5; 30]))?,
                2 => {
                    let (lengths, distances) = dynamic(&mut bits)?;
                    self.compressed(&mut bits, &Code::new(&lengths), &Code::new(&distances))?;
                }
                _ => return None,
            }
            if last {
                bits.align();
            }
            ends_empty = kind == 0 && self.output.len() == before;
        }
        ends_empty.then(|| self.output[start..].to_vec())
    }

    fn stored(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        bits.align();
        let length = bits.number(16)?;
        if bits.number(16)? != length ^ 0xffff {
            return None;
        }
        for _ in 0..length {
            self.output.push(bits.number(8)? as u8);
        }
        Some(())
    }

    fn compressed(&mut self, bits: &mut Bits<'_>, literals: &Code, distances: &Code) -> Option<()> {
        loop {
            match literals.symbol(bits)? {
                256 => return Some(()),
                literal @ 0..256 => self.output.push(literal as u8),
                symbol => {
                    let index = symbol - 257;
                    let extra = if index < 8 || index == 28 { 0 } else { (index - 4) / 4 };
                    let length = *LENGTH_BASE.get(index)? + bits.number(extra)?;
                    let index = distances.symbol(bits)?;
                    let extra = if index < 4 { 0 } else { (index - 2) / 2 };
                    let distance = *DISTANCE_BASE.get(index)? + bits.number(extra)?;
                    self.distance_max = self.distance_max.max(distance);
                    let from = self.output.len().checked_sub(distance)?;
                    for at in from..from + length {
                        self.output.push(self.output[at]);
                    }
                }
            }
        }
    }
}

fn fixed_lengths() -> Code {
    let lengths: Vec<usize> = (0..288)
        .map(|symbol| match symbol {
            0..144 => 8,
            144..256 => 9,
            256..280 => 7,
            _ => 8,
        })
        .collect();
    Code::new(&lengths)
}

/// RFC 1951 section 3.2.7.
fn dynamic(bits: &mut Bits<'_>) -> Option<(Vec<usize>, Vec<usize>)> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let literals = bits.number(5)? + 257;
    let distances = bits.number(5)? + 1;
    let codes = bits.number(4)? + 4;
    let mut lengths = [0; 19];
    for &place in &ORDER[..codes] {
        lengths[place] = bits.number(3)?;
    }
    let code = Code::new(&lengths);
    let mut all = Vec::new();
    while all.len() < literals + distances {
        let (value, times) = match code.symbol(bits)? {
            16 => (*all.last()?, 3 + bits.number(2)?),
            17 => (0, 3 + bits.number(3)?),
            18 => (0, 11 + bits.number(7)?),
            length => (length, 1),
        };
        all.extend(std::iter::repeat_n(value, times));
    }
    let rest = all.split_off(literals);
    (rest.len() == distances).then_some((all, rest))
}
