//! The log: lines on standard error, for people or as JSON.

use std::io;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line of text for each event
    Text,
    /// A JSON object for each event
    Json,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Nothing
    Off,
    /// Errors that stop the server
    Error,
    /// Also warnings about missing resources, such as file descriptors
    Warn,
    /// Also start and shutdown, and rejected connections (at most one line per second)
    Info,
    /// Also every connection
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

/// Starts the log of this process. A second call has no effect.
pub(crate) fn begin(format: Format, level: Level) {
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(level.filter())
        .with_target(false);
    let _ = match format {
        Format::Text => log.with_ansi(false).finish().try_init(),
        Format::Json => log.json().flatten_event(true).finish().try_init(),
    };
}
