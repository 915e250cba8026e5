//! A strict parser of Prometheus' text format 0.0.4. It rejects text that Prometheus would accept
//! but `promtool check metrics` complains about.

use std::collections::{BTreeMap, BTreeSet};

/// The samples of a text by their series, such as `windlass_topics` or `a_total{b="c"}`.
#[derive(Clone, Debug)]
pub struct Exposition {
    samples: BTreeMap<String, f64>,
    /// The families with their types.
    families: BTreeMap<String, String>,
}

impl Exposition {
    /// Parses a text.
    ///
    /// # Panics
    /// At the first error.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has an end");
        let (mut samples, mut families) = (BTreeMap::new(), BTreeMap::new());
        let mut all_series = BTreeSet::new();
        let mut help: Option<&str> = None;
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, words) = rest.split_once(' ').expect("HELP has a text");
                assert!(words.len() > 10 && words.ends_with('.'), "{line}");
                help = Some(name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("TYPE has a type");
                assert_eq!(help.take(), Some(name), "HELP comes before TYPE: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                check_name(name);
                let before = families.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "one family in one place: {line}");
                name.clone_into(&mut current);
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
                let (name, labels) = check_series(series);
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| name.strip_suffix(suffix))
                    .filter(|name| families.get(*name).is_some_and(|kind| kind == "histogram"))
                    .unwrap_or(name);
                assert_eq!(family, current, "samples follow their family: {line}");
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(value >= 0.0 && value.is_finite(), "{line}");
                // The order of the labels does not matter.
                assert!(all_series.insert((name, labels)), "once: {line}");
                samples.insert(series.to_owned(), value);
            }
        }
        let exposition = Self { samples, families };
        exposition.check_histograms();
        exposition
    }

    /// The names of all families.
    pub fn families(&self) -> BTreeSet<&str> {
        self.families.keys().map(String::as_str).collect()
    }

    /// The value of a series, which must exist. The prefix `windlass_` is left out.
    #[track_caller]
    pub fn get(&self, series: &str) -> u64 {
        let value = self.samples.get(&format!("windlass_{series}"));
        let value = *value.unwrap_or_else(|| panic!("there is no {series}"));
        assert!(value.fract() == 0.0, "{series} {value}");
        value as u64
    }

    /// The sum of all series of a name. The prefix `windlass_` is left out.
    #[track_caller]
    pub fn sum(&self, name: &str) -> u64 {
        let name = format!("windlass_{name}");
        let of_name = |series: &str| series.split('{').next() == Some(name.as_str());
        let mut values = self.samples.iter().filter(|(series, _)| of_name(series)).peekable();
        assert!(values.peek().is_some(), "there is no {name}");
        values.map(|(_, value)| *value as u64).sum()
    }

    /// Checks that no counter is lower than before.
    #[track_caller]
    pub fn assert_not_before(&self, before: &Self) {
        for (series, value) in &before.samples {
            let name = series.split('{').next().unwrap_or_default();
            if self.families.get(name).is_some_and(|kind| kind == "counter") {
                assert!(self.samples[series] >= *value, "{series} went back");
            }
        }
    }

    /// Buckets are cumulative, and the last one equals the count.
    fn check_histograms(&self) {
        for (name, _) in self.families.iter().filter(|(_, kind)| *kind == "histogram") {
            let counts =
                self.samples.keys().filter(|key| key.starts_with(&format!("{name}_count")));
            for count in counts.collect::<Vec<_>>() {
                let labels = count
                    .strip_prefix(&format!("{name}_count"))
                    .map(|labels| labels.trim_matches(['{', '}']))
                    .unwrap_or_default();
                let start = match labels {
                    "" => format!("{name}_bucket{{le=\""),
                    _ => format!("{name}_bucket{{{labels},le=\""),
                };
                let bucket = |(series, value): (&String, &f64)| {
                    let bound = series.strip_prefix(&start)?.strip_suffix("\"}")?;
                    let bound =
                        if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
                    Some((bound, *value))
                };
                let mut buckets: Vec<_> = self.samples.iter().filter_map(bucket).collect();
                buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
                assert!(buckets.len() > 2 && buckets.is_sorted_by_key(|(_, value)| *value));
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, self.samples[count])));
                assert!(self.samples.contains_key(&count.replacen("_count", "_sum", 1)));
            }
        }
    }
}

fn check_name(name: &str) {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_ours = name.starts_with("windlass_") || name.starts_with("process_");
    assert!(is_ours && name.bytes().all(is_valid), "{name}");
}

/// Checks the name and the labels of a series. Returns the name and the sorted labels.
fn check_series(series: &str) -> (&str, BTreeMap<&str, &str>) {
    let mut labels = BTreeMap::new();
    let Some((name, mut rest)) = series.split_once('{') else {
        check_name(series);
        return (series, labels);
    };
    check_name(name);
    loop {
        let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{series}"));
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        assert!(!label.is_empty() && label.bytes().all(is_valid), "{series}");
        let end = value_end(value).unwrap_or_else(|| panic!("{series}"));
        // An empty value is the same as no label.
        assert!(end > 0, "{series}");
        assert_eq!(labels.insert(label, &value[..end]), None, "{series}");
        rest = &value[end + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => break,
        }
    }
    assert_eq!(rest, "}", "{series}");
    (name, labels)
}

/// Returns the place of the quote that ends a label's value. `None` if there is none, or if there
/// is an escape other than those of a backslash, a quote and a line feed.
fn value_end(value: &str) -> Option<usize> {
    let mut bytes = value.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at),
            b'\\' => _ = bytes.next().filter(|(_, next)| b"\\\"n".contains(next))?,
            _ => {}
        }
    }
    None
}
