//! The final report: text for people, JSON for programs.

mod text;

use std::{
    collections::BTreeMap,
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
    /// The targets, with a space between two.
    url: String,
    parameters: Parameters,
    /// True if nothing went wrong.
    is_clean: bool,
    /// The number of the signal that ended the run early.
    signal: Option<i32>,
    /// The run ended early because no connection could be opened, or the server does not echo.
    gave_up: bool,
    #[serde(flatten)]
    total: Measured,
    /// The results of each target, if there are several.
    targets: Vec<TargetReport>,
    /// What was expected by `--expect`, of the total.
    thresholds: Vec<Checked>,
    /// This program's CPU use: 1 is one full CPU.
    own_cpu_share: Option<f64>,
    /// Descriptions of the first errors.
    error_texts: Vec<String>,
    #[serde(skip)]
    output: ReportTargets,
}

/// The results of one target, or of all.
#[derive(Debug, Serialize)]
struct Measured {
    connections: Connections,
    /// `null` without TLS.
    tls: Option<TlsResults>,
    messages: Messages,
    /// `null` without `--publishers`. The verified messages are then deliveries to receivers.
    fan_out: Option<FanOutResults>,
    /// Time from the start of the measured time to its end, or to the last answer if that came
    /// later.
    elapsed_s: f64,
    messages_per_s: f64,
    /// Payload in each direction, or bodies of HTTP responses.
    bytes_per_s: f64,
    /// HTTP responses with a status other than 2xx, by their status. They are no verified messages.
    other_statuses: BTreeMap<u16, u64>,
    latency: Latency,
    errors: BTreeMap<&'static str, u64>,
}

/// The results of one of several targets.
#[derive(Debug, Serialize)]
struct TargetReport {
    url: String,
    #[serde(flatten)]
    measured: Measured,
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

/// What publishers have sent, and how it has not come to receivers.
#[derive(Debug, Serialize)]
struct FanOutResults {
    publishers: u32,
    published: u64,
    lost: u64,
    duplicated: u64,
    reordered: u64,
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
        let of_targets = run_state.into_results();
        let mut results = LoadResults::new();
        of_targets.iter().for_each(|of_target| results.add(of_target));
        let start = origin.map_or(0, |origin| plan.schedule(origin).window.start);
        let total = Measured::new(plan, start, &results, TlsResults::of_all(plan));
        let latency = &total.latency;
        let checked = args.expect.iter().map(|threshold| {
            let measured = match threshold.metric {
                Metric::Min => latency.min_us,
                Metric::Mean => latency.mean_us,
                Metric::P50 => latency.p50_us,
                Metric::P90 => latency.p90_us,
                Metric::P99 => latency.p99_us,
                Metric::P99_9 => latency.p99_9_us,
                Metric::Max => latency.max_us,
                Metric::Rate => total.messages_per_s,
            };
            threshold.check(measured, results.latency.len())
        });
        let thresholds = checked.collect();
        let mut error_texts = results.texts().to_vec();
        let mut targets = Vec::new();
        if plan.targets.len() > 1 {
            error_texts.clear();
            for (planned, results) in plan.targets.iter().zip(&of_targets) {
                let url = planned.target.to_string();
                error_texts.extend(results.texts().iter().map(|text| format!("{url}: {text}")));
                let tls = planned.tls.as_ref().map(LoadTls::results);
                let measured = Measured::new(plan, start, results, tls);
                targets.push(TargetReport { url, measured });
            }
        }
        let urls: Vec<_> = plan.targets.iter().map(|planned| planned.target.to_string()).collect();
        Self {
            thresholds,
            version: env!("CARGO_PKG_VERSION"),
            url: urls.join(" "),
            parameters: Parameters::of(plan),
            is_clean: results.failed() == 0
                && results.other_statuses().next().is_none()
                && results.lost + results.duplicated + results.reordered == 0,
            signal,
            gave_up,
            total,
            targets,
            own_cpu_share: results.cpu_share(),
            error_texts,
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
        match self.total.connections.failed - self.error_texts.len() as u64 {
            0 => {}
            more => eprintln!("windlass: and {more} more"),
        }
        if let Some(fan_out) = self.total.fan_out.as_ref().filter(|fan_out| fan_out.is_wrong()) {
            eprintln!("windlass: {fan_out}");
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
        let Connections { opened, failed, .. } = self.total.connections;
        let Messages { verified, warm_up, .. } = self.total.messages;
        let errors = &self.total.errors;
        if self.gave_up && opened == 0 {
            let asked = self.parameters.connections;
            return Some(format!(
                "gave up: none of the first {failed} of {asked} connections could be opened"
            ));
        }
        if self.total.fan_out.as_ref().is_some_and(|fan_out| fan_out.lost > 0) && verified == 0 {
            let text = "no message was delivered; `windlass load --publishers` needs a server that \
                        sends each message to all other clients of the path, such as `windlass \
                        serve` at /room/NAME";
            return Some(text.to_owned());
        }
        let is_lost = errors.len() == 1 && errors.contains_key(FaultKind::Lost.name());
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

impl Measured {
    /// The results of a run whose measured time has begun at `start`.
    fn new(plan: &LoadPlan, start: Nanos, results: &LoadResults, tls: Option<TlsResults>) -> Self {
        let end = results.last_answer.max(results.ended);
        let elapsed_s = end.saturating_sub(start) as f64 / 1e9;
        let per_s = |count: f64| if elapsed_s > 0.0 { count / elapsed_s } else { 0.0 };
        let messages_per_s = per_s(results.messages as f64);
        Self {
            connections: Connections {
                opened: results.opened,
                failed: results.failed(),
                reconnects: results.reconnects,
            },
            tls,
            messages: Messages {
                verified: results.messages,
                warm_up: results.warm_up,
                unsent: results.unsent,
                unanswered: results.unanswered,
            },
            fan_out: plan.args.publishers.map(|publishers| FanOutResults {
                publishers,
                published: results.published,
                lost: results.lost,
                duplicated: results.duplicated,
                reordered: results.reordered,
            }),
            elapsed_s,
            messages_per_s,
            bytes_per_s: match plan.args.is_http() {
                true => per_s(results.body_bytes as f64),
                false => messages_per_s * f64::from(plan.args.size),
            },
            other_statuses: results.other_statuses().collect(),
            latency: Latency::of(results, plan.args.rate.is_some()),
            errors: results.faults().map(|(kind, count)| (kind.name(), count)).collect(),
        }
    }
}

impl Parameters {
    fn of(plan: &LoadPlan) -> Self {
        let args = &plan.args;
        Self {
            connections: args.connections,
            http2: args.http2,
            streams: args.streams,
            size_bytes: (!args.is_http()).then_some(args.size),
            body_size_bytes: args.body_size,
            depth: args.depth,
            duration_s: args.duration().map(|duration| duration.as_secs_f64()),
            messages: args.messages,
            rate_per_s: args.rate,
            churn: args.churn,
            content: match args.text {
                None if args.is_http() => "http",
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
