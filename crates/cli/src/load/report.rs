//! The final report: text for people, JSON for programs.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Write},
    path::Path,
};

use serde::Serialize;

use super::{
    fault::FaultKind,
    plan::LoadPlan,
    results::LoadResults,
    run_state::RunState,
    schedule::Nanos,
    threshold::{Checked, Metric},
    tls::{LoadTls, TlsResults},
};

/// All results. The fields are those of the JSON; names end in their unit.
#[derive(Debug, Serialize)]
pub(crate) struct LoadReport {
    version: &'static str,
    url: String,
    parameters: Parameters,
    /// True if nothing went wrong.
    is_clean: bool,
    /// The number of the signal that ended the run early.
    signal: Option<i32>,
    /// The run ended early because no connection could be opened, or the server does not echo.
    gave_up: bool,
    connections: Connections,
    /// `null` without TLS.
    tls: Option<TlsResults>,
    messages: Messages,
    /// Time from the start of the measured time to its end, or to the last answer if that came
    /// later.
    elapsed_s: f64,
    messages_per_s: f64,
    /// Payload in each direction, or bodies of HTTP responses.
    bytes_per_s: f64,
    /// HTTP responses with a status other than 2xx, by their status. They are no verified messages.
    other_statuses: BTreeMap<u16, u64>,
    latency: Latency,
    /// What was expected by `--expect`.
    thresholds: Vec<Checked>,
    /// This program's CPU use: 1 is one full CPU.
    own_cpu_share: Option<f64>,
    errors: BTreeMap<&'static str, u64>,
    /// Descriptions of the first errors.
    error_texts: Vec<String>,
    #[serde(skip)]
    output: ReportTargets,
}

/// The requested settings.
#[derive(Debug, Serialize)]
struct Parameters {
    connections: u32,
    http2: bool,
    /// WebSockets of a connection of HTTP/2.
    streams: u32,
    /// `null` for HTTP.
    size_bytes: Option<u32>,
    /// The length that every body of HTTP must have.
    body_size_bytes: Option<u64>,
    depth: u32,
    duration_s: Option<f64>,
    messages: Option<u64>,
    rate_per_s: Option<f64>,
    /// Messages of a connection before it is closed and opened again.
    churn: Option<u64>,
    content: &'static str,
    deflate: bool,
    workers: u16,
    warm_up_s: f64,
    timeout_s: f64,
    answer_timeout_s: f64,
}

#[derive(Debug, Serialize)]
struct Connections {
    opened: u64,
    failed: u64,
    /// Connections opened again, because an HTTP server had ended them between two responses, or
    /// for `--churn`.
    reconnects: u64,
}

#[derive(Debug, Serialize)]
struct Messages {
    /// Sent in the measured time and answered correctly.
    verified: u64,
    /// The same, before the measured time.
    warm_up: u64,
    /// Due but not sent.
    unsent: u64,
    /// Sent but not answered correctly.
    unanswered: u64,
}

/// Latencies in microseconds, of the verified and the unsent messages. With a fixed rate they count
/// from the moment at which a message was due.
#[derive(Debug, Serialize)]
struct Latency {
    corrected_for_coordinated_omission: bool,
    min_us: f64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    max_us: f64,
    histogram: Vec<Bucket>,
}

/// Number of latencies up to this bound and above that of the previous bucket.
#[derive(Debug, Serialize)]
struct Bucket {
    to_us: f64,
    count: u64,
}

/// Where the report goes.
#[derive(Debug, Default)]
struct ReportTargets {
    json: Option<std::path::PathBuf>,
    quiet: bool,
}

/// Upper bound of the first bucket; each further bound is twice as high.
const BUCKET_FIRST: Nanos = 1_000;

