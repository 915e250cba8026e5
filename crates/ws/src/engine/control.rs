//! Ping, Pong and Close (RFC 6455 section 5.5).

use super::scratch::Output;
use super::{
    CLOSE_RECEIVED, CLOSE_SENT, Engine, Outbox,
    event::EventContent,
    pass::{PassInput, fail},
};
use crate::protocol::{
    close::{Close, CloseCode},
    frame::{Opcode, write_plain},
    mask,
    violation::Violation,
};

/// Where the payload of a complete control frame lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum ControlFrame {
    /// In the input. It is masked if there is a key.
    Input { opcode: Opcode, src: usize, len: usize, key: Option<[u8; 4]> },
    /// In the scratch, unmasked.
    Assembled { opcode: Opcode, len: usize },
}

impl ControlFrame {
    /// Sends the answer and returns the event.
    pub(super) fn answer<'l>(
        self,
        input: &'l mut PassInput<'_>,
        engine: &mut Engine,
        out: &mut Output,
    ) -> EventContent<'l> {
        let outbox = Outbox { engine, out };
        match self {
            Self::Assembled { opcode, len } => {
                control_event(opcode, outbox, None, &input.buffers.control[..len])
            }
            Self::Input { opcode, src, len, key: None } => {
                control_event(opcode, outbox, None, &input.bytes[src..src + len])
            }
            // The answer's header has two bytes.
            Self::Input { opcode, src, len, key: Some(key) } if outbox.out.has_room(src, 2) => {
                let start = outbox.out.make_room(src, 2);
                let (head, payload) =
                    mask::unmask_down(input.bytes, start, 2, src - 2, 2, len, key);
                control_event(opcode, outbox, Some((head, start + 2 + len)), payload)
            }
            Self::Input { opcode, src, len, key: Some(key) } => {
                let payload = &mut input.bytes[src..src + len];
                mask::mask(payload, key);
                control_event(opcode, outbox, None, payload)
            }
        }
    }
}

/// The place where an answer can be built in the input: the bytes right before the payload, and the
/// end of the payload.
type ReplySpace<'a> = Option<(&'a mut [u8], usize)>;

fn control_event<'l>(
    opcode: Opcode,
    mut outbox: Outbox<'_>,
    room: ReplySpace<'_>,
    payload: &'l [u8],
) -> EventContent<'l> {
    match opcode {
        Opcode::Ping => {
            send_answer(&mut outbox, Opcode::Pong, room, payload);
            EventContent::Ping(payload)
        }
        Opcode::Pong => EventContent::Pong(payload),
        _ => match parse_close(payload) {
            Ok(close) => {
                send_answer(&mut outbox, Opcode::Close, room, payload);
                outbox.engine.flags |= CLOSE_SENT | CLOSE_RECEIVED;
                outbox.engine.discard_partial(outbox.out);
                EventContent::Close(close)
            }
            Err(violation) => EventContent::Violation(fail(outbox.engine, outbox.out, violation)),
        },
    }
}

/// Sends `payload` back, unless this side has already sent its Close frame.
fn send_answer(outbox: &mut Outbox<'_>, opcode: Opcode, room: ReplySpace<'_>, payload: &[u8]) {
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
