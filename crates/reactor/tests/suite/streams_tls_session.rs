//! A session for tests of streams with TLS: it frames bytes as TLS does, without cryptography.
//!
//! A record is its kind, the length of its content in two bytes, the content with each byte
//! inverted, and a last byte. The handshake is one `HELLO` from each side, the client's first.

use std::time::{Duration, Instant};

use windlass::stream::{TlsDecrypted, TlsFailure, TlsPhase, TlsSession, TlsSessionFactory};

pub(crate) const HELLO: u8 = 1;
pub(crate) const DATA: u8 = 2;
pub(crate) const CLOSE: u8 = 3;
pub(crate) const ALERT: u8 = 4;
/// The session panics when it receives it.
pub(crate) const PANIC: u8 = 5;

const LAST: u8 = 0x7e;
const OVERHEAD: usize = 4;

pub(crate) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut record = vec![kind];
    record.extend_from_slice(&u16::try_from(content.len()).unwrap().to_be_bytes());
    record.extend(content.iter().map(|byte| !byte));
    record.push(LAST);
    record
}

/// Takes whole records apart.
pub(crate) fn contents(mut records: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut contents = Vec::new();
    while let Some(len) = whole(records) {
        assert_eq!(records[len - 1], LAST);
        contents.push((records[0], records[3..len - 1].iter().map(|byte| !byte).collect()));
        records = &records[len..];
    }
    assert!(records.is_empty(), "a partial record was sent");
    contents
}

/// The data of records that must be in order, with the number of other records before them.
pub(crate) fn data(records: &[u8]) -> Vec<u8> {
    let of = |(kind, content): (u8, Vec<u8>)| if kind == DATA { content } else { Vec::new() };
    contents(records).into_iter().flat_map(of).collect()
}

fn announced(bytes: &[u8]) -> Option<usize> {
    Some(OVERHEAD + usize::from(u16::from_be_bytes([*bytes.get(1)?, *bytes.get(2)?])))
}

fn whole(bytes: &[u8]) -> Option<usize> {
    announced(bytes).filter(|len| *len <= bytes.len())
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sessions {
    Server,
    Client,
    /// A server that panics when it encrypts.
    Panics,
    /// A server whose handshake takes two milliseconds.
    Slow,
    /// A server that breaks the contract.
    Lies(Lie),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Lie {
    /// It has taken more than there is.
    Consumed,
    /// It has more plaintext than it has taken.
    Plaintext,
    /// The handshake ends with plaintext.
    EarlyPlaintext,
    /// It needs more bytes than a record has.
    Missing,
    /// It takes nothing.
    TakesNothing,
    FailsToEncrypt,
    /// Keeps all that it takes.
    Holds,
    /// It holds all the memory that there is.
    Memory,
    /// The first call returns this phase.
    Begins(TlsPhase),
}

/// A session that breaks the contract, from the first input on.
struct Liar {
    lie: Lie,
    held: usize,
}

impl TlsSession for Liar {
    fn decrypt(&mut self, input: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
        let len = input.len();
        self.held += len;
        if let Lie::Begins(phase) = self.lie {
            return TlsDecrypted::new(len, 0, phase);
        }
        if len == 0 {
            return TlsDecrypted::new(0, 0, TlsPhase::Handshake);
        }
        let open = |consumed, plaintext| TlsDecrypted::new(consumed, plaintext, TlsPhase::Open);
        match self.lie {
            Lie::Consumed => open(usize::MAX, 0),
            Lie::Plaintext => open(len, usize::MAX),
            Lie::EarlyPlaintext => open(len, len),
            Lie::Missing => open(0, 0).missing(usize::MAX),
            Lie::TakesNothing => open(0, 0).missing(0),
            Lie::FailsToEncrypt => open(len, 0),
            Lie::Holds | Lie::Memory | Lie::Begins(_) => {
                TlsDecrypted::new(len, 0, TlsPhase::Handshake)
            }
        }
    }

    fn encrypt(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), TlsFailure> {
        match self.lie {
            Lie::FailsToEncrypt => Err(TlsFailure::KeyExhausted),
            _ => Ok(()),
        }
    }

    fn close_notify(&mut self, _: &mut Vec<u8>) {}

    fn memory(&self) -> usize {
        match self.lie {
            Lie::Holds => self.held,
            Lie::Memory => usize::MAX,
            _ => 0,
        }
    }
}

impl TlsSessionFactory for Sessions {
    fn new_session(&self) -> Box<dyn TlsSession> {
        if let Self::Lies(lie) = *self {
            return Box::new(Liar { lie, held: 0 });
        }
        Box::new(Session { sessions: *self, phase: TlsPhase::Handshake, has_begun: false })
    }
}

struct Session {
    sessions: Sessions,
    phase: TlsPhase,
    has_begun: bool,
}

impl TlsSession for Session {
    fn decrypt(&mut self, input: &mut [u8], records: &mut Vec<u8>) -> TlsDecrypted {
        if !core::mem::replace(&mut self.has_begun, true) {
            assert!(input.is_empty(), "the first call has no input");
            if matches!(self.sessions, Sessions::Client) {
                records.extend(record(HELLO, b""));
            }
        }
        let (mut consumed, mut plaintext) = (0, 0);
        while let Some(len) = whole(&input[consumed..]) {
            let (kind, content) = (input[consumed], consumed + 3..consumed + len - 1);
            consumed += len;
            match (kind, self.phase) {
                _ if input[consumed - 1] != LAST => {
                    records.extend(record(ALERT, b"bad"));
                    self.phase = TlsPhase::Failed(TlsFailure::DecryptionFailed);
                    break;
                }
                (PANIC, _) => panic!("the session panics"),
                (HELLO, TlsPhase::Handshake) => {
                    let (begin, slow) = (Instant::now(), Duration::from_millis(2));
                    while matches!(self.sessions, Sessions::Slow) && begin.elapsed() < slow {}
                    if !matches!(self.sessions, Sessions::Client) {
                        records.extend(record(HELLO, b""));
                    }
                    self.phase = TlsPhase::Open;
                    break;
                }
                (DATA, TlsPhase::Open) => {
                    let count = content.len();
                    input.copy_within(content, plaintext);
                    input[plaintext..plaintext + count].iter_mut().for_each(|byte| *byte = !*byte);
                    plaintext += count;
                }
                (CLOSE, TlsPhase::Open) => {
                    self.phase = TlsPhase::PeerClosed;
                    break;
                }
                _ => {
                    records.extend(record(ALERT, b"unexpected"));
                    self.phase = TlsPhase::Failed(TlsFailure::ProtocolViolation);
                    break;
                }
            }
        }
        let rest = input.len() - consumed;
        let missing = announced(&input[consumed..]).map_or(1, |len| len.saturating_sub(rest));
        TlsDecrypted::new(consumed, plaintext, self.phase).missing(missing)
    }

    fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
        assert!(!matches!(self.sessions, Sessions::Panics), "the session panics");
        assert!(
            self.phase != TlsPhase::Handshake,
            "nothing is encrypted before the handshake ends"
        );
        assert!((1..=17 << 10).contains(&plaintext.len()), "{}", plaintext.len());
        for part in plaintext.chunks(16 << 10) {
            records.extend(record(DATA, part));
        }
        Ok(())
    }

    fn close_notify(&mut self, records: &mut Vec<u8>) {
        records.extend(record(CLOSE, b""));
    }

    fn alpn(&self) -> Option<&[u8]> {
        Some(b"test")
    }
}
