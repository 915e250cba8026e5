//! The values of a case's parameters.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Level- or edge-triggered interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The handler reads the eventfd to zero.
    Level,
    /// The handler does not read: every write is a new edge.
    Edge,
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Level => "level",
            Self::Edge => "edge",
        })
    }
}

/// The reaction of a writer to a full counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// Blocks in the write.
    Blocking,
    /// Tries again immediately.
    Spin,
    /// Waits in poll(2) until the counter is writable.
    Poll,
}

/// The reason why a loop does not sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Awake {
    /// It stays in a handler, so only the first wake has an effect.
    InHandler,
    /// It takes turn after turn, because its handler wakes it again. Every turn takes the wakes so
    /// far.
    Turning,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Random bytes, in a binary message.
    Binary,
    /// Text with one byte per character.
    Ascii,
    /// Text with two bytes per character.
    TwoByte,
    /// JSON, which compresses like messages of services.
    Json,
}

/// The script of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Script {
    /// One byte per character.
    Ascii,
    /// Mostly one byte per character, sometimes two.
    Latin,
    /// Two bytes per character: Cyrillic and Greek, without spaces.
    Cyrillic,
    /// Three bytes per character.
    Cjk,
    /// Four bytes per character.
    Emoji,
    /// One to four bytes per character.
    Mixed,
}

impl Script {
    /// All scripts.
    pub const ALL: [Self; 6] =
        [Self::Ascii, Self::Latin, Self::Cyrillic, Self::Cjk, Self::Emoji, Self::Mixed];
}

/// The owner of a compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compressor {
    /// The thread. It has no context takeover.
    Shared,
    /// The connection.
    Dedicated,
}

/// The task that echoes the messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EchoedBy {
    /// The task that sends them: both ends of the connection are in one task.
    SameTask,
    /// A task of its own.
    OwnTask,
}
