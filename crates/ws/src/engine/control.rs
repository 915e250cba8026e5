//! Ping, Pong and Close (RFC 6455 section 5.5).

use super::scratch::Output;
use super::{
    CLOSE_RECEIVED, CLOSE_SENT, Engine, Outbox,
    event::Found,
    pass::{Lane, fail},
};
use crate::protocol::{
    close::{Close, CloseCode},
    frame::{Opcode, write_plain},
    mask,
    violation::Violation,
};

/// Where the payload of a complete control frame lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Control {
    /// In the input. It is masked if there is a key.
    Input { opcode: Opcode, src: usize, len: usize, key: Option<[u8; 4]> },
    /// In the scratch, unmasked.
    Held { opcode: Opcode, len: usize },
}

impl Control {
    /// Sends the answer and returns the event.
    pub(super) fn tell<'l>(
        self,
        lane: &'l mut Lane<'_>,
        engine: &mut Engine,
        out: &mut Output,
    ) -> Found<'l> {
        let outbox = Outbox { engine, out };
        match self {
            Self::Held { opcode, len } => tell(opcode, outbox, None, &lane.held.control[..len]),
            Self::Input { opcode, src, len, key: None } => {
                tell(opcode, outbox, None, &lane.input[src..src + len])
            }
            // The answer's header has two bytes.
            Self::Input { opcode, src, len, key: Some(key) } if outbox.out.has_room(src, 2) => {
                let start = outbox.out.make_room(src, 2);
                let (head, payload) = mask::unmask_down(lane.input, start, 2, src - 2, 2, len, key);
                tell(opcode, outbox, Some((head, start + 2 + len)), payload)
            }
            Self::Input { opcode, src, len, key: Some(key) } => {
                let payload = &mut lane.input[src..src + len];
                mask::mask(payload, key);
                tell(opcode, outbox, None, payload)
            }
        }
    }
}

/// The place where an answer can be built in the input: the bytes right before the payload, and the
/// end of the payload.
type Room<'a> = Option<(&'a mut [u8], usize)>;

fn tell<'l>(
    opcode: Opcode,
    mut outbox: Outbox<'_>,
    room: Room<'_>,
    payload: &'l [u8],
) -> Found<'l> {
    match opcode {
        Opcode::Ping => {
            answer(&mut outbox, Opcode::Pong, room, payload);
            Found::Ping(payload)
        }
        Opcode::Pong => Found::Pong(payload),
        _ => match parse_close(payload) {
            Ok(close) => {
                answer(&mut outbox, Opcode::Close, room, payload);
                outbox.engine.flags |= CLOSE_SENT | CLOSE_RECEIVED;
                outbox.engine.let_go(outbox.out);
                Found::Close(close)
            }
            Err(violation) => Found::Violation(fail(outbox.engine, outbox.out, violation)),
        },
    }
}

/// Sends `payload` back, unless this side has already sent its Close frame.
fn answer(outbox: &mut Outbox<'_>, opcode: Opcode, room: Room<'_>, payload: &[u8]) {
    if outbox.engine.is_closing() {
        return;
    }
    match room {
        Some((head, end)) => {
            write_plain(head, opcode, payload.len());
            outbox.out.end = end;
        }
        None => outbox.frame(opcode, false, payload),
    }
}

/// Parses the payload of a Close frame (RFC 6455 sections 5.5.1, 7.4).
fn parse_close(payload: &[u8]) -> Result<Close<'_>, Violation> {
    match payload {
        [] => Ok(Close { code: None, reason: "" }),
        [_] => Err(Violation::ShortClose),
        [high, low, reason @ ..] => {
            let code = CloseCode::new(u16::from_be_bytes([*high, *low]));
            if !code.is_sendable() {
                return Err(Violation::BadCloseCode);
            }
            match core::str::from_utf8(reason) {
                Ok(reason) => Ok(Close { code: Some(code), reason }),
                Err(_) => Err(Violation::InvalidUtf8),
            }
        }
    }
}
