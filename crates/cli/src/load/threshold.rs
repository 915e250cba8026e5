//! `--expect`: thresholds of the results, which decide the exit status.

use std::{fmt, str::FromStr};

use serde::Serialize;

use super::plan::seconds;

/// Why a threshold cannot be parsed.
const EXPECTED: &str = "it is no `min`, `mean`, `p50`, `p90`, `p99`, `p99.9` or `max` with `<` and \
                        a time, such as p99<20ms; nor `rate>` with a number of messages a second";

/// What a threshold is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Min,
    Mean,
    P50,
    P90,
    P99,
    P99_9,
    Max,
    /// Messages a second.
    Rate,
}

impl Metric {
    const NAMES: [(&str, Self); 7] = [
        ("min", Self::Min),
        ("mean", Self::Mean),
        ("p50", Self::P50),
        ("p90", Self::P90),
        ("p99", Self::P99),
        ("p99.9", Self::P99_9),
        ("max", Self::Max),
    ];
}

/// A condition: a latency below a limit in microseconds, or a rate above one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold {
    pub(crate) metric: Metric,
    limit: f64,
    text: String,
}

/// A threshold and what was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    threshold: String,
    measured: f64,
    pub(crate) is_met: bool,
}

impl Threshold {
    /// Compares a measured value: in microseconds, or in messages a second. Without messages there
    /// is no latency, and no threshold of one is met.
    pub(crate) fn check(&self, measured: f64, messages: u64) -> Checked {
        let is_met = match self.metric {
            Metric::Rate => measured > self.limit,
            _ => messages > 0 && measured < self.limit,
        };
        Checked { threshold: self.text.clone(), measured, is_met }
    }
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (metric, limit) = if let Some(rate) = text.strip_prefix("rate>") {
            let rate: f64 = rate.parse().map_err(|_| EXPECTED.to_owned())?;
            (Metric::Rate, rate)
        } else {
            let (name, time) = text.split_once('<').ok_or(EXPECTED)?;
            let metric = Metric::NAMES.iter().find(|(known, _)| *known == name);
            (metric.ok_or(EXPECTED)?.1, seconds(time)?.as_secs_f64() * 1e6)
        };
        if !limit.is_finite() || limit <= 0.0 {
            return Err("the limit must be above 0".to_owned());
        }
        Ok(Self { metric, limit, text: text.to_owned() })
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threshold, measured, is_met } = self;
        let outcome = if *is_met { "met" } else { "missed" };
        match threshold.starts_with("rate") {
            true => write!(f, "{threshold} {outcome}: {measured:.0} messages/s"),
            false => write!(f, "{threshold} {outcome}: {:.3} ms", measured / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_metric_and_a_limit() {
        let threshold = |text: &str| text.parse::<Threshold>();
        for (text, metric, limit) in [
            ("p99<20ms", Metric::P99, 20_000.0),
            ("p99.9<1s", Metric::P99_9, 1_000_000.0),
            ("max<0.5", Metric::Max, 500_000.0),
            ("rate>1000", Metric::Rate, 1000.0),
        ] {
            let parsed = threshold(text).expect("it is one");
            assert_eq!((parsed.metric, parsed.limit), (metric, limit), "{text}");
        }
        for nonsense in
            ["", "p99", "p99>20ms", "p98<20ms", "p99<", "p99<0s", "rate<5", "rate>x", "rate>NaN"]
        {
            assert!(threshold(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_limit_itself_is_missed_and_so_is_a_latency_of_nothing() {
        let check = |text: &str, measured, messages| {
            text.parse::<Threshold>().expect("it is one").check(measured, messages).is_met
        };
        assert_eq!([19_999.0, 20_000.0].map(|us| check("p99<20ms", us, 1)), [true, false]);
        assert_eq!([1000.0, 1001.0].map(|rate| check("rate>1000", rate, 1)), [false, true]);
        assert!(!check("p99<20ms", 0.0, 0));
        let checked = "mean<2s".parse::<Threshold>().expect("it is one").check(3e6, 1);
        assert_eq!(checked.to_string(), "mean<2s missed: 3000.000 ms");
    }
}
