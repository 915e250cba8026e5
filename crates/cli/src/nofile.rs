//! The number of connections that the limit of open files allows.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Default connection limit.
const CONNECTIONS_DEFAULT: usize = 10_000;

/// Descriptors other than connections: the standard ones, the first worker's, and some spare ones.
const OTHER_FILES: usize = 16;

/// Descriptors of each further worker: its listeners and the reactor's own.
const FILES_PER_WORKER: usize = 8;

/// Returns the number of connections to allow. Raises this process's soft limit of open files as
/// far as necessary and as the hard limit allows.
///
/// An explicitly requested number is kept even if the limit is lower. Accepting then pauses when
/// the limit is reached.
pub(crate) fn connections_max(asked: Option<u32>, workers: usize) -> anyhow::Result<usize> {
    let others = OTHER_FILES + (workers - 1) * FILES_PER_WORKER;
    let limit = getrlimit(Resource::Nofile);
    let hard =
        limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let connections = choose(asked.map(|asked| asked as usize), hard, others);
    let wanted = (connections + others).min(hard) as u64;
    if limit.current.is_some_and(|soft| soft < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open files")?;
    }
    Ok(connections)
}

fn choose(asked: Option<usize>, files_max: usize, others: usize) -> usize {
    let allowed = files_max.saturating_sub(others).max(1);
    asked.unwrap_or_else(|| CONNECTIONS_DEFAULT.min(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_fits_under_the_limit_of_open_files() {
        assert_eq!(choose(None, usize::MAX, OTHER_FILES), CONNECTIONS_DEFAULT);
        assert_eq!(choose(None, 1024, OTHER_FILES), 1024 - OTHER_FILES);
        assert_eq!(choose(None, 3, OTHER_FILES), 1);
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        assert_eq!(choose(Some(20_000), 1024, OTHER_FILES), 20_000);
        assert_eq!(choose(Some(1), usize::MAX, OTHER_FILES), 1);
    }
}
