//! Long messages that arrive in many reads.

use std::io::{self, ErrorKind, Read, Write};

use windlass_tungstenite::{
    Error, Message, WebSocket,
    error::ProtocolError,
    protocol::{LentMessage, Role},
};

use crate::stream::{Script, Step, frame};

/// A payload whose bytes tell their place.
fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 5 + at / 256) as u8).collect()
}

/// A client's frame with such a payload, masked.
fn masked(len: usize) -> Vec<u8> {
    let mut bytes = frame(true, 0x82, &payload(len));
    let start = bytes.len() - len;
    bytes[start - 4..start].copy_from_slice(&[1, 20, 0, 0xfe]);
    windlass_ws::mask(&mut bytes[start..], [1, 20, 0, 0xfe]);
    bytes
}

/// Reads of pieces of this length. After each of them, a read fails in this way, if any.
fn script(bytes: &[u8], piece: usize, fails: Option<ErrorKind>) -> Script {
    Script::new(bytes.chunks(piece).flat_map(|bytes| {
        [Some(Step::Bytes(bytes.to_vec())), fails.map(Step::Fails)].into_iter().flatten()
    }))
}

/// A server's end with such reads.
fn socket(bytes: &[u8], piece: usize, fails: Option<ErrorKind>) -> WebSocket<Script> {
    WebSocket::from_raw_socket(script(bytes, piece, fails), Role::Server, None)
}

/// Whether the call may be repeated.
fn is_passing(error: &Error) -> bool {
    let kinds = [ErrorKind::WouldBlock, ErrorKind::Interrupted];
    matches!(error, Error::Io(error) if kinds.contains(&error.kind()))
}

fn holds_buffer(socket: &mut WebSocket<Script>) -> bool {
    // Without the stream, whose script is long.
    format!("{:?}", socket.__parts_mut().1).contains("Input { holds_buffer: true")
}

/// The next message, read or lent.
fn next(socket: &mut WebSocket<Script>, lends: bool) -> Result<Vec<u8>, Error> {
    loop {
        let result = match lends {
            false => socket.read().map(|message| message.into_data().to_vec()),
            true => socket.recv().map(|message| match message {
                LentMessage::Binary(bytes) => bytes.to_vec(),
                other => panic!("{other:?}"),
            }),
        };
        match result {
            Err(error) if is_passing(&error) => {
                assert!(!holds_buffer(socket), "a socket that waits holds no buffer");
            }
            other => return other,
        }
    }
}

#[test]
fn a_long_message_is_the_same_however_it_arrives() {
    let lens = [126, 20, 16_384, 1000, 65_535, 5000];
    let bytes: Vec<u8> = lens.iter().flat_map(|len| masked(*len)).collect();
    for piece in [7, 8, 9, 1460, 20_000, bytes.len()] {
        let fails = [None, Some(ErrorKind::WouldBlock), Some(ErrorKind::Interrupted)];
        for (fails, lends) in fails.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let mut socket = socket(&bytes, piece, fails);
            for len in lens {
                let received = next(&mut socket, lends).unwrap();
                assert!(received == payload(len), "{len} bytes in pieces of {piece}");
            }
            assert!(next(&mut socket, lends).is_err(), "the stream ends");
            assert!(!holds_buffer(&mut socket));
        }
    }
}

#[test]
fn a_message_that_goes_on_in_the_next_buffer_is_the_same() {
    let bytes = masked(5000).repeat(40);
    let mut socket = socket(&bytes, bytes.len(), None);
    for number in 0..40 {
        assert!(socket.read().unwrap().into_data() == payload(5000), "message {number}");
    }
}

#[test]
fn the_rest_of_a_message_is_read_by_the_same_call() {
    let bytes = masked(10_000);
    let mut socket = socket(&bytes, 1460, None);
    assert!(matches!(socket.read(), Ok(Message::Binary(data)) if data == payload(10_000)));
}

#[test]
fn the_end_of_the_stream_within_a_message_is_an_error() {
    let bytes = masked(10_000);
    for fails in [None, Some(ErrorKind::WouldBlock)] {
        let mut socket = socket(&bytes[..9000], 1460, fails);
        let error = next(&mut socket, false).unwrap_err();
        let expected = ProtocolError::ResetWithoutClosingHandshake;
        assert!(matches!(error, Error::Protocol(error) if error == expected));
        assert!(!holds_buffer(&mut socket));
        assert!(matches!(socket.read(), Err(Error::AlreadyClosed)));
    }
}

#[test]
fn a_text_is_refused_as_soon_as_it_is_not_utf8() {
    let bytes = frame(true, 0x81, &[0xff; 10_000]);
    let mut socket = socket(&bytes, 1460, Some(ErrorKind::WouldBlock));
    assert!(matches!(socket.read(), Err(Error::Utf8(_))));
}

/// After its first read, it says that it has read more than there is room for.
struct Liar {
    script: Script,
    is_first: bool,
}

impl Read for Liar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.script.read(buffer)?;
        let lies = !std::mem::take(&mut self.is_first) && count > 0;
        Ok(if lies { buffer.len() + 1 } else { count })
    }
}

impl Write for Liar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.script.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.script.flush()
    }
}

#[test]
fn a_stream_that_lies_about_the_rest_of_a_message_spoils_that_alone() {
    let liar = Liar { script: script(&masked(10_000), 1460, None), is_first: true };
    let mut socket = WebSocket::from_raw_socket(liar, Role::Server, None);
    let message = socket.read().unwrap().into_data();
    assert_eq!((message.len(), &message[..2912]), (10_000, &payload(10_000)[..2912]));
    // What comes next is whatever the buffer held.
    let _ = socket.read();
}