impl LoadReport {
    pub(crate) fn new(plan: &LoadPlan, signal: Option<i32>, run_state: RunState) -> Self {
        let args = &plan.args;
        let origin = run_state.origin();
        let gave_up = run_state.is_given_up();
        let results = run_state.into_results();
        let start = origin.map_or(0, |origin| plan.schedule(origin).window.start);
        let end = results.last_answer.max(results.ended);
        let elapsed_s = end.saturating_sub(start) as f64 / 1e9;
        let per_s = |count: f64| if elapsed_s > 0.0 { count / elapsed_s } else { 0.0 };
        let messages_per_s = per_s(results.messages as f64);
        let latency = Latency::of(&results, args.rate.is_some());
        let checked = args.expect.iter().map(|threshold| {
            let measured = match threshold.metric {
                Metric::Min => latency.min_us,
                Metric::Mean => latency.mean_us,
                Metric::P50 => latency.p50_us,
                Metric::P90 => latency.p90_us,
                Metric::P99 => latency.p99_us,
                Metric::P99_9 => latency.p99_9_us,
                Metric::Max => latency.max_us,
                Metric::Rate => messages_per_s,
            };
            threshold.check(measured, results.latency.len())
        });
        Self {
            thresholds: checked.collect(),
            version: env!("CARGO_PKG_VERSION"),
            url: args.target.to_string(),
            parameters: Parameters::of(plan),
            is_clean: results.failed() == 0 && results.other_statuses().next().is_none(),
            signal,
            gave_up,
            connections: Connections {
                opened: results.opened,
                failed: results.failed(),
                reconnects: results.reconnects,
            },
            tls: plan.tls.as_ref().map(LoadTls::results),
            messages: Messages {
                verified: results.messages,
                warm_up: results.warm_up,
                unsent: results.unsent,
                unanswered: results.unanswered,
            },
            elapsed_s,
            messages_per_s,
            bytes_per_s: match args.target.is_http() {
                true => per_s(results.body_bytes as f64),
                false => messages_per_s * f64::from(args.size),
            },
            other_statuses: results.other_statuses().collect(),
            latency,
            own_cpu_share: results.cpu_share(),
            errors: results.faults().map(|(kind, count)| (kind.name(), count)).collect(),
            error_texts: results.texts().to_vec(),
            output: ReportTargets { json: args.json.clone(), quiet: args.quiet },
        }
    }

    /// Returns whether nothing went wrong.
    pub(crate) const fn is_clean(&self) -> bool {
        self.is_clean
    }

    /// Returns whether all thresholds are met.
    pub(crate) fn is_as_expected(&self) -> bool {
        self.thresholds.iter().all(|checked| checked.is_met)
    }

    /// Writes the requested reports.
    ///
    /// # Errors
    ///
    /// If a report cannot be written.
    pub(crate) fn show(&self) -> io::Result<()> {
        let json_path = self.output.json.as_deref();
        let is_json_on_output = json_path == Some(Path::new("-"));
        for text in &self.error_texts {
            eprintln!("windlass: {text}");
        }
        match self.connections.failed - self.error_texts.len() as u64 {
            0 => {}
            more => eprintln!("windlass: and {more} more"),
        }
        for missed in self.thresholds.iter().filter(|checked| !checked.is_met) {
            eprintln!("windlass: {missed}");
        }
        if let Some(advice) = self.advice() {
            eprintln!("windlass: {advice}");
        }
        if !self.output.quiet {
            let mut error = io::stderr();
            let mut output = io::stdout();
            let people: &mut dyn Write = if is_json_on_output { &mut error } else { &mut output };
            ignore_broken_pipe(write!(people, "{self}"))?;
        }
        match json_path {
            None => Ok(()),
            Some(_) if is_json_on_output => {
                ignore_broken_pipe(self.write_json(io::stdout().lock()))
            }
            Some(path) => self.write_json(File::create(path)?),
        }
    }

    /// Advice about the errors as a whole.
    fn advice(&self) -> Option<String> {
        let Connections { opened, failed, .. } = self.connections;
        let Messages { verified, warm_up, .. } = self.messages;
        if self.gave_up && opened == 0 {
            let asked = self.parameters.connections;
            return Some(format!(
                "gave up: none of the first {failed} of {asked} connections could be opened"
            ));
        }
        let is_lost = self.errors.len() == 1 && self.errors.contains_key(FaultKind::Lost.name());
        let is_http = self.parameters.size_bytes.is_none();
        (is_lost && verified + warm_up == 0 && !is_http).then(|| {
            "no message came back; `windlass load` needs a server that sends each message back, \
             such as `windlass serve` at /echo"
                .to_owned()
        })
    }

