//! Opcodes and close codes (RFC 6455 sections 5.2 and 7.4).

use std::fmt;

/// The opcode of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpCode {
    /// A data frame.
    Data(Data),
    /// A control frame.
    Control(Control),
}

/// The opcode of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// 0: continues a message.
    Continue,
    /// 1: text.
    Text,
    /// 2: binary.
    Binary,
    /// 3 to 7.
    Reserved(u8),
}

/// The opcode of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// 8: closes the connection.
    Close,
    /// 9: asks for a pong.
    Ping,
    /// 10: answers a ping, or is unsolicited.
    Pong,
    /// 11 to 15.
    Reserved(u8),
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continue => f.write_str("CONTINUE"),
            Self::Text => f.write_str("TEXT"),
            Self::Binary => f.write_str("BINARY"),
            Self::Reserved(code) => write!(f, "RESERVED_DATA_{code}"),
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Close => f.write_str("CLOSE"),
            Self::Ping => f.write_str("PING"),
            Self::Pong => f.write_str("PONG"),
            Self::Reserved(code) => write!(f, "RESERVED_CONTROL_{code}"),
        }
    }
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) => data.fmt(f),
            Self::Control(control) => control.fmt(f),
        }
    }
}

impl From<OpCode> for u8 {
    fn from(code: OpCode) -> Self {
        match code {
            OpCode::Data(Data::Continue) => 0,
            OpCode::Data(Data::Text) => 1,
            OpCode::Data(Data::Binary) => 2,
            OpCode::Control(Control::Close) => 8,
            OpCode::Control(Control::Ping) => 9,
            OpCode::Control(Control::Pong) => 10,
            OpCode::Data(Data::Reserved(code)) | OpCode::Control(Control::Reserved(code)) => code,
        }
    }
}

impl From<u8> for OpCode {
    /// # Panics
    /// If the number is above 15.
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Data(Data::Continue),
            1 => Self::Data(Data::Text),
            2 => Self::Data(Data::Binary),
            3..=7 => Self::Data(Data::Reserved(code)),
            8 => Self::Control(Control::Close),
            9 => Self::Control(Control::Ping),
            10 => Self::Control(Control::Pong),
            11..=15 => Self::Control(Control::Reserved(code)),
            16.. => panic!("an opcode has four bits, and {code} has more"),
        }
    }
}

/// The code of a Close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// 1000: the purpose of the connection is fulfilled.
    Normal,
    /// 1001: the server shuts down, or the user has left the page.
    Away,
    /// 1002: the peer has violated the protocol.
    Protocol,
    /// 1003: this kind of data is not accepted.
    Unsupported,
    /// 1005: the Close frame had no code. Never sent.
    Status,
    /// 1006: there was no Close frame. Never sent.
    Abnormal,
    /// 1007: the data of a message do not fit its type.
    Invalid,
    /// 1008: the peer has violated a policy.
    Policy,
    /// 1009: the message is too long.
    Size,
    /// 1010: the server did not negotiate an extension that the client needs.
    Extension,
    /// 1011: the server has failed.
    Error,
    /// 1012: the server restarts.
    Restart,
    /// 1013: the server is overloaded.
    Again,
    /// 1015: the handshake of TLS has failed. Never sent.
    #[doc(hidden)]
    Tls,
    /// 1016 to 2999: for later versions of the protocol.
    #[doc(hidden)]
    Reserved(u16),
    /// 3000 to 3999: registered by libraries and frameworks.
    #[doc(hidden)]
    Iana(u16),
    /// 4000 to 4999: for applications.
    #[doc(hidden)]
    Library(u16),
    /// Any other number.
    #[doc(hidden)]
    Bad(u16),
}

/// The codes that have names.
const NAMED: [(CloseCode, u16); 14] = [
    (CloseCode::Normal, 1000),
    (CloseCode::Away, 1001),
    (CloseCode::Protocol, 1002),
    (CloseCode::Unsupported, 1003),
    (CloseCode::Status, 1005),
    (CloseCode::Abnormal, 1006),
    (CloseCode::Invalid, 1007),
    (CloseCode::Policy, 1008),
    (CloseCode::Size, 1009),
    (CloseCode::Extension, 1010),
    (CloseCode::Error, 1011),
    (CloseCode::Restart, 1012),
    (CloseCode::Again, 1013),
    (CloseCode::Tls, 1015),
];

impl CloseCode {
    /// Whether a Close frame may have this code. 1014, which came later, has no name here, and
    /// counts as not allowed.
    pub fn is_allowed(self) -> bool {
        !matches!(
            self,
            Self::Bad(_) | Self::Reserved(_) | Self::Status | Self::Abnormal | Self::Tls
        )
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        u16::from(*self).fmt(f)
    }
}

impl From<CloseCode> for u16 {
    fn from(code: CloseCode) -> Self {
        match code {
            CloseCode::Reserved(number)
            | CloseCode::Iana(number)
            | CloseCode::Library(number)
            | CloseCode::Bad(number) => number,
            named => NAMED.iter().find(|(code, _)| *code == named).map_or(0, |(_, number)| *number),
        }
    }
}

impl<'t> From<&'t CloseCode> for u16 {
    fn from(code: &'t CloseCode) -> Self {
        (*code).into()
    }
}

impl From<u16> for CloseCode {
    fn from(number: u16) -> Self {
        match NAMED.iter().find(|(_, named)| *named == number) {
            Some((code, _)) => *code,
            None => match number {
                1016..=2999 => Self::Reserved(number),
                3000..=3999 => Self::Iana(number),
                4000..=4999 => Self::Library(number),
                _ => Self::Bad(number),
            },
        }
    }
}
