//! The processors on which the measured programs run.

/// Where the measured programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// On any processor.
    Nowhere,
    /// On this processor.
    To(usize),
}

impl Pin {
    /// Returns the last allowed processor: interrupts and the shell more often use the first.
    pub(crate) fn default_cpu() -> Self {
        allowed_cpus().last().map_or(Self::Nowhere, |&cpu| Self::To(cpu))
    }
}

impl std::str::FromStr for Pin {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self::Nowhere) } else { text.parse().map(Self::To) }
    }
}

/// Returns the processors that this process may use.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    parse_cpu_list(list)
}

/// Parses a list in the kernel's format, such as `0-2,5`.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_list("\t0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("3"), [3]);
        assert!(parse_cpu_list("").is_empty());
    }

    #[test]
    fn a_processor_is_a_number_or_none() {
        assert_eq!("none".parse(), Ok(Pin::Nowhere));
        assert_eq!("3".parse(), Ok(Pin::To(3)));
        assert!("x".parse::<Pin>().is_err());
    }
}