    fn write_json(&self, mut to: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut to, self)?;
        writeln!(to)?;
        to.flush()
    }
}

/// A closed reader is not a failure.
fn ignore_broken_pipe(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

impl Parameters {
    fn of(plan: &LoadPlan) -> Self {
        let args = &plan.args;
        Self {
            connections: args.connections,
            http2: args.http2,
            streams: args.streams,
            size_bytes: (!args.target.is_http()).then_some(args.size),
            body_size_bytes: args.body_size,
            depth: args.depth,
            duration_s: args.duration().map(|duration| duration.as_secs_f64()),
            messages: args.messages,
            rate_per_s: args.rate,
            churn: args.churn,
            content: match args.text {
                None if args.target.is_http() => "http",
                None => "binary",
                Some(super::payload::Charset::Ascii) => "ascii",
                Some(super::payload::Charset::Utf8) => "utf8",
            },
            deflate: args.deflate,
            workers: args.workers,
            warm_up_s: args.warm_up.as_secs_f64(),
            timeout_s: args.timeout.as_secs_f64(),
            answer_timeout_s: args.answer_timeout().as_secs_f64(),
        }
    }
}

impl Latency {
    fn of(results: &LoadResults, is_corrected: bool) -> Self {
        let latency = &results.latency;
        let us = |nanos: Nanos| nanos as f64 / 1e3;
        let at = |quantile| us(latency.value_at_quantile(quantile));
        let buckets = latency.iter_log(BUCKET_FIRST, 2.0);
        Self {
            corrected_for_coordinated_omission: is_corrected,
            min_us: us(latency.min()),
            mean_us: latency.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: us(latency.max()),
            histogram: buckets
                .map(|bucket| Bucket {
                    to_us: us(bucket.value_iterated_to()),
                    count: bucket.count_since_last_iteration(),
                })
                .skip_while(|bucket| bucket.count == 0)
                .collect(),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.parameters;
        let connections = asked.connections;
        writeln!(f, "{}", self.url)?;
        write!(f, "  {connections} connections")?;
        if asked.http2 {
            write!(f, " of HTTP/2")?;
        }
        if asked.streams > 1 {
            write!(f, " with {} WebSockets each", asked.streams)?;
        }
        match asked.size_bytes {
            None => write!(f, ", GET")?,
            Some(size) => write!(f, ", {size} bytes ({})", asked.content)?,
        }
        write!(
            f,
            "{}, {} outstanding",
            if asked.deflate { ", compressed" } else { "" },
            asked.depth
        )?;
        match asked.rate_per_s {
            Some(rate) => writeln!(f, ", {} messages per second", Grouped(rate.round() as u64))?,
            None => writeln!(f)?,
        }
        let (verified, per_s) =
            (Grouped(self.messages.verified), Grouped(self.messages_per_s.round() as u64));
        let megabytes = self.bytes_per_s / 1e6;
        writeln!(f)?;
        writeln!(f, "  messages    {verified} in {:.3} s", self.elapsed_s)?;
        match asked.size_bytes {
            None => writeln!(f, "  throughput  {per_s} requests/s, {megabytes:.2} MB/s of bodies")?,
            Some(_) => {
                let rates = format!("{per_s} messages/s, {megabytes:.2} MB/s");
                writeln!(f, "  throughput  {rates} in each direction")?;
            }
        }
        if self.tls.as_ref().is_some_and(|tls| !tls.is_verified) {
            writeln!(f, "  tls         the server's certificate was not verified (--insecure)")?;
        }
        self.latency.fmt(f)?;
        if let Some(share) = self.own_cpu_share {
            writeln!(f, "  own CPU     {:.0} % of a processor", share * 100.0)?;
        }
        if self.messages.unsent > 0 {
            let unsent = Grouped(self.messages.unsent);
            writeln!(
                f,
                "  not sent    {unsent}: the rate was not reached; their waits count as latencies"
            )?;
        }
        if self.connections.reconnects > 0 {
            let reconnects = Grouped(self.connections.reconnects);
            match asked.churn {
                None => {
                    writeln!(
                        f,
                        "  reconnects  {reconnects}: the server ended connections in order"
                    )?;
                }
                Some(_) => {
                    let per_s = self.connections.reconnects as f64 / self.elapsed_s.max(1e-9);
                    writeln!(f, "  reconnects  {reconnects}, {per_s:.0} a second (--churn)")?;
                }
            }
        }
        if self.messages.unanswered > 0 {
            writeln!(f, "  unanswered  {}", Grouped(self.messages.unanswered))?;
        }
        if !self.other_statuses.is_empty() {
            let one = |(status, count): (&u16, &u64)| format!("{status}: {}", Grouped(*count));
            let all: Vec<String> = self.other_statuses.iter().map(one).collect();
            writeln!(f, "  not 2xx     {}", all.join(", "))?;
        }
        for checked in &self.thresholds {
            writeln!(f, "  expected    {checked}")?;
        }
        if self.errors.is_empty() {
            return writeln!(f, "  errors      none");
        }
        let connections = Grouped(self.connections.failed);
        let kind = |(kind, count): (&&str, &u64)| {
            format!("{} {}", Grouped(*count), kind.replace('_', " "))
        };
        let kinds: Vec<String> = self.errors.iter().map(kind).collect();
        writeln!(f, "  errors      in {connections} connections: {}", kinds.join(", "))
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.histogram.iter().map(|bucket| bucket.count).sum();
        if total == 0 {
            return Ok(());
        }
        let [mean, p50, p90, p99, p99_9, max] =
            [self.mean_us, self.p50_us, self.p90_us, self.p99_us, self.p99_9_us, self.max_us]
                .map(Micros);
        let from =
            if self.corrected_for_coordinated_omission { ", from the intended moment" } else { "" };
        write!(f, "  latency     mean {mean}, p50 {p50}, p90 {p90}, p99 {p99}, ")?;
        writeln!(f, "p99.9 {p99_9}, max {max}{from}")?;
        let most = self.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(1);
        for bucket in &self.histogram {
            let width = (bucket.count as f64 / most as f64 * 40.0).ceil() as usize;
            let share = bucket.count as f64 / total as f64 * 100.0;
            let to = Micros(bucket.to_us).to_string();
            writeln!(f, "      ≤ {to:>8}  {share:>7.3} %  {}", "█".repeat(width))?;
        }
        Ok(())
    }
}

/// A time with three digits and a suitable unit.
struct Micros(f64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            us if us < 1e3 => (us, "µs"),
            us if us < 1e6 => (us / 1e3, "ms"),
            us => (us / 1e6, "s"),
        };
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        write!(f, "{value:.digits$} {unit}")
    }
}

