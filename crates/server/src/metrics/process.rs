//! The figures of the process, by the names that Prometheus' own clients give them.
//!
//! They are read when somebody asks, on the thread that answers. A figure that cannot be read, for
//! instance without `/proc`, is left out.

use core::fmt::Display;
use std::{fs, io::Write as _};

use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// Appends the figures.
pub(crate) fn write_process(out: &mut Vec<u8>) {
    let mut write = |name: &str, kind: &str, help: &str, value: &dyn Display| {
        // Writing to a vector does not fail.
        let _ = write!(
            out,
            "# HELP process_{name} {help}\n# TYPE process_{name} {kind}\nprocess_{name} {value}\n"
        );
    };
    let ticks = clock_ticks_per_second();
    if let Some(figures) = fs::read_to_string("/proc/self/stat").ok().and_then(|s| parse_stat(&s)) {
        let Figures { cpu_ticks, threads, start_ticks, virtual_bytes, resident_pages } = figures;
        let cpu = seconds(cpu_ticks, ticks);
        write("cpu_seconds_total", "counter", "User and system CPU time.", &cpu);
        write("threads", "gauge", "Number of threads.", &threads);
        write("virtual_memory_bytes", "gauge", "Virtual memory.", &virtual_bytes);
        let resident = resident_pages.saturating_mul(page_size() as u64);
        write("resident_memory_bytes", "gauge", "Resident memory.", &resident);
        if let Some(boot) = boot_time() {
            let start = seconds(boot.saturating_mul(ticks).saturating_add(start_ticks), ticks);
            let help = "Start time of the process, in seconds since 1970.";
            write("start_time_seconds", "gauge", help, &start);
        }
    }
    if let Ok(folder) = fs::read_dir("/proc/self/fd") {
        // The folder itself is one of them.
        write("open_fds", "gauge", "Open file descriptors.", &folder.count().saturating_sub(1));
    }
    if let Some(max) = getrlimit(Resource::Nofile).current {
        write("max_fds", "gauge", "Maximum number of open file descriptors.", &max);
    }
}

/// The fields of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

fn parse_stat(text: &str) -> Option<Figures> {
    // The name of the program is in parentheses, and may have spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first one is the third of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Figures {
        cpu_ticks: field(14)? + field(15)?,
        threads: field(20)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
        resident_pages: field(24)?,
    })
}

/// The time of the machine's start, in seconds since 1970.
fn boot_time() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// A number of ticks in seconds, with two digits after the point.
fn seconds(count: u64, ticks: u64) -> String {
    let hundredths = u128::from(count) * 100 / u128::from(ticks.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_fields_are_those_of_the_manual_page() {
        let text = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 5 0 900 4096000 321 9";
        let figures = Figures {
            cpu_ticks: 281,
            threads: 5,
            start_ticks: 900,
            virtual_bytes: 4_096_000,
            resident_pages: 321,
        };
        assert_eq!(parse_stat(text), Some(figures));
        assert_eq!(parse_stat("7 (a) S 1"), None);
        assert_eq!(seconds(281, 100), "2.81");
        assert_eq!(seconds(1, 1000), "0.00");
    }

    #[test]
    fn this_process_has_all_figures() {
        let mut text = Vec::new();
        write_process(&mut text);
        let text = String::from_utf8(text).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("process_{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert!(value("threads") >= 1.0 && value("cpu_seconds_total") >= 0.0);
        assert!(value("resident_memory_bytes") > 100_000.0, "{text}");
        assert!(value("virtual_memory_bytes") > value("resident_memory_bytes"), "{text}");
        assert!((3.0..value("max_fds")).contains(&value("open_fds")), "{text}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }
}
