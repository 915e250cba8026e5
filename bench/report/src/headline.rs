//! The one figure of a case: what windlass costs over what the best other costs.

use crate::stats::Spread;
use crate::{Entry, table_title};

/// Forms of windlass, the one that is compared first.
const OWN: [&str; 6] = [
    "windlass",
    "windlass-task",
    "windlass-websocket",
    "windlass-2-nodes",
    "windlass-node",
    "windlass-flow",
];

/// Hand-written programs, which show what a case costs at least. They are no libraries, so they are
/// compared only where there is no other.
const FLOORS: [&str; 10] = [
    "raw",
    "raw-again",
    "raw-pwait2",
    "floor",
    "floor-again",
    "floor-ring",
    "tokio-echo",
    "memcpy",
    "kernel",
    "rustls",
];

/// Returns whether this is a form of windlass.
#[must_use]
pub fn is_own(name: &str) -> bool {
    name.starts_with("windlass")
}

/// Returns whether this is a hand-written program.
#[must_use]
pub fn is_floor(name: &str) -> bool {
    FLOORS.contains(&name)
}

/// Figures that stand for a case which has no time, the first one that there is.
const UNTIMED: [&str; 10] = [
    "p99_us",
    "latency_p99_us",
    "rss_bytes_per_connection",
    "anonymous_bytes_per_connection",
    "heap_bytes_per_idle_connection",
    "bytes_per_registration",
    "bytes_per_connection",
    "engine_bytes",
    "p999_us",
    "writer_cpu_us_per_s",
];

/// Suites and cases whose rate is given, so that the delays are the result.
const PACED: [&str; 3] = ["fixed-rate", "fairness", "burst_of_work"];

/// Returns the name of the figure that stands for a case: a time, a rate, or bytes.
#[must_use]
pub fn figure(entry: &Entry) -> Option<&str> {
    let metrics = &entry.metrics;
    let names = || metrics.keys().map(String::as_str);
    let is_paced = PACED.contains(&&*entry.suite) || PACED.contains(&&*entry.case);
    let paced = names().find(|name| is_paced && *name == "latency_p99_us");
    let timed = || names().find(|name| is_time(name));
    let rate = || names().find(|name| is_rate(name));
    let untimed = || UNTIMED.iter().find_map(|name| names().find(|present| present == name));
    let counted = || names().find(|name| name.starts_with("user_instructions_per_"));
    let calls = || names().find(|name| name.starts_with("syscalls_per_"));
    paced.or_else(timed).or_else(rate).or_else(untimed).or_else(counted).or_else(calls)
}

/// Returns whether this is the time whose slices an entry has.
fn is_time(name: &str) -> bool {
    name.starts_with("ns_per_") || name == "us_per_start"
}

/// Returns whether this is a count, which has no noise.
fn is_count(name: &str) -> bool {
    name.starts_with("user_instructions_per_")
        || name.starts_with("syscalls_per_")
        || name.split('_').any(|word| word == "bytes")
}

/// Returns whether more is better.
#[must_use]
pub fn is_rate(name: &str) -> bool {
    ["messages_per_s", "deliveries_per_s", "handshakes_per_s", "requests_per_s", "gib_per_s"]
        .contains(&name)
}

/// The entries of one case, with their titles. Its counts are other cases.
#[derive(Debug)]
pub struct CaseOf<'a> {
    /// Suite, case and parameters.
    pub title: String,
    /// The suite.
    pub suite: &'a str,
    /// In the order of the report.
    pub entries: Vec<&'a Entry>,
}

/// Returns the cases of a report in their order.
#[must_use]
pub fn cases(results: &[Entry]) -> Vec<CaseOf<'_>> {
    let mut cases: Vec<CaseOf<'_>> = Vec::new();
    for entry in results {
        let mut title = table_title(entry);
        if entry.params.contains_key("tool") {
            title += " (counts)";
        }
        match cases.iter_mut().find(|case| case.title == title) {
            Some(case) => case.entries.push(entry),
            None => cases.push(CaseOf { title, suite: &entry.suite, entries: vec![entry] }),
        }
    }
    cases
}

/// A comparison of a case.
#[derive(Debug)]
pub struct Headline<'a> {
    /// The name of the figure.
    pub figure: &'a str,
    /// The form of windlass.
    pub own: &'a Entry,
    /// The best other.
    pub other: Option<&'a Entry>,
    /// What windlass costs over what the other costs. Below one, windlass costs less.
    pub ratio: Option<Spread>,
}

