//! The log: lines on standard error, for people or as JSON.

use std::io;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

use super::{
    args::ServeArgs,
    reload::{Apply, Part},
};

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

/// Starts the log of this process. A second call has no effect. Returns the part whose level may
/// change.
pub(crate) fn begin(format: Format, level: Level) -> Part {
    let (filter, handle) = reload::Layer::new(level.filter());
    let log = tracing_subscriber::registry().with(filter);
    // A line that cannot be written is lost. To report that on standard error would panic.
    let lines = fmt::layer().with_writer(io::stderr).with_target(false).log_internal_errors(false);
    let _ = match format {
        Format::Text => log.with(lines.with_ansi(false)).try_init(),
        Format::Json => log.with(lines.json().flatten_event(true)).try_init(),
    };
    let prepare = move |args: &ServeArgs| -> anyhow::Result<Apply> {
        let (handle, level) = (handle.clone(), args.log_level.filter());
        // It fails only if the log is gone.
        Ok(Box::new(move || _ = handle.reload(level)))
    };
    Part { options: &["log-level"], prepare: Box::new(prepare) }
}
