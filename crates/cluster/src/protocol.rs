//! What a server of NATS says, read from bytes.
//!
//! 1. A line has at most [`LINE_MAX`] bytes, and a message [`MESSAGE_MAX`]. A server that claims
//!    more is told no more: its connection ends.
//! 2. A claim allocates nothing. The buffer grows with the bytes that arrive.
//! 3. No byte is searched twice for the end of its line, and a message is read once it is whole. So
//!    the size of the pieces that arrive does not matter.
//! 4. Others run after each read, whatever the server sends.
//! 5. Texts of the server leave this module as they are. Who shows them makes them printable.

use std::io;

use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    task,
};

/// The longest line. The INFO of a server names each server of its cluster, in some 50 bytes.
const LINE_MAX: usize = 256 << 10;

/// The longest message. A server of NATS keeps 64 MiB for a client (`max_pending`), unless it is
/// told otherwise, and so sends no longer ones.
const MESSAGE_MAX: usize = 64 << 20;

/// How much of the first word of a wrong line is shown.
const WORD_SHOWN_MAX: usize = 16;

/// How much is read at a time, at most.
const READ_LEN: usize = 64 << 10;

/// The longest payload that a server takes if its INFO has none: the default of nats-server.
const PAYLOAD_MAX_DEFAULT: usize = 1 << 20;

/// What a server tells about itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Info {
    pub(crate) server_name: String,
    pub(crate) version: String,
    pub(crate) port: u16,
    #[serde(default = "payload_max_default")]
    pub(crate) max_payload: usize,
    pub(crate) tls_required: bool,
    pub(crate) tls_available: bool,
    pub(crate) nonce: String,
    /// It will shut down soon.
    pub(crate) ldm: bool,
}

fn payload_max_default() -> usize {
    PAYLOAD_MAX_DEFAULT
}

/// One operation of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Operation<'b> {
    Info(Box<Info>),
    Message { subject: &'b str, payload: &'b [u8] },
    Ping,
    Pong,
    Ok,
    Error(&'b str),
}

/// Why a connection cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Line,
    Message,
    Other(String),
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Line => write!(f, "it sends a line of more than {LINE_MAX} bytes"),
            Self::Message => write!(f, "it sends a message of more than {MESSAGE_MAX} bytes"),
            Self::Other(line) => {
                write!(f, "it sends a line that is not of NATS, which begins with {line}")
            }
        }
    }
}

/// What has arrived and was not read yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    /// The bytes from `start` on that have no end of a line.
    searched: usize,
    /// Fewer bytes from `start` on are no whole operation.
    needed: usize,
}

impl Input {
    /// Takes the next operation. `None` if it has not arrived as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<Operation<'_>>, Malformed> {
        let bytes = &self.buffer[self.start..];
        if bytes.len() < self.needed {
            return Ok(None);
        }
        match parse(bytes, self.searched)? {
            Parsed::Whole(operation, len) => {
                self.start += len;
                (self.searched, self.needed) = (0, 0);
                Ok(Some(operation))
            }
            Parsed::Line { searched } => {
                (self.searched, self.needed) = (searched, searched + 1);
                Ok(None)
            }
            Parsed::Message { needed } => {
                self.needed = needed;
                Ok(None)
            }
        }
    }

    /// Reads more. Returns the number of bytes, which is 0 at the end. Others run before it
    /// returns.
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.buffer.drain(..self.start);
        self.start = 0;
        // Long messages are rare, and their room is not kept.
        let room = self.buffer.len() + READ_LEN;
        if self.buffer.capacity() > 4 * room {
            self.buffer.shrink_to(room);
        }
        self.buffer.reserve(READ_LEN);
        let len = from.take(READ_LEN as u64).read_buf(&mut self.buffer).await?;
        task::yield_now().await;
        Ok(len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }
}

/// What the beginning of the input is.
#[derive(Debug, PartialEq, Eq)]
enum Parsed<'b> {
    /// An operation of so many bytes.
    Whole(Operation<'b>, usize),
    /// A line without its end, of so many bytes.
    Line { searched: usize },
    /// A part of a message that is whole with so many bytes.
    Message { needed: usize },
}

