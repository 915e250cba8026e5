//! The text of a view.

use std::time::Duration;

use super::status::{Cluster, Status, WorkerRow};

/// A status, and the rates since the previous one.
pub(crate) struct View<'s> {
    now: &'s Status,
    before: Option<(&'s Status, Duration)>,
}

impl<'s> View<'s> {
    /// The headline of the views that are one line.
    pub(crate) const HEADLINE: &'static str = "state          open   msg in/s  msg out/s  \
                                               wire in/s wire out/s  slow   dropped  lag mean   \
                                               held";

    pub(crate) fn new(now: &'s Status, before: Option<(&'s Status, Duration)>) -> Self {
        Self { now, before }
    }

    /// The growth of a count in a second. `None` without a previous status.
    fn rate(&self, count: impl Fn(&Status) -> u64) -> Option<f64> {
        let (before, elapsed) = self.before?;
        Some(count(self.now).saturating_sub(count(before)) as f64 / elapsed.as_secs_f64())
    }

    fn per_second(&self, count: impl Fn(&Status) -> u64) -> String {
        self.rate(count).map_or_else(|| "-".to_owned(), short)
    }

    fn bytes_per_second(&self, count: impl Fn(&Status) -> u64) -> String {
        self.rate(count).map_or_else(|| "-".to_owned(), bytes)
    }

    /// The mean lag of a worker in microseconds, since the previous status, or of all time. `None`
    /// if it had no turn.
    fn lag_us(&self, row: &WorkerRow) -> Option<u64> {
        let before = self.before.and_then(|(before, _)| {
            before.workers.iter().find(|before| before.worker == row.worker)
        });
        let (count, sum) = before.map_or((0, 0), |before| (before.lag_count, before.lag_sum_us));
        let count = row.lag_count.saturating_sub(count);
        row.lag_sum_us.saturating_sub(sum).checked_div(count)
    }

    /// The longest of the workers' mean lags.
    fn lag_max_us(&self) -> Option<u64> {
        self.now.workers.iter().filter_map(|row| self.lag_us(row)).max()
    }

    /// The view on one line, for output that is no terminal.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:<11} {:>7} {:>10} {:>10} {:>10} {:>10} {:>5} {:>9} {:>9} {:>6}",
            self.now.state,
            self.now.connections.open,
            self.per_second(|status| status.messages.received),
            self.per_second(|status| status.messages.sent),
            self.bytes_per_second(|status| status.wire_bytes.received),
            self.bytes_per_second(|status| status.wire_bytes.sent),
            self.now.slow_receivers,
            self.now.messages.dropped,
            micros(self.lag_max_us()),
            bytes(self.now.memory.held as f64),
        )
    }

    /// The view on a screen.
    pub(crate) fn lines(&self) -> Vec<String> {
        let now = self.now;
        let (connections, memory) = (&now.connections, &now.memory);
        let mut lines = vec![
            format!(
                "windlass {} on {}: {}, up {}",
                now.version,
                now.backend,
                now.state,
                uptime(now.uptime_seconds)
            ),
            String::new(),
            format!(
                "connections  {} open, {} in handshake, {} closing; {} opened, {} closed a second",
                connections.open,
                connections.handshake,
                connections.closing,
                self.per_second(|status| status.opened),
                self.per_second(|status| status.closed),
            ),
            format!(
                "messages     {} in, {} out a second; {} dropped, {} connections evicted",
                self.per_second(|status| status.messages.received),
                self.per_second(|status| status.messages.sent),
                now.messages.dropped,
                now.evicted,
            ),
            format!(
                "payload      {} in, {} out a second",
                self.bytes_per_second(|status| status.message_bytes.received),
                self.bytes_per_second(|status| status.message_bytes.sent),
            ),
            format!(
                "wire         {} in, {} out a second",
                self.bytes_per_second(|status| status.wire_bytes.received),
                self.bytes_per_second(|status| status.wire_bytes.sent),
            ),
            format!(
                "memory       {} of {} held ({}), {} output buffered",
                bytes(memory.held as f64),
                bytes(memory.limit as f64),
                percent(memory.held, memory.limit),
                bytes(memory.output_buffered as f64),
            ),
            format!("receivers    {} slow: their output waits", now.slow_receivers),
            format!("topics       {}, {} subscriptions", now.topics, now.subscriptions),
        ];
        lines.extend(now.cluster.iter().flat_map(|cluster| self.cluster(cluster)));
        lines.push(String::new());
        lines.push("worker  connections    msg in/s   msg out/s   lag mean   buffered".to_owned());
        lines.extend(now.workers.iter().map(|row| self.worker(row)));
        lines
    }

    /// The node's part in its cluster.
    fn cluster(&self, now: &Cluster) -> [String; 2] {
        let of =
            |status: &Status, count: fn(&Cluster) -> u64| status.cluster.as_ref().map_or(0, count);
        [
            format!(
                "cluster      {}, {} connects, {} subscriptions",
                now.state, now.connects, now.subscriptions
            ),
            format!(
                "  messages   {} published, {} received a second; {} dropped, {} missed",
                self.per_second(|status| of(status, |cluster| cluster.published)),
                self.per_second(|status| of(status, |cluster| cluster.received)),
                now.dropped,
                now.missed,
            ),
        ]
    }

    fn worker(&self, row: &WorkerRow) -> String {
        let of = |status: &Status, count: fn(&WorkerRow) -> u64| {
            status.workers.iter().find(|other| other.worker == row.worker).map_or(0, count)
        };
        format!(
            "{:>6}  {:>11}  {:>10}  {:>10} {:>10} {:>10}",
            row.worker,
            row.connections,
            self.per_second(|status| of(status, |row| row.messages_in)),
            self.per_second(|status| of(status, |row| row.messages_out)),
            micros(self.lag_us(row)),
            bytes(row.buffered_bytes as f64),
        )
    }
}

