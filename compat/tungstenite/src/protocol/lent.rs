//! Messages that are lent: not in tungstenite.

use super::{Message, frame::Utf8Bytes};
use crate::shared::Block;

/// A message where it was received, without a copy. Not in tungstenite.
#[derive(Debug)]
pub enum LentMessage<'a> {
    /// A text message.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
    /// A ping, a pong or a Close frame.
    Control(Message),
}

/// The form in which a call returns a message.
pub(super) trait Receive: From<Message> {
    /// Whether data stay where they are.
    const LENDS: bool;

    fn text(text: &str, block: &mut Block) -> Self;

    fn binary(bytes: &[u8], block: &mut Block) -> Self;
}

impl Receive for Message {
    const LENDS: bool = false;

    #[inline]
    fn text(text: &str, block: &mut Block) -> Self {
        Self::Text(Utf8Bytes::from_checked(block.copy(text.as_bytes())))
    }

    #[inline]
    fn binary(bytes: &[u8], block: &mut Block) -> Self {
        Self::Binary(block.copy(bytes))
    }
}

/// The control frame, if it is one.
impl Receive for Option<Message> {
    const LENDS: bool = true;

    #[inline]
    fn text(_: &str, _: &mut Block) -> Self {
        None
    }

    #[inline]
    fn binary(_: &[u8], _: &mut Block) -> Self {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};

    use bytes::Bytes;

    use super::*;
    use crate::{
        Error,
        protocol::{Role, WebSocket},
    };

    /// Has a piece of its bytes for each read.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (piece, rest) = self.0.split_at(self.1.min(self.0.len()));
            buffer[..piece.len()].copy_from_slice(piece);
            self.0 = rest;
            Ok(piece.len())
        }
    }

    impl Write for Pieces<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0], payload].concat()
    }

    /// For Miri: the bytes of a text are those that were checked, wherever they lie.
    #[test]
    fn text_is_what_was_received() {
        let bytes =
            [frame(0x81, "ä€".as_bytes()), frame(0x01, b"\xe2"), frame(0x80, b"\x82\xac")].concat();
        for piece in [1, 5, bytes.len()] {
            let mut socket = WebSocket::from_raw_socket(Pieces(&bytes, piece), Role::Server, None);
            for expected in ["ä€", "€"] {
                match socket.recv().unwrap() {
                    LentMessage::Text(text) => assert_eq!(text, expected),
                    other => panic!("{other:?}"),
                }
            }
            let mut socket = WebSocket::from_raw_socket(Pieces(&bytes, piece), Role::Server, None);
            for expected in ["ä€", "€"] {
                let Message::Text(text) = socket.read().unwrap() else { panic!("it is text") };
                assert_eq!(text.clone().as_str(), expected);
                assert_eq!(Utf8Bytes::try_from(Bytes::from(text)).unwrap(), expected);
            }
        }
    }

    #[test]
    fn nothing_is_lent_after_an_error() {
        let bytes = [frame(0x81, b"text"), frame(0x81, b"\xff\xff\xff\xff")].concat();
        for piece in [1, bytes.len()] {
            let mut socket = WebSocket::from_raw_socket(Pieces(&bytes, piece), Role::Server, None);
            assert!(matches!(socket.recv(), Ok(LentMessage::Text("text"))));
            assert!(matches!(socket.recv(), Err(Error::Utf8(_))));
            assert!(matches!(socket.__parts_mut().1.__lent(None), LentMessage::Binary([])));
        }
    }
}