/// Reads the first operation. The first `searched` bytes have no end of a line.
fn parse(bytes: &[u8], searched: usize) -> Result<Parsed<'_>, Malformed> {
    let unsearched = &bytes[searched..bytes.len().min(LINE_MAX + 1)];
    let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() {
            0..=LINE_MAX => Ok(Parsed::Line { searched: bytes.len() }),
            _ => Err(Malformed::Line),
        };
    };
    let end = searched + end;
    let (line, len) = (&bytes[..end], end + 1);
    let other = || {
        // The rest may be what this side has sent, with its credentials.
        let word = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
        let begin = &word[..word.len().min(WORD_SHOWN_MAX)];
        Malformed::Other(String::from_utf8_lossy(begin).into_owned())
    };
    let line = core::str::from_utf8(line).map_err(|_| other())?;
    let line = line.strip_suffix('\r').ok_or_else(other)?;
    let (name, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let operation = match name {
        "MSG" => return message(rest, &bytes[len..], len).ok_or_else(other)?,
        "INFO" => Operation::Info(serde_json::from_str(rest).map_err(|_| other())?),
        "PING" => Operation::Ping,
        "PONG" => Operation::Pong,
        "+OK" => Operation::Ok,
        "-ERR" => Operation::Error(rest.trim_matches([' ', '\''])),
        _ => return Err(other()),
    };
    Ok(Parsed::Whole(operation, len))
}

