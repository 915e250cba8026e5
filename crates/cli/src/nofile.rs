//! How many connections the limit of open files allows.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many connections there may be if nobody says.
const CONNECTIONS_DEFAULT: usize = 10_000;

/// Descriptors that are no connections: the standard ones, the listener, the reactor's own, and some to spare.
const OTHER_FILES: usize = 16;

/// The number of connections to allow. Raises this process's soft limit of open files as far as that takes and the hard limit
/// allows.
///
/// What was asked for is kept even if the limit is lower: accepting then pauses when it is reached.
pub(crate) fn connections_max(asked: Option<u32>) -> anyhow::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let connections = choose(asked.map(|asked| asked as usize), hard);
    let wanted = (connections + OTHER_FILES).min(hard) as u64;
    if limit.current.is_some_and(|soft| soft < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open files")?;
    }
    Ok(connections)
}

fn choose(asked: Option<usize>, files_max: usize) -> usize {
    let allowed = files_max.saturating_sub(OTHER_FILES).max(1);
    asked.unwrap_or_else(|| CONNECTIONS_DEFAULT.min(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_fits_under_the_limit_of_open_files() {
        assert_eq!(choose(None, usize::MAX), CONNECTIONS_DEFAULT);
        assert_eq!(choose(None, 1024), 1024 - OTHER_FILES);
        assert_eq!(choose(None, 3), 1);
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        assert_eq!(choose(Some(20_000), 1024), 20_000);
        assert_eq!(choose(Some(1), usize::MAX), 1);
    }
}
