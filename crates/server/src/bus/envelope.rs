//! What a publication is on the bus: who published it, its number, and its payload.

use core::fmt;

/// The first byte of every envelope.
const VERSION: u8 = 1;

const FLAG_TEXT: u8 = 1;
const FLAG_TOPIC: u8 = 1 << 1;

/// Length of an envelope without topic and payload.
const HEAD_LEN: usize = 28;

/// A publication on the bus.
///
/// | bytes | field |
/// |---|---|
/// | 1 | version: 1 |
/// | 1 | flags: 1 for text, 2 if there is a topic |
/// | 8 | node |
/// | 2 | worker |
/// | 8 | epoch |
/// | 8 | sequence |
/// | 4, and so many | length of the topic and the topic, if there is one |
/// | the rest | payload |
///
/// Numbers are big-endian.
///
/// ```
/// use windlass_server::bus::Envelope;
///
/// let envelope = Envelope {
///     node: 1,
///     worker: 0,
///     epoch: 7,
///     sequence: 3,
///     topic: None,
///     is_text: true,
///     payload: b"hi",
/// };
/// let mut bytes = Vec::new();
/// envelope.encode(&mut bytes);
/// assert_eq!(Envelope::decode(&bytes), Ok(envelope));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The node that has published it.
    pub node: u64,
    /// The worker of that node, which is its publisher.
    pub worker: u16,
    /// The epoch of the publisher. A later one is larger.
    pub epoch: u64,
    /// The number of the publication in the epoch and the topic, from 0 on.
    pub sequence: u64,
    /// The topic, if the subject has only its hash.
    pub topic: Option<&'a str>,
    /// Whether the payload is text, and not binary.
    pub is_text: bool,
    /// The payload. Text is UTF-8.
    pub payload: &'a [u8],
}

/// Bytes that are no envelope of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeError;

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no envelope of a windlass cluster")
    }
}

impl std::error::Error for EnvelopeError {}

impl<'a> Envelope<'a> {
    /// The length in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        HEAD_LEN + self.topic.map_or(0, |topic| 4 + topic.len()) + self.payload.len()
    }

    /// Appends the bytes.
    ///
    /// # Panics
    /// If the topic is longer than 4 GiB.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        let text = if self.is_text { FLAG_TEXT } else { 0 };
        let topic = if self.topic.is_some() { FLAG_TOPIC } else { 0 };
        out.extend([VERSION, text | topic]);
        out.extend(self.node.to_be_bytes());
        out.extend(self.worker.to_be_bytes());
        out.extend(self.epoch.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        if let Some(topic) = self.topic {
            let len = u32::try_from(topic.len()).expect("a topic has less than 4 GiB");
            out.extend(len.to_be_bytes());
            out.extend(topic.as_bytes());
        }
        out.extend(self.payload);
    }

    /// Reads an envelope.
    ///
    /// # Errors
    /// - [`EnvelopeError`] if the bytes are not what [`encode`](Self::encode) writes: the version
    ///   or a flag is unknown, it is too short, or a text is not UTF-8.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, EnvelopeError> {
        let mut rest = bytes;
        let [version, flags] = take(&mut rest)?;
        if version != VERSION || flags & !(FLAG_TEXT | FLAG_TOPIC) != 0 {
            return Err(EnvelopeError);
        }
        let node = u64::from_be_bytes(take(&mut rest)?);
        let worker = u16::from_be_bytes(take(&mut rest)?);
        let epoch = u64::from_be_bytes(take(&mut rest)?);
        let sequence = u64::from_be_bytes(take(&mut rest)?);
        let mut topic = None;
        if flags & FLAG_TOPIC != 0 {
            let len = u32::from_be_bytes(take(&mut rest)?) as usize;
            let (text, payload) = rest.split_at_checked(len).ok_or(EnvelopeError)?;
            topic = Some(core::str::from_utf8(text).map_err(|_| EnvelopeError)?);
            rest = payload;
        }
        let is_text = flags & FLAG_TEXT != 0;
        if is_text && core::str::from_utf8(rest).is_err() {
            return Err(EnvelopeError);
        }
        Ok(Self { node, worker, epoch, sequence, topic, is_text, payload: rest })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], EnvelopeError> {
    let (first, others) = rest.split_first_chunk().ok_or(EnvelopeError)?;
    *rest = others;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_stays() {
        let envelope = Envelope {
            node: 0x0102_0304_0506_0708,
            worker: 9,
            epoch: 10,
            sequence: 11,
            topic: Some("t"),
            is_text: true,
            payload: b"p",
        };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        let mut expected = vec![1, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0, 9];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 1, b't', b'p']);
        assert_eq!((bytes.len(), bytes), (envelope.encoded_len(), expected));
    }

    #[test]
    fn other_bytes_are_none() {
        let envelope = Envelope {
            node: 1,
            worker: 0,
            epoch: 1,
            sequence: 0,
            topic: Some("topic"),
            is_text: false,
            payload: b"",
        };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        assert_eq!(Envelope::decode(&bytes), Ok(envelope));
        for len in 0..bytes.len() {
            assert_eq!(Envelope::decode(&bytes[..len]), Err(EnvelopeError), "{len}");
        }
        for (place, byte) in [(0, 2), (1, 4), (HEAD_LEN, 255), (HEAD_LEN + 4, 255)] {
            let mut broken = bytes.clone();
            broken[place] = byte;
            assert_eq!(Envelope::decode(&broken), Err(EnvelopeError), "{place}");
        }
        bytes[1] |= FLAG_TEXT;
        bytes.push(255);
        assert_eq!(Envelope::decode(&bytes), Err(EnvelopeError), "text is UTF-8");
    }

    proptest! {
        #[test]
        fn each_envelope_comes_back(
            (node, worker, epoch, sequence) in any::<(u64, u16, u64, u64)>(),
            topic in any::<Option<String>>(),
            (is_text, text) in any::<(bool, String)>(),
            binary in any::<Vec<u8>>(),
        ) {
            let payload = if is_text { text.as_bytes() } else { &binary };
            let topic = topic.as_deref();
            let envelope = Envelope { node, worker, epoch, sequence, topic, is_text, payload };
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), envelope.encoded_len());
            prop_assert_eq!(Envelope::decode(&bytes), Ok(envelope));
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
            if let Ok(envelope) = Envelope::decode(&bytes) {
                let mut again = Vec::new();
                envelope.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