/// The bound of a tie, as of all times on shared machines.
pub const TIE: f64 = 0.1;

/// The verdict of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Windlass costs less.
    Ahead,
    /// The difference is too small to tell.
    Tie,
    /// Windlass costs more.
    Behind,
}

impl Headline<'_> {
    /// Returns the verdict: a difference of a tenth, or of an interval that includes one, is a tie.
    /// Counts have no ties.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let ratio = self.ratio?;
        let bound = if is_count(self.figure) { 0.005 } else { TIE };
        Some(if ratio.median > 1.0 + bound && ratio.low > 1.0 {
            Verdict::Behind
        } else if ratio.median < 1.0 / (1.0 + bound) && ratio.high < 1.0 {
            Verdict::Ahead
        } else {
            Verdict::Tie
        })
    }

    /// Returns the comparison in one line, the ratio first.
    #[must_use]
    pub fn line(&self, title: &str) -> String {
        let own = self.own.metrics.get(self.figure).map_or(f64::NAN, |spread| spread.median);
        let figure = format!("{} {}", crate::number(own), self.figure);
        let (Some(ratio), Some(other)) = (self.ratio, self.other) else {
            return format!("{:>28}  {title}  {figure}", "");
        };
        let interval = format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high);
        format!("{interval:>18} of {:<16}  {title}  {figure}", other.implementation)
    }
}

/// Returns what an entry costs over what another one costs in this figure, taken within each
/// repetition if there are the slices of both. Otherwise its interval is from the best to the worst
/// quotient of both intervals, because the repetitions of a percentile vary by more than a factor.
#[must_use]
pub fn cost_ratio(own: &Entry, other: &Entry, figure: &str) -> Option<Spread> {
    if let Some(ratios) = cost_ratios(own, other, figure) {
        return Spread::of(ratios);
    }
    let (own, other) = (own.metrics.get(figure)?, other.metrics.get(figure)?);
    let over = |own: f64, other: f64| cost(figure, own) / cost(figure, other);
    let median = over(own.median, other.median);
    let ends = [over(own.low, other.high), over(own.high, other.low)];
    let (low, high) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
    median.is_finite().then_some(Spread { median, low, high })
}

/// Returns the ratio of each repetition, if there are the slices of both.
#[must_use]
pub fn cost_ratios(own: &Entry, other: &Entry, figure: &str) -> Option<Vec<f64>> {
    let has_samples = is_time(figure) || is_rate(figure);
    if !has_samples || own.samples.is_empty() || own.samples.len() != other.samples.len() {
        return None;
    }
    let both = own.samples.iter().zip(&other.samples);
    let ratio = |(own, other): (&f64, &f64)| cost(figure, *own) / cost(figure, *other);
    Some(both.map(ratio).collect())
}

/// Returns the cost that a figure stands for: that of a rate is its inverse.
fn cost(figure: &str, value: f64) -> f64 {
    if is_rate(figure) { 1.0 / value } else { value }
}

/// Less than the clock cycle of any processor, in nanoseconds.
const CYCLE_NS: f64 = 0.1;

