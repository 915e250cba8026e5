//! The report as text.

use std::fmt;

use super::{FanOutResults, Latency, LoadReport, Measured, TargetReport};

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.parameters;
        let connections = asked.connections;
        for url in self.url.split(' ') {
            writeln!(f, "{url}")?;
        }
        match &self.total.fan_out {
            None => write!(f, "  {connections} connections")?,
            Some(FanOutResults { publishers, .. }) => {
                let receivers = connections - publishers;
                write!(f, "  {publishers} publishers and {receivers} receivers")?;
            }
        }
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
        write!(f, "{}", if asked.deflate { ", compressed" } else { "" })?;
        if self.total.fan_out.is_none() {
            write!(f, ", {} outstanding", asked.depth)?;
        }
        match asked.rate_per_s {
            Some(rate) => writeln!(f, ", {} messages per second", Grouped(rate.round() as u64))?,
            None => writeln!(f)?,
        }
        let total = &self.total;
        let (verified, per_s) =
            (Grouped(total.messages.verified), Grouped(total.messages_per_s.round() as u64));
        let megabytes = total.bytes_per_s / 1e6;
        writeln!(f)?;
        match &total.fan_out {
            None => writeln!(f, "  messages    {verified} in {:.3} s", total.elapsed_s)?,
            Some(fan_out) => {
                let published = Grouped(fan_out.published);
                writeln!(f, "  published   {published} in {:.3} s", total.elapsed_s)?;
                writeln!(f, "  delivered   {verified}: {fan_out}")?;
            }
        }
        match asked.size_bytes {
            None => writeln!(f, "  throughput  {per_s} requests/s, {megabytes:.2} MB/s of bodies")?,
            Some(_) if total.fan_out.is_some() => {
                writeln!(f, "  throughput  {per_s} deliveries/s, {megabytes:.2} MB/s")?;
            }
            Some(_) => {
                let rates = format!("{per_s} messages/s, {megabytes:.2} MB/s");
                writeln!(f, "  throughput  {rates} in each direction")?;
            }
        }
        if total.tls.as_ref().is_some_and(|tls| !tls.is_verified) {
            writeln!(f, "  tls         the server's certificate was not verified (--insecure)")?;
        }
        total.latency.fmt(f)?;
        if let Some(share) = self.own_cpu_share {
            writeln!(f, "  own CPU     {:.0} % of a processor", share * 100.0)?;
        }
        if total.messages.unsent > 0 {
            let unsent = Grouped(total.messages.unsent);
            writeln!(
                f,
                "  not sent    {unsent}: the rate was not reached; their waits count as latencies"
            )?;
        }
        if total.connections.reconnects > 0 {
            let reconnects = Grouped(total.connections.reconnects);
            match asked.churn {
                None => {
                    writeln!(
                        f,
                        "  reconnects  {reconnects}: the server ended connections in order"
                    )?;
                }
                Some(_) => {
                    let per_s = total.connections.reconnects as f64 / total.elapsed_s.max(1e-9);
                    writeln!(f, "  reconnects  {reconnects}, {per_s:.0} a second (--churn)")?;
                }
            }
        }
        if total.messages.unanswered > 0 {
            writeln!(f, "  unanswered  {}", Grouped(total.messages.unanswered))?;
        }
        if !total.other_statuses.is_empty() {
            let one = |(status, count): (&u16, &u64)| format!("{status}: {}", Grouped(*count));
            let all: Vec<String> = total.other_statuses.iter().map(one).collect();
            writeln!(f, "  not 2xx     {}", all.join(", "))?;
        }
        for checked in &self.thresholds {
            writeln!(f, "  expected    {checked}")?;
        }
        writeln!(f, "  errors      {}", total.faults())?;
        for TargetReport { url, measured } in &self.targets {
            writeln!(f, "\n{url}\n  {measured}")?;
        }
        Ok(())
    }
}

impl FanOutResults {
    pub(super) fn is_wrong(&self) -> bool {
        self.lost + self.duplicated + self.reordered > 0
    }
}

impl fmt::Display for FanOutResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, duplicated, reordered, .. } = *self;
        let [lost, duplicated, reordered] = [lost, duplicated, reordered].map(Grouped);
        write!(f, "{lost} lost, {duplicated} duplicated, {reordered} reordered")
    }
}

/// The results of one target.
impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened = self.connections.opened;
        let (verified, per_s) =
            (Grouped(self.messages.verified), Grouped(self.messages_per_s.round() as u64));
        write!(f, "{opened} opened, {verified} messages, {per_s} messages/s")?;
        if self.messages.verified > 0 {
            let Latency { p50_us, p99_us, max_us, .. } = self.latency;
            let [p50, p99, max] = [p50_us, p99_us, max_us].map(Micros);
            write!(f, ", p50 {p50}, p99 {p99}, max {max}")?;
        }
        if let Some(fan_out) = &self.fan_out {
            write!(f, ", {fan_out}")?;
        }
        write!(f, ", errors {}", self.faults())
    }
}

impl Measured {
    /// The errors in words.
    fn faults(&self) -> String {
        if self.errors.is_empty() {
            return "none".to_owned();
        }
        let connections = Grouped(self.connections.failed);
        let kind = |(kind, count): (&&str, &u64)| {
            format!("{} {}", Grouped(*count), kind.replace('_', " "))
        };
        let kinds: Vec<String> = self.errors.iter().map(kind).collect();
        format!("in {connections} connections: {}", kinds.join(", "))
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
    use crate::load::results::LoadResults;

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
