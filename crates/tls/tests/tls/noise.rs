//! Sessions that are fed with random bytes, and with changed and cut records of a real client. They
//! fail, and never panic. No socket is used, so that many cases take little time.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use rustls::ClientConnection;
use windlass::stream::{TlsPhase, TlsSession, TlsSessionFactory};

use crate::bed::{config, localhost};

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % end
    }
}

/// What a stream does with its session: it keeps what was not taken.
struct Fed {
    session: Box<dyn TlsSession>,
    kept: Vec<u8>,
    phase: TlsPhase,
    sent: Vec<u8>,
    plaintext: Vec<u8>,
}

impl Fed {
    fn new(factory: &impl TlsSessionFactory) -> Self {
        let mut session = factory.new_session();
        let mut sent = Vec::new();
        let phase = session.decrypt(&mut [], &mut sent).phase;
        Self { session, kept: Vec::new(), phase, sent, plaintext: Vec::new() }
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, TlsPhase::Failed(_) | TlsPhase::PeerClosed)
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        while !self.is_over() {
            let len = self.kept.len();
            let done = self.session.decrypt(&mut self.kept, &mut self.sent);
            assert!(done.plaintext <= done.consumed && done.consumed <= len, "{done:?}");
            assert!(done.missing >= 1 && self.session.memory() <= 80 << 10, "{done:?}");
            self.plaintext.extend_from_slice(&self.kept[..done.plaintext]);
            self.kept.drain(..done.consumed);
            self.phase = done.phase;
            if done.consumed == 0 {
                // The longest partial record.
                assert!(self.kept.len() <= (18 << 10) + 5, "{}", self.kept.len());
                return;
            }
        }
    }
}

/// Changes the bytes in one of several ways, or leaves them.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, random.below(256) as u8),
        3 => drop(bytes.drain(..at)),
        4 => bytes.extend_from_within(at..),
        5 => {
            let record = [20 + random.below(6) as u8, 3, 3, 0, random.below(4) as u8, 1, 1, 1, 1];
            let len = 5 + usize::from(record[4]);
            bytes.splice(0..0, record[..len].iter().copied());
        }
        // Unchanged.
        _ => {}
    }
}

#[test]
fn changed_and_cut_records_never_panic() {
    let acceptor = localhost().build().unwrap();
    let mut random = Random(7);
    let (mut opened, mut failed) = (0, 0);
    for case in 0..400 {
        let versions: &[_] = match case % 2 {
            0 => &[&rustls::version::TLS12],
            _ => &[&rustls::version::TLS13],
        };
        let settings = Arc::new(config(None, versions));
        let mut client = ClientConnection::new(settings, "localhost".try_into().unwrap()).unwrap();
        let mut server = Fed::new(&acceptor);
        for round in 0..8 {
            let mut flight = Vec::new();
            if !client.is_handshaking() {
                client.writer().write_all(&vec![9; random.below(20_000)]).unwrap();
                if random.below(3) == 0 {
                    client.refresh_traffic_keys().ok();
                }
            }
            while client.wants_write() {
                client.write_tls(&mut flight).unwrap();
            }
            if random.below(6) == 0 {
                change(&mut flight, &mut random);
            }
            let step = 1 + random.below(5_000);
            flight.chunks(step).for_each(|part| server.feed(part));
            if server.phase == TlsPhase::Open && round % 2 == 0 {
                server.session.encrypt(b"answer", &mut server.sent).unwrap();
            }
            let sent = core::mem::take(&mut server.sent);
            let _ = client.read_tls(&mut &sent[..]);
            let is_bad = client.process_new_packets().is_err();
            let _ = client.reader().read_to_end(&mut Vec::new());
            if is_bad || server.is_over() {
                break;
            }
        }
        opened += usize::from(!server.plaintext.is_empty());
        failed += usize::from(server.is_over());
        assert!(server.plaintext.iter().all(|byte| *byte == 9), "changed data was delivered");
    }
    assert!(opened > 50 && failed > 50, "{opened} opened, {failed} failed");
}

#[test]
fn random_bytes_never_panic() {
    let acceptor = localhost().build().unwrap();
    let mut random = Random(1);
    for _ in 0..2_000 {
        let mut server = Fed::new(&acceptor);
        for _ in 0..random.below(6) {
            let mut bytes: Vec<u8> =
                (0..random.below(300)).map(|_| random.below(256) as u8).collect();
            // Most begin as a record does, so that they are looked into.
            if random.below(4) > 0 {
                let typ = 20 + random.below(5) as u8;
                bytes.splice(0..0, [typ, 3, 3, 0, random.below(256) as u8]);
            }
            server.feed(&bytes);
        }
    }
}
