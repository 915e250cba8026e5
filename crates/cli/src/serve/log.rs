//! The log: lines on standard error, for people or as JSON.

use std::io;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line of text for each event
    Text,
    /// A JSON object for each event
    Json,
}

/// How much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    Off,
    /// What stops the server
    Error,
    /// What it cannot do as asked, for want of something
    Warn,
    /// Its start and its end, and what it refuses: a line a second at most
    Info,
    /// Every connection too
    Debug,
}

impl Level {
    const fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Begins the log of this process. A second call changes nothing.
pub(crate) fn begin(format: Format, level: Level) {
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(level.filter())
        .with_target(false);
    let _ = match format {
        Format::Text => log.with_ansi(false).try_init(),
        Format::Json => log.json().flatten_event(true).try_init(),
    };
}