/// Compares the first form of windlass with the best library, or with the hand-written program
/// where there is no other.
#[must_use]
pub fn of<'a>(case: &CaseOf<'a>) -> Option<Headline<'a>> {
    let is_usual = |entry: &&&Entry| matches!(&*entry.backend, "epoll" | "memory");
    let own = OWN.iter().find_map(|name| {
        let mut forms = case.entries.iter().filter(|entry| entry.implementation == *name);
        forms.clone().find(is_usual).or_else(|| forms.next())
    })?;
    let figure = figure(own)?;
    let median = |entry: &Entry| Some(entry.metrics.get(figure)?.median);
    let best = |is_meant: &dyn Fn(&str) -> bool| {
        let meant = case.entries.iter().filter(|entry| is_meant(&entry.implementation));
        let costs = meant.filter_map(|entry| Some((cost(figure, median(entry)?), *entry)));
        // The compiler has left out all work that takes less than a clock cycle.
        let is_done = |cost: f64| !figure.starts_with("ns_per_") || cost >= CYCLE_NS;
        let mut meant: Vec<(f64, &Entry)> = costs.filter(|(cost, _)| is_done(*cost)).collect();
        meant.sort_by(|one, other| one.0.total_cmp(&other.0));
        meant.first().map(|&(_, entry)| entry)
    };
    let other = best(&|name| !is_own(name) && !is_floor(name))
        .or_else(|| best(&|name| is_floor(name) && name != "floor-again" && name != "raw-again"));
    let ratio = other.and_then(|other| cost_ratio(own, other, figure));
    Some(Headline { figure, own, other, ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(implementation: &str, figure: &str, samples: &[f64]) -> Entry {
        let spread = Spread::of(samples.iter().copied()).unwrap();
        Entry {
            suite: "echo".into(),
            case: "messages".into(),
            params: [].into(),
            implementation: implementation.into(),
            backend: "epoll".into(),
            version: "1".into(),
            metrics: [(figure.to_owned(), spread)].into(),
            samples: samples.to_vec(),
        }
    }

    #[test]
    fn the_best_library_is_compared_and_a_rate_is_turned_over() {
        let rate = "messages_per_s";
        let results = [
            entry("floor", rate, &[900.0, 900.0]),
            entry("windlass", rate, &[200.0, 400.0]),
            entry("slow", rate, &[50.0, 50.0]),
            entry("fast", rate, &[100.0, 200.0]),
        ];
        let cases = cases(&results);
        let headline = of(&cases[0]).unwrap();
        assert_eq!(headline.other.unwrap().implementation, "fast");
        assert_eq!(headline.ratio, Some(Spread::exact(0.5)), "within each repetition");
        assert_eq!(headline.verdict(), Some(Verdict::Ahead));
        let line = headline.line(&cases[0].title);
        assert!(line.trim_start().starts_with("0.50 (0.50–0.50) of fast"), "{line}");
    }

    #[test]
    fn percentiles_have_the_interval_of_both() {
        let percentile = |name: &str, median, low, high| Entry {
            metrics: [("latency_p99_us".to_owned(), Spread { median, low, high })].into(),
            samples: Vec::new(),
            ..entry(name, "latency_p99_us", &[1.0])
        };
        let own = percentile("windlass", 40_000.0, 80.0, 50_000.0);
        let results = [own.clone(), percentile("fast", 100.0, 50.0, 40_000.0)];
        let of_cases = cases(&results);
        let headline = of(&of_cases[0]).unwrap();
        let interval = Spread { median: 400.0, low: 0.002, high: 1_000.0 };
        assert_eq!((headline.ratio, headline.verdict()), (Some(interval), Some(Verdict::Tie)));
        let results = [own, percentile("fast", 20.0, 10.0, 40.0)];
        assert_eq!(of(&cases(&results)[0]).unwrap().verdict(), Some(Verdict::Behind));
    }

    #[test]
    fn work_that_was_left_out_is_not_compared() {
        let ns = "ns_per_pair";
        let results = [
            entry("compio", ns, &[3e-9, 3e-9]),
            entry("monoio", ns, &[40.0, 40.0]),
            entry("windlass", ns, &[20.0, 20.0]),
        ];
        let cases = cases(&results);
        let headline = of(&cases[0]).unwrap();
        assert_eq!(headline.other.unwrap().implementation, "monoio");
        assert_eq!(headline.ratio, Some(Spread::exact(0.5)));
    }

    #[test]
    fn the_floor_is_compared_only_without_a_library() {
        let ns = "ns_per_event";
        let results = [entry("raw", ns, &[10.0]), entry("windlass", ns, &[10.5])];
        let cases = cases(&results);
        let headline = of(&cases[0]).unwrap();
        assert_eq!(headline.other.unwrap().implementation, "raw");
        assert_eq!(headline.verdict(), Some(Verdict::Tie), "within a tenth");
    }

    #[test]
    fn behind_is_what_costs_more_in_nearly_all_repetitions() {
        let ns = "ns_per_event";
        let verdict = |samples: &[f64]| {
            let results = [entry("mio", ns, &[10.0; 3]), entry("windlass", ns, samples)];
            of(&cases(&results)[0]).unwrap().verdict()
        };
        assert_eq!(verdict(&[15.0, 15.0, 15.0]), Some(Verdict::Behind));
        assert_eq!(verdict(&[5.0, 15.0, 15.0]), Some(Verdict::Tie), "the interval includes one");
    }
}
