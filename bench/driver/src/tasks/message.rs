//! The messages of the suite `latency`.
#![allow(unsafe_code, reason = "setsockopt(2), also for sockets of C++")]

use std::io;
use std::os::fd::RawFd;

/// Length of a message.
pub const MESSAGE_BYTES: usize = 64;
/// Length of a receive buffer. It is longer than a message, so a read that is not full tells that
/// the socket is empty.
const ROOM: usize = 1024;

/// The buffers of a connection's end: one for the message to send, one to receive.
#[derive(Debug)]
pub struct Message {
    sent: [u8; MESSAGE_BYTES],
    room: [u8; ROOM],
    /// Length of the part of the receive buffer that is used.
    room_bytes: usize,
}

impl Default for Message {
    fn default() -> Self {
        Self { sent: [0; MESSAGE_BYTES], room: [0; ROOM], room_bytes: ROOM }
    }
}

impl Message {
    /// Writes the number into the message, and returns it.
    #[inline]
    pub fn numbered(&mut self, number: u64) -> &[u8] {
        self.sent[..8].copy_from_slice(&number.to_le_bytes());
        &self.sent
    }

    /// Makes the receive buffer as long as a message.
    pub fn read_exactly(&mut self) {
        self.room_bytes = MESSAGE_BYTES;
    }

    /// The receive buffer.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.room[..self.room_bytes]
    }

    /// Returns the number of a message of this length in the receive buffer; `None` for the end of
    /// the stream.
    ///
    /// # Errors
    ///
    /// If the length is that of no message. Each is sent by one call, and is received whole.
    #[inline]
    pub fn received(&self, length: usize) -> io::Result<Option<u64>> {
        Self::number(&self.room[..length])
    }

    /// The same for other buffers.
    ///
    /// # Errors
    ///
    /// As for [`received`](Self::received).
    #[inline]
    pub fn number(bytes: &[u8]) -> io::Result<Option<u64>> {
        match bytes.len() {
            0 => Ok(None),
            MESSAGE_BYTES => {
                let number: [u8; 8] = bytes[..8].try_into().expect("eight bytes");
                Ok(Some(u64::from_le_bytes(number)))
            }
            _ => Err(io::Error::other("a message came in parts")),
        }
    }
}

/// Lets a close of the socket reset the connection, so that no port stays in use for a minute after
/// it.
///
/// # Errors
///
/// That of setsockopt(2).
pub fn forget_on_close(socket: RawFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option's value is readable for its length (socket(7)).
    let result = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_number_and_parts_are_errors() {
        let mut message = Message::default();
        let sent = message.numbered(7).to_vec();
        message.room()[..sent.len()].copy_from_slice(&sent);
        assert_eq!(message.received(sent.len()).unwrap(), Some(7));
        assert_eq!(message.received(0).unwrap(), None);
        assert!(message.received(63).is_err());
        message.read_exactly();
        assert_eq!(message.room().len(), sent.len());
    }
}
