//! The circumstances of a run: version, machine and date.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The `meta` of the report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Meta {
    /// Version of windlass.
    pub version: String,
    /// The commit, with `-dirty` if the work tree differs but for the records, or `unknown` outside
    /// a repository. Several, separated by commas, if a record was continued at others.
    pub git: String,
    /// Version of Linux.
    pub kernel: String,
    /// The model of the processor.
    pub cpu: String,
    /// The number of processors that may be used.
    pub cores: usize,
    /// Time of the run's end in UTC, as RFC 3339.
    pub date: String,
    /// Fewer cases and shorter slices.
    pub quick: bool,
    /// Memory of the machine in MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// Whether the processor says that it is virtual.
    #[serde(default)]
    pub is_virtual: bool,
    /// The compiler.
    #[serde(default)]
    pub rustc: String,
    /// Time of the run in minutes, with its builds. That of a resumed run is the sum.
    #[serde(default)]
    pub minutes: f64,
    /// The price of an empty system call in nanoseconds, getppid(2), if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_call_ns: Option<f64>,
    /// The lines that the tests run, in percent, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage_percent: Option<f64>,
    /// Time of a release build of the reactor with its dependencies, from nothing, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_seconds: Option<f64>,
}

impl Meta {
    /// Returns the facts of this machine and this moment.
    #[must_use]
    pub fn now(quick: bool) -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let cpuinfo = read("/proc/cpuinfo");
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            git: commit().unwrap_or_else(|| "unknown".to_owned()),
            kernel: read("/proc/sys/kernel/osrelease"),
            cpu: cpu_model(&cpuinfo),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            date: rfc3339(seconds),
            quick,
            memory_mib: memory_mib(&read("/proc/meminfo")),
            is_virtual: cpuinfo.contains(" hypervisor"),
            rustc: said_by("rustc", &["--version"]).unwrap_or_else(|| "unknown".to_owned()),
            ..Self::default()
        }
    }

    /// Notes that a commit has measured, too.
    pub fn add_commit(&mut self, commit: &str) {
        if !self.git.split(", ").any(|known| known == commit) {
            self.git += &format!(", {commit}");
        }
    }

    /// Returns the machine in one line.
    #[must_use]
    pub fn machine(&self) -> String {
        let kind = if self.is_virtual { " (virtual)" } else { "" };
        format!("{} × {}{kind}, Linux {}", self.cores, self.cpu, self.kernel)
    }

    /// Returns the date without the time.
    #[must_use]
    pub fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }
}

fn memory_mib(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// Returns the commit that runs. A record changes while it is written, which changes no figure.
fn commit() -> Option<String> {
    let commit = said_by("git", &["describe", "--always", "--abbrev=12"])?;
    let changed =
        ["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)bench/record"];
    Some(commit + said_by("git", &changed).map_or("", |_| "-dirty"))
}

/// Returns the output of a program, if it succeeds and prints something.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned())
}

fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Converts seconds since 1970 to a date by the civil-from-days algorithm (Hinnant,
/// "chrono-compatible low-level date algorithms"). Its years begin in March, so the leap day is the
/// last of a year.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_each_commit_once() {
        let mut meta = Meta { git: "a".to_owned(), ..Meta::default() };
        for commit in ["a", "b", "a", "b-dirty"] {
            meta.add_commit(commit);
        }
        assert_eq!(meta.git, "a, b, b-dirty");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn memory_is_that_of_the_machine() {
        assert_eq!(memory_mib("MemTotal:       24627968 kB\nMemFree: 1 kB\n"), 24_050);
        assert_eq!(memory_mib(""), 0);
    }

    #[test]
    fn the_model_stands_after_the_colon() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A B C\n"), "A B C");
        assert_eq!(cpu_model(""), std::env::consts::ARCH);
    }
}