/// A number in groups of three digits.
struct Grouped(u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.char_indices() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(" ")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_numbers_groups() {
        for (us, text) in [
            (0.0, "0.00 µs"),
            (9.987, "9.99 µs"),
            (45.25, "45.2 µs"),
            (999.0, "999 µs"),
            (1_000.0, "1.00 ms"),
            (1_234_567.0, "1.23 s"),
            (600_000_000.0, "600 s"),
        ] {
            assert_eq!(Micros(us).to_string(), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1 000"), (1_234_567, "1 234 567")] {
            assert_eq!(Grouped(number).to_string(), text);
        }
    }

    #[test]
    fn buckets_of_latencies_double_and_none_is_lost() {
        let mut results = LoadResults::new();
        for latency in [900, 1_500, 3_000, 3_500, 700_000] {
            results.answered(Some(latency), 1);
        }
        let latency = Latency::of(&results, true);
        assert_eq!(latency.histogram.iter().map(|bucket| bucket.count).sum::<u64>(), 5);
        let first: Vec<u64> = latency.histogram.iter().take(3).map(|bucket| bucket.count).collect();
        assert_eq!(first, [1, 1, 2]);
        assert!(
            latency.to_string().contains("max 700 µs, from the intended moment\n"),
            "{latency}"
        );
        assert_eq!(
            Latency::of(&LoadResults::new(), true).to_string(),
            "",
            "without messages there is nothing to say"
        );
    }
}
