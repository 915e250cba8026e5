//! The upgrade of a client that asks for no extension and no subprotocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use windlass_bench_driver::server::{Mode, PUBLISHER, Settings};

use super::conn_table::{Connection, Role};
use super::frames::Output;

/// RFC 6455 section 4.2.2.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The response up to the value of its last header.
const RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: ";

/// Appends the response to a complete request and sets the connection's role. Returns the length of
/// the request; 0 if it is not complete yet.
pub fn respond(
    connection: &mut Connection,
    settings: &Settings,
    received: &[u8],
    output: &mut Output,
) -> usize {
    let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else { return 0 };
    let head = String::from_utf8_lossy(&received[..end]);
    let mut lines = head.lines();
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let mut fields = lines.filter_map(|line| line.split_once(": "));
    let key = fields
        .find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key"))
        .map_or("", |(_, key)| key);
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut accept = [0; 28];
    STANDARD.encode_slice(digest, &mut accept).expect("twenty bytes are twenty-eight characters");
    output.put(RESPONSE);
    output.put(&accept);
    output.put(b"\r\n\r\n");
    connection.role = match settings.mode {
        Mode::Echo if settings.work.is_zero() => Role::Echo,
        Mode::Echo => Role::Work,
        Mode::Broadcast if path == PUBLISHER => Role::Publisher,
        Mode::Broadcast => Role::Receiver,
    };
    end + 4
}