/// Reads a message from its arguments and what follows its line. `None` if that is none.
fn message<'b>(
    arguments: &'b str,
    rest: &'b [u8],
    line_len: usize,
) -> Option<Result<Parsed<'b>, Malformed>> {
    let mut arguments = arguments.split_ascii_whitespace();
    let (subject, _sid, third) = (arguments.next()?, arguments.next()?, arguments.next()?);
    // The subject for an answer may come before the length.
    let length = arguments.next().unwrap_or(third);
    if arguments.next().is_some() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let Some(length) = length.parse().ok().filter(|length| *length <= MESSAGE_MAX) else {
        return Some(Err(Malformed::Message));
    };
    let needed = line_len + length + 2;
    let Some(body) = rest.get(..length + 2) else {
        return Some(Ok(Parsed::Message { needed }));
    };
    let (payload, end) = body.split_at(length);
    let whole = Parsed::Whole(Operation::Message { subject, payload }, needed);
    (end == b"\r\n").then_some(Ok(whole))
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn parse_all(bytes: &[u8]) -> String {
        let mut input = Input { buffer: bytes.to_vec(), ..Input::default() };
        let mut found = Vec::new();
        loop {
            match input.next() {
                Ok(Some(operation)) => found.push(format!("{operation:?}")),
                Ok(None) => {
                    return format!("{} +{}", found.join(" "), input.buffer.len() - input.start);
                }
                Err(error) => return format!("{} {error:?}", found.join(" ")),
            }
        }
    }

    #[test]
    fn operations_are_read() {
        let message = r#"Message { subject: "a.b", payload: [120, 121] }"#;
        for (text, expected) in [
            ("PING\r\nPONG\r\n+OK\r\n", "Ping Pong Ok +0"),
            ("-ERR 'Stale Connection'\r\n", r#"Error("Stale Connection") +0"#),
            (
                "MSG a.b 1 2\r\nxy\r\nMSG a.b 1 inbox 2\r\nxy\r\nPI",
                &format!("{message} {message} +2"),
            ),
            ("MSG a.b  1  0\r\n\r\n", r#"Message { subject: "a.b", payload: [] } +0"#),
            ("MSG a 1 2\r\nx", " +12"),
            ("MSG a 1 2\r\nxy\n\n", r#" Other("MSG")"#),
            ("MSG a 1\r\n", r#" Other("MSG")"#),
            ("MSG a 1 b 2 3\r\n", r#" Other("MSG")"#),
            ("MSG a 1 -2\r\n", r#" Other("MSG")"#),
            ("HMSG a 1 0 0\r\n", r#" Other("HMSG")"#),
            ("INFO {\r\n", r#" Other("INFO")"#),
            ("PING\n", r#" Other("PING")"#),
            ("CONNECT {\"auth_token\":\"secret\"}\r\n", r#" Other("CONNECT")"#),
            ("", " +0"),
        ] {
            assert_eq!(parse_all(text.as_bytes()), expected, "{text}");
        }
        let long = format!("{}\r\n", "é".repeat(100));
        assert_eq!(parse_all(long.as_bytes()), format!(" Other({:?})", "é".repeat(8)));
    }

    #[test]
    fn an_info_may_have_more_and_less() {
        let text = r#"INFO {"server_name":"n","go":1,"max_payload":7,"nonce":"x","cluster":{}}"#;
        let bytes = format!("{text}\r\n");
        let info = |bytes: &str| match parse(bytes.as_bytes(), 0) {
            Ok(Parsed::Whole(Operation::Info(info), _)) => *info,
            other => panic!("{other:?}"),
        };
        let expected = Info {
            server_name: "n".to_owned(),
            max_payload: 7,
            nonce: "x".to_owned(),
            ..Info::default()
        };
        assert_eq!(info(&bytes), expected);
        // Without a maximum, publications are possible all the same.
        assert_eq!(info("INFO {}\r\n").max_payload, PAYLOAD_MAX_DEFAULT);
    }

    #[test]
    fn lines_and_messages_are_bounded() {
        let line = |len: usize| format!("-ERR {}", "x".repeat(len - 5));
        let parse = |text: &str| parse(text.as_bytes(), 0).map(|parsed| format!("{parsed:?}"));
        let part = format!("Line {{ searched: {LINE_MAX} }}");
        assert_eq!(parse(&line(LINE_MAX)), Ok(part));
        assert_eq!(parse(&line(LINE_MAX + 1)), Err(Malformed::Line));
        assert!(parse(&format!("{}\r\n", line(LINE_MAX - 1))).unwrap().starts_with("Whole(Error("));
        for (length, expected) in [
            (MESSAGE_MAX.to_string(), Ok(format!("Message {{ needed: {} }}", MESSAGE_MAX + 20))),
            ((MESSAGE_MAX + 1).to_string(), Err(Malformed::Message)),
            (u64::MAX.to_string(), Err(Malformed::Message)),
            ("9".repeat(1000), Err(Malformed::Message)),
        ] {
            assert_eq!(parse(&format!("MSG a 1 {length}\r\n")), expected);
        }
    }

    /// What was read before is changed behind its back: it does not look again.
    #[test]
    fn what_has_arrived_is_read_once() {
        let mut input = Input::default();
        for byte in *b"PONG\r" {
            input.buffer.push(byte);
            assert_eq!(input.next(), Ok(None));
            let last = input.buffer.len() - 1;
            input.buffer[last] = b'\n';
        }
        input.buffer = b"PONG\r\n".to_vec();
        assert_eq!(input.next(), Ok(Some(Operation::Pong)));
        input.buffer.extend(b"MSG a 1 4\r\n");
        let head = input.buffer.len();
        assert_eq!(input.next(), Ok(None));
        input.buffer[head - 1] = b'?';
        for byte in *b"abcd\r" {
            input.buffer.push(byte);
            assert_eq!(input.next(), Ok(None));
        }
        input.buffer[head - 1] = b'\n';
        input.buffer.push(b'\n');
        assert_eq!(input.next(), Ok(Some(Operation::Message { subject: "a", payload: b"abcd" })));
        assert_eq!((input.is_empty(), input.needed, input.searched), (true, 0, 0));
    }

    /// Reads once, from a server that always has more.
    fn fill(input: &mut Input) -> usize {
        let mut bytes = tokio::io::repeat(b'x');
        let mut fill = pin!(input.fill(&mut bytes));
        let mut context = Context::from_waker(Waker::noop());
        assert!(fill.as_mut().poll(&mut context).is_pending(), "others run first");
        let Poll::Ready(len) = fill.poll(&mut context) else { panic!() };
        len.unwrap()
    }

    #[test]
    fn others_run_after_each_read() {
        let mut input = Input { buffer: Vec::with_capacity(30 * READ_LEN), ..Input::default() };
        input.buffer.resize(8 * READ_LEN, b'x');
        assert_eq!(fill(&mut input), READ_LEN, "however much room there is");
        assert_eq!(fill(&mut input), READ_LEN);
    }

    /// Behind a long message there is always a part of the next one.
    #[test]
    fn the_room_of_a_long_message_is_given_back() {
        let mut input = Input::default();
        while input.buffer.len() < MESSAGE_MAX {
            fill(&mut input);
        }
        assert!(input.buffer.capacity() < 3 * MESSAGE_MAX);
        input.start = input.buffer.len() - 1;
        fill(&mut input);
        assert_eq!(input.buffer.len(), READ_LEN + 1);
        assert!(input.buffer.capacity() <= 4 * READ_LEN, "{}", input.buffer.capacity());
    }
}
