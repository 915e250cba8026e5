//! What a server of NATS says, read from bytes.
//!
//! 1. A line has at most [`LINE_MAX`] bytes, and a message [`MESSAGE_MAX`]. A server that claims
//!    more is told no more: its connection ends.
//! 2. A claim allocates nothing. The buffer grows with the bytes that arrive.
//! 3. Texts of the server leave this module as they are. Who shows them makes them printable.

use std::io;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest line. The INFO of a server names each server of its cluster, in some 50 bytes.
const LINE_MAX: usize = 256 << 10;

/// The longest message. A server of NATS keeps 64 MiB for a client (`max_pending`), unless it is
/// told otherwise, and so sends no longer ones.
const MESSAGE_MAX: usize = 64 << 20;

/// How much is read at a time, at least.
const READ_LEN: usize = 64 << 10;

/// What a server tells about itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Info {
    pub(crate) server_name: String,
    pub(crate) version: String,
    pub(crate) port: u16,
    pub(crate) max_payload: usize,
    pub(crate) tls_required: bool,
    pub(crate) nonce: String,
    /// It will shut down soon.
    pub(crate) ldm: bool,
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
            Self::Other(line) => write!(f, "it sends a line that is not of NATS: {line}"),
        }
    }
}

/// What has arrived and was not read yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
}

impl Input {
    /// Takes the next operation. `None` if it has not arrived as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<Operation<'_>>, Malformed> {
        let Some((operation, len)) = parse(&self.buffer[self.start..])? else { return Ok(None) };
        self.start += len;
        Ok(Some(operation))
    }

    /// Whether `next` has an operation.
    pub(crate) fn has_operation(&self) -> Result<bool, Malformed> {
        parse(&self.buffer[self.start..]).map(|found| found.is_some())
    }

    /// Reads more. Returns the number of bytes, which is 0 at the end.
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            // Long messages are rare, and their room is not kept.
            self.buffer.shrink_to(2 * READ_LEN);
        } else {
            self.buffer.drain(..self.start);
        }
        self.start = 0;
        self.buffer.reserve(READ_LEN);
        from.read_buf(&mut self.buffer).await
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }
}

/// Reads the first operation, and tells its length.
fn parse(bytes: &[u8]) -> Result<Option<(Operation<'_>, usize)>, Malformed> {
    let Some(end) = bytes.iter().take(LINE_MAX + 1).position(|byte| *byte == b'\n') else {
        return if bytes.len() > LINE_MAX { Err(Malformed::Line) } else { Ok(None) };
    };
    let (line, len) = (&bytes[..end], end + 1);
    let other = || {
        // Enough to see what it is.
        let begin = &line[..line.len().min(64)];
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
    Ok(Some((operation, len)))
}

type Parsed<'b> = Result<Option<(Operation<'b>, usize)>, Malformed>;

/// Reads a message from its arguments and what follows its line. `None` if that is none.
fn message<'b>(arguments: &'b str, rest: &'b [u8], line_len: usize) -> Option<Parsed<'b>> {
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
    let Some(body) = rest.get(..length + 2) else { return Some(Ok(None)) };
    let (payload, end) = body.split_at(length);
    let whole = (Operation::Message { subject, payload }, line_len + length + 2);
    (end == b"\r\n").then_some(Ok(Some(whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(bytes: &[u8]) -> String {
        let mut input = Input { buffer: bytes.to_vec(), start: 0 };
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
            ("MSG a 1 2\r\nxy\n\n", r#" Other("MSG a 1 2\r")"#),
            ("MSG a 1\r\n", r#" Other("MSG a 1\r")"#),
            ("MSG a 1 b 2 3\r\n", r#" Other("MSG a 1 b 2 3\r")"#),
            ("MSG a 1 -2\r\n", r#" Other("MSG a 1 -2\r")"#),
            ("HMSG a 1 0 0\r\n", r#" Other("HMSG a 1 0 0\r")"#),
            ("INFO {\r\n", r#" Other("INFO {\r")"#),
            ("PING\n", r#" Other("PING")"#),
            ("", " +0"),
        ] {
            assert_eq!(parse_all(text.as_bytes()), expected, "{text}");
        }
        let long = format!("{}\r\n", "é".repeat(100));
        assert_eq!(parse_all(long.as_bytes()), format!(" Other({:?})", "é".repeat(32)));
    }

    #[test]
    fn an_info_may_have_more_and_less() {
        let text = r#"INFO {"server_name":"n","go":1,"max_payload":7,"nonce":"x","cluster":{}}"#;
        let bytes = format!("{text}\r\n");
        let Ok(Some((Operation::Info(info), _))) = parse(bytes.as_bytes()) else { panic!() };
        let expected = Info {
            server_name: "n".to_owned(),
            max_payload: 7,
            nonce: "x".to_owned(),
            ..Info::default()
        };
        assert_eq!(*info, expected);
    }

    #[test]
    fn lines_and_messages_are_bounded() {
        let line = |len: usize| format!("-ERR {}", "x".repeat(len - 5));
        assert_eq!(parse(line(LINE_MAX).as_bytes()), Ok(None));
        assert_eq!(parse(line(LINE_MAX + 1).as_bytes()), Err(Malformed::Line));
        let whole = format!("{}\r\n", line(LINE_MAX - 1));
        assert!(matches!(parse(whole.as_bytes()), Ok(Some((Operation::Error(_), _)))));
        for (length, expected) in [
            (MESSAGE_MAX.to_string(), Ok(None)),
            ((MESSAGE_MAX + 1).to_string(), Err(Malformed::Message)),
            (u64::MAX.to_string(), Err(Malformed::Message)),
            ("9".repeat(1000), Err(Malformed::Message)),
        ] {
            assert_eq!(parse(format!("MSG a 1 {length}\r\n").as_bytes()), expected);
        }
    }
}
