//! Bytes that a client might send: valid, almost valid and invalid frames.

use windlass_ws::{FrameHeader, HEADER_LEN_MAX, Opcode};

use super::input::Input;

/// The longest stream, in bytes. One input then takes about a millisecond.
const LEN_MAX: usize = 1 << 20;

/// Bytes that a client sends after the handshake. The first byte of the input selects whether the
/// rest is used literally.
pub(crate) fn client_bytes(input: &mut Input<'_>) -> Vec<u8> {
    if input.byte() % 4 == 0 {
        return input.rest().to_vec();
    }
    let mut out = Vec::new();
    while !input.is_empty() && out.len() < LEN_MAX {
        push_frame(input, &mut out);
    }
    out
}

fn push_frame(input: &mut Input<'_>, out: &mut Vec<u8>) {
    let what = input.byte();
    let opcode = match what & 7 {
        0 => Opcode::Text,
        1 | 2 => Opcode::Continuation,
        3 => Opcode::Ping,
        4 => Opcode::Pong,
        5 => Opcode::Close,
        _ => Opcode::Binary,
    };
    let payload = match opcode {
        Opcode::Close => close_payload(input),
        _ => input.payload(),
    };
    let key = [what, what ^ 0x55, 0, !what];
    let header = FrameHeader {
        fin: what & 8 == 0,
        compressed: false,
        opcode,
        key: Some(key),
        len: payload.len() as u64,
    };
    let mut head = [0; HEADER_LEN_MAX];
    let len = header.encode(&mut head);
    let start = out.len();
    out.extend_from_slice(&head[..len]);
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    // One frame in eight is changed afterwards. This gives frames that no encoder produces.
    if what >> 5 == 7 {
        damage(input, &mut out[start..], len);
    }
}

/// A code, usually one that can be sent, and a reason; or any payload.
fn close_payload(input: &mut Input<'_>) -> Vec<u8> {
    const CODES: [u16; 16] = [
        1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1011, 1014, 1015, 1016, 2999, 3000, 4999,
        5000,
    ];
    let kind = input.byte();
    match kind % 8 {
        0 => Vec::new(),
        1 => input.payload(),
        _ => {
            let code = CODES[usize::from(kind >> 4)];
            let mut payload = code.to_be_bytes().to_vec();
            payload.extend(input.payload());
            payload.truncate(125);
            payload
        }
    }
}

/// Changes one byte of the header.
fn damage(input: &mut Input<'_>, frame: &mut [u8], header_len: usize) {
    let (place, change) = (usize::from(input.byte()), input.byte());
    frame[place % header_len] ^= change;
}