/// A number in at most seven characters.
fn short(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T"])
}

/// A number of bytes.
pub(super) fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A number of microseconds, if there is one.
fn micros(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| scaled(us as f64, 1000.0, &["us", "ms", "s"]))
}

fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    let digits = if unit == 0 || number >= 100.0 { 0 } else { 1 };
    format!("{number:.digits$}{}", units[unit])
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0}%", part as f64 * 100.0 / whole as f64) }
}

fn uptime(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match hours {
        0..48 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{} days {}:{minutes:02}", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, expected) in
            [(0.0, "0"), (999.0, "999"), (1500.0, "1.5k"), (123_456.0, "123k"), (2e6, "2.0M")]
        {
            assert_eq!(short(number), expected);
        }
        assert_eq!((bytes(1023.0), bytes(1536.0)), ("1023B".into(), "1.5KiB".into()));
        assert_eq!(
            [Some(12), Some(2500), Some(3_000_000), None].map(micros),
            ["12us", "2.5ms", "3.0s", "-"].map(str::to_owned)
        );
        assert_eq!((percent(1, 4), percent(0, 0)), ("25%".into(), "-".into()));
        assert_eq!((uptime(3661), uptime(200_000)), ("1:01:01".into(), "2 days 7:33".into()));
    }

    fn status(received: u64, lag_count: u64, lag_sum_us: u64) -> Status {
        Status::parse(&status_json(received, lag_count, lag_sum_us)).unwrap()
    }

    fn status_json(received: u64, lag_count: u64, lag_sum_us: u64) -> String {
        format!(
            "{{\"version\":\"1\",\"backend\":\"epoll\",\"state\":\"ready\",\"uptime_seconds\":1,\
             \"connections\":{{\"handshake\":0,\"open\":2,\"closing\":0}},\"opened\":2,\
             \"closed\":0,\"messages\":{{\"in\":{received},\"out\":{received},\"dropped\":3}},\
             \"message_bytes\":{{\"in\":0,\"out\":0}},\"wire_bytes\":{{\"in\":0,\"out\":4096}},\
             \"evicted\":0,\"slow_receivers\":7,\"topics\":0,\"subscriptions\":0,\
             \"memory\":{{\"limit\":100,\"borrowed\":0,\"held\":25,\"output_buffered\":0}},\
             \"workers\":[{{\"worker\":0,\"connections\":2,\"messages_in\":{received},\
             \"messages_out\":{received},\"lag_count\":{lag_count},\"lag_sum_us\":{lag_sum_us},\
             \"buffered_bytes\":0}}]}}"
        )
    }

    #[test]
    fn rates_are_those_since_the_previous_view() {
        let (before, now) = (status(1000, 10, 100), status(5000, 12, 1100));
        let first = View::new(&before, None);
        assert_eq!(first.line().split_whitespace().nth(2), Some("-"));
        let view = View::new(&now, Some((&before, Duration::from_secs(2))));
        let words: Vec<String> = view.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["ready", "2", "2.0k", "2.0k", "0B", "0B", "7", "3", "500us", "25B"]);
        let screen = view.lines().join("\n");
        assert!(screen.contains("2.0k in, 2.0k out a second; 3 dropped"), "{screen}");
        assert!(screen.contains("receivers    7 slow"), "{screen}");
        assert!(screen.contains("25B of 100B held (25%)"), "{screen}");
        assert_eq!(View::HEADLINE.lines().count(), 1);
        assert!(!screen.contains("cluster"), "{screen}");
    }

    #[test]
    fn the_lag_is_that_of_the_worker_that_is_late_now() {
        let (mut before, mut now) = (status(0, 1000, 9_000_000), status(0, 1010, 9_000_100));
        for (status, lag_count, lag_sum_us) in [(&mut before, 10, 100), (&mut now, 12, 4100)] {
            let mut late = status.workers[0].clone();
            (late.worker, late.lag_count, late.lag_sum_us) = (1, lag_count, lag_sum_us);
            status.workers.push(late);
        }
        let view = View::new(&now, Some((&before, Duration::from_secs(1))));
        assert_eq!(view.lag_max_us(), Some(2000), "worker 0 was late in the past");
    }

    #[test]
    fn the_rows_of_a_cluster_are_those_of_a_node() {
        let (mut before, mut now) = (status(0, 0, 0), status(0, 0, 0));
        for (status, published, received) in [(&mut before, 10, 1000), (&mut now, 20, 5000)] {
            status.cluster = Some(Cluster {
                state: "connected".to_owned(),
                connects: 2,
                subscriptions: 9,
                published,
                received,
                dropped: 3,
                missed: 4,
            });
        }
        let lines = View::new(&now, Some((&before, Duration::from_secs(2)))).lines();
        let at = lines.iter().position(|line| line.starts_with("cluster")).unwrap();
        assert_eq!(lines[at], "cluster      connected, 2 connects, 9 subscriptions");
        let sums = "  messages   5 published, 2.0k received a second; 3 dropped, 4 missed";
        assert_eq!((lines[at + 1].as_str(), lines[at + 2].as_str()), (sums, ""));
        let text = "{\"state\":\"conn\\u001becting\",\"connects\":0,\"subscriptions\":0,\
                    \"published\":0,\"received\":0,\"dropped\":0,\"missed\":0}";
        let json =
            status_json(0, 0, 0).replace("\"workers\"", &format!("\"cluster\":{text},\"workers\""));
        let parsed = Status::parse(&json).unwrap();
        assert_eq!(
            parsed.cluster.map(|cluster| cluster.state),
            Some("conn\\u{1b}ecting".to_owned())
        );
    }
}
