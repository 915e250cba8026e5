//! Compares counts with the recorded ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::list::{Count, List, RECORD, Row, rounded};

/// How far a count may be over the recorded one.
const OVER_MAX: f64 = 0.03;

/// How far two counts of a row may differ if it is steady.
const STEADY_MAX: f64 = 0.01;

/// A count that is this near to another is the same: a rare call in many rounds.
const SAME: f64 = 0.001;

/// The counts of one run.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) rows: BTreeMap<Row, f64>,
    pub(super) skipped: Vec<Skip>,
}

/// A measurement that `windlass-bench` has skipped.
#[derive(Debug)]
pub(super) struct Skip {
    suite: String,
    case: String,
    implementation: String,
    reason: String,
}

impl Measured {
    /// Takes the counts out of a report of `windlass-bench`, whose format `bench/README.md`
    /// describes.
    pub(super) fn of(report: &Value) -> Self {
        let list = |name: &str| report[name].as_array().map_or(&[][..], Vec::as_slice);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut measured = Self::default();
        for result in list("results") {
            let metrics = result["metrics"].as_object().into_iter().flatten();
            for (metric, spread) in metrics.filter(|(metric, _)| is_count(metric)) {
                let row = Row {
                    suite: text(&result["suite"]),
                    case: text(&result["case"]),
                    params: params(&result["params"]),
                    implementation: text(&result["impl"]),
                    backend: text(&result["backend"]),
                    metric: metric.clone(),
                };
                let count = spread["median"].as_f64().unwrap_or(f64::NAN);
                measured.rows.insert(row, count);
            }
        }
        measured.skipped = list("skipped")
            .iter()
            .map(|skip| Skip {
                suite: text(&skip["suite"]),
                case: text(&skip["case"]),
                implementation: text(&skip["impl"]),
                reason: text(&skip["reason"]),
            })
            .collect();
        measured
    }

    /// Takes the smaller count of this run and of another one.
    pub(super) fn take_smaller(&mut self, again: Self) {
        for (row, count) in again.rows {
            self.rows.entry(row).and_modify(|first| *first = first.min(count)).or_insert(count);
        }
        self.skipped.extend(again.skipped);
    }

    /// The measurements that failed.
    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.skipped.iter().filter(|skip| skip.reason.starts_with("failed"));
        let text = |skip: &Skip| {
            let Skip { suite, case, implementation, reason } = skip;
            format!("{suite}/{case} {implementation}: {reason}")
        };
        failed.map(text).collect()
    }

    /// Why this row could not be measured here.
    fn reason_without(&self, row: &Row) -> Option<String> {
        let with_another_tool = self.rows.keys().find(|other| {
            other.param("tool") != row.param("tool") && other.without_tool() == row.without_tool()
        });
        if let Some(other) = with_another_tool {
            let tool = |row: &Row| row.param("tool").unwrap_or("no tool").to_owned();
            return Some(format!("recorded with {}, here {} counts", tool(row), tool(other)));
        }
        let skipped = self.skipped.iter().find(|skip| skip.is_about(row));
        skipped.map(|skip| skip.reason.clone())
    }
}

impl Skip {
    /// Whether it is the reason why a row is missing. A case that windlass itself cannot run is one
    /// that needs another backend than epoll.
    fn is_about(&self, row: &Row) -> bool {
        let counts = match row.param("tool") {
            None => "allocations",
            Some("strace") => "system_calls",
            Some(_) => "instructions",
        };
        let is_other_backend = !matches!(&*row.backend, "epoll" | "memory");
        !self.reason.starts_with("failed")
            && self.suite == row.suite
            && (self.case == "*" || self.case == row.case || self.case == counts)
            && (self.implementation == "*"
                || (self.implementation == row.implementation && is_other_backend))
    }
}

/// Whether the metric is a count. The others are times, ratios and the quality of a fit.
fn is_count(metric: &str) -> bool {
    let known = [
        "instructions_per",
        "syscalls_per",
        "_calls_per",
        "allocations_per",
        "sends_per",
        "would_block_per",
        "bytes",
    ];
    let is_known = known.iter().any(|part| metric.contains(part));
    is_known && !metric.ends_with("_ratio") && !metric.starts_with("over_raw")
}

fn params(params: &Value) -> String {
    let params = params.as_object().into_iter().flatten();
    let param = |(name, value): (&String, &Value)| match value {
        Value::String(value) => format!("{name}={value}"),
        value => format!("{name}={value}"),
    };
    params.map(param).collect::<Vec<_>>().join(" ")
}

/// The result of a row.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Passed,
    /// The count is much lower than the recorded one. The text is the hint to record it.
    Better(String),
    Failed(String),
    /// The row could not be measured here.
    Skipped(String),
}

/// Compares all recorded and all measured rows.
pub(super) fn compare(recorded: &List, measured: &Measured) -> BTreeMap<Row, Verdict> {
    let mut verdicts = BTreeMap::new();
    for (row, count) in &recorded.rows {
        let verdict = match (count, measured.rows.get(row)) {
            (Count::Steady(before), Some(now)) => judge(row, *before, *now),
            (Count::Varying(..), Some(_)) => Verdict::Passed,
            (_, None) => match measured.reason_without(row) {
                Some(reason) => Verdict::Skipped(reason),
                None => Verdict::Failed(format!(
                    "{row} is missing: restore its measurement, or run `{RECORD}`"
                )),
            },
        };
        verdicts.insert(row.clone(), verdict);
    }
    for row in measured.rows.keys().filter(|row| !recorded.rows.contains_key(row)) {
        let is_recorded = |other: &Row| other.without_tool() == row.without_tool();
        if !recorded.rows.keys().any(is_recorded) {
            let failure =
                format!("{row} has no recorded count{}: run `{RECORD}`", instead(row, recorded));
            verdicts.insert(row.clone(), Verdict::Failed(failure));
        }
    }
    verdicts
}

/// Tells which calls are recorded where another one was counted.
fn instead(row: &Row, recorded: &List) -> String {
    let call = |row: &Row| row.metric.split_once("_calls_per_").map(|(call, _)| call.to_owned());
    if call(row).is_none() {
        return String::new();
    }
    let in_this_case =
        |other: &&Row| Row { metric: row.metric.clone(), ..(*other).clone() } == *row;
    let calls: Vec<String> = recorded.rows.keys().filter(in_this_case).filter_map(call).collect();
    if calls.is_empty() { String::new() } else { format!("; recorded is {}", calls.join(", ")) }
}

/// The suites with counts that are over the recorded ones. The schedule can raise a count, so they
/// are measured again.
pub(super) fn over(recorded: &List, measured: &Measured) -> BTreeSet<String> {
    let is_over = |(row, count): &(&Row, &f64)| {
        matches!(recorded.rows.get(row), Some(Count::Steady(before))
            if matches!(judge(row, *before, **count), Verdict::Failed(_)))
    };
    measured.rows.iter().filter(is_over).map(|(row, _)| row.suite.clone()).collect()
}

/// Compares a count with the recorded one.
fn judge(row: &Row, before: f64, now: f64) -> Verdict {
    let (old, new) = (rounded(before), rounded(now));
    let percent = (now / before - 1.0) * 100.0;
    // Comparisons with NaN are false, so that it fails.
    if now <= before + tolerance(row, before) {
        if now >= before - tolerance(row, before) {
            return Verdict::Passed;
        }
        return Verdict::Better(format!("{row} is {new}, recorded were {old}: run `{RECORD}`"));
    }
    let over =
        if before == 0.0 { String::new() } else { format!(", which is {percent:.1} % over") };
    Verdict::Failed(format!(
        "{row} is {new}, recorded were {old}{over}: find the cause, or run `{RECORD}`"
    ))
}

/// How far a count may be from the recorded one. Small counts may differ by one instruction.
fn tolerance(row: &Row, count: f64) -> f64 {
    let least = if row.metric.contains("instructions") { 1.0 } else { SAME };
    // Less than the rounding of the list.
    (count * OVER_MAX).max(least) + 1e-4
}

/// The list of two runs. If a row varies by more than a comparison allows, the same metric of other
/// parameters varies too, even if its two counts happen to agree. Other implementations do not.
pub(super) fn record(one: &Measured, other: &Measured) -> BTreeMap<Row, Count> {
    // A row that is missing in one run varies.
    let both = |row: &Row, first: f64| (first, other.rows.get(row).copied().unwrap_or(0.0));
    let differs = |(first, second): (f64, f64), share: f64| {
        (first - second).abs() > (share * first.max(second)).max(SAME)
    };
    let family = |row: &Row| {
        [&row.suite, &row.case, &row.implementation, &row.backend, &row.metric].map(String::clone)
    };
    let wild: BTreeSet<[String; 5]> = one
        .rows
        .iter()
        .filter(|(row, first)| differs(both(row, **first), OVER_MAX))
        .map(|(row, _)| family(row))
        .collect();
    let count = |(row, &first): (&Row, &f64)| {
        let (first, second) = both(row, first);
        let varies = wild.contains(&family(row)) || differs((first, second), STEADY_MAX);
        let steady = Count::Steady(first.max(second));
        (row.clone(), if varies { Count::Varying(first, second) } else { steady })
    };
    one.rows.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::row;
    use super::*;
    use serde_json::json;

    fn list(rows: &[(&str, f64)]) -> List {
        let steady = |(params, count): &(&str, f64)| (row(params), Count::Steady(*count));
        List { rows: rows.iter().map(steady).collect(), ..List::default() }
    }

    fn measured(rows: &[(&str, f64)]) -> Measured {
        let rows = rows.iter().map(|(params, count)| (row(params), *count)).collect();
        Measured { rows, skipped: Vec::new() }
    }

    fn verdict(before: f64, now: f64) -> Verdict {
        compare(&list(&[("", before)]), &measured(&[("", now)])).remove(&row("")).expect("it is")
    }

    #[test]
    fn more_than_three_percent_over_fails_with_both_numbers() {
        assert_eq!(verdict(1000.0, 1030.0), Verdict::Passed);
        let Verdict::Failed(text) = verdict(1000.0, 1031.0) else { panic!("it passed") };
        let expected = "dispatch/one_ready  windlass on epoll: user_instructions_per_event is \
                        1031, recorded were 1000, which is 3.1 % over: find the cause, or run \
                        `cargo xtask counts --record`";
        assert_eq!(text, expected);
        assert!(matches!(verdict(1000.0, f64::NAN), Verdict::Failed(_)));
    }

    #[test]
    fn a_small_count_may_grow_by_one_instruction() {
        assert_eq!(verdict(12.0, 13.0), Verdict::Passed);
        assert!(matches!(verdict(12.0, 13.5), Verdict::Failed(_)));
    }

    #[test]
    fn an_allocation_where_none_was_fails() {
        let none = Row { metric: "allocations_per_event".to_owned(), ..row("") };
        assert_eq!(judge(&none, 0.0, 0.0005), Verdict::Passed);
        let Verdict::Failed(text) = judge(&none, 0.0, 0.016) else { panic!("it passed") };
        assert!(text.contains("is 0.016, recorded were 0: find"), "{text}");
    }

    #[test]
    fn a_better_count_is_reported_and_does_not_fail() {
        let Verdict::Better(text) = verdict(1000.0, 960.0) else { panic!("it is not better") };
        assert!(text.ends_with("is 960, recorded were 1000: run `cargo xtask counts --record`"));
    }

    #[test]
    fn a_row_that_is_gone_or_new_fails() {
        let verdicts = compare(&list(&[("a=1", 5.0)]), &measured(&[("a=2", 5.0)]));
        let failed = |params: &str, text: &str| match &verdicts[&row(params)] {
            Verdict::Failed(failure) => failure.contains(text),
            _ => false,
        };
        assert!(failed("a=1", "is missing") && failed("a=2", "has no recorded count"));
    }

    #[test]
    fn another_system_call_fails_even_if_there_are_as_many() {
        let wait = |call: &str| Row { metric: format!("{call}_calls_per_turn"), ..row("") };
        let recorded =
            List { rows: [(wait("epoll_wait"), Count::Steady(1.0))].into(), ..list(&[]) };
        let counted = |call| Measured { rows: [(wait(call), 1.0)].into(), skipped: Vec::new() };
        let verdicts = compare(&recorded, &counted("epoll_wait"));
        assert_eq!(verdicts[&wait("epoll_wait")], Verdict::Passed);
        let verdicts = compare(&recorded, &counted("epoll_pwait2"));
        assert!(matches!(&verdicts[&wait("epoll_wait")], Verdict::Failed(_)), "it is missing");
        let Verdict::Failed(text) = &verdicts[&wait("epoll_pwait2")] else { panic!("it passed") };
        let expected = "dispatch/one_ready  windlass on epoll: epoll_pwait2_calls_per_turn has no \
                        recorded count; recorded is epoll_wait: run `cargo xtask counts --record`";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_varying_row_is_not_compared_but_must_exist() {
        let mut varying = list(&[]);
        varying.rows.insert(row(""), Count::Varying(5.0, 9.0));
        assert_eq!(compare(&varying, &measured(&[("", 99.0)]))[&row("")], Verdict::Passed);
        assert!(matches!(compare(&varying, &measured(&[]))[&row("")], Verdict::Failed(_)));
    }

    #[test]
    fn a_row_counted_by_another_tool_is_skipped() {
        let recorded = list(&[("a=1 tool=singlestep", 50.0)]);
        let verdicts = compare(&recorded, &measured(&[("a=1 tool=callgrind", 136.0)]));
        assert_eq!(verdicts.len(), 1);
        let reason = "recorded with singlestep, here callgrind counts".to_owned();
        assert_eq!(verdicts[&row("a=1 tool=singlestep")], Verdict::Skipped(reason));
    }

    #[test]
    fn what_the_machine_lacks_is_skipped_with_the_reason() {
        let recorded = list(&[("tool=strace", 1.0), ("tool=singlestep", 50.0)]);
        let skip = |case: &str, implementation: &str, reason: &str| {
            let report = json!({"skipped": [{"suite": "dispatch", "case": case,
                                             "impl": implementation, "reason": reason}]});
            compare(&recorded, &Measured::of(&report))
        };
        let verdicts = skip("system_calls", "*", "strace is not installed");
        let reason = Verdict::Skipped("strace is not installed".to_owned());
        assert_eq!(verdicts[&row("tool=strace")], reason);
        assert!(matches!(verdicts[&row("tool=singlestep")], Verdict::Failed(_)));
        for (implementation, reason) in [("windlass", "no rings"), ("*", "failed: crashed")] {
            let verdicts = skip("system_calls", implementation, reason);
            assert!(matches!(verdicts[&row("tool=strace")], Verdict::Failed(_)), "epoll is there");
        }
    }

    #[test]
    fn a_report_is_read_without_times_and_ratios() {
        let spread = |count: f64| json!({"median": count, "low": count, "high": count});
        let report = json!({
            "results": [{
                "suite": "dispatch", "case": "one_ready", "impl": "windlass", "backend": "epoll",
                "params": {"registered": 400, "tool": "singlestep"},
                "metrics": {
                    "user_instructions_per_event": spread(58.0), "ns_per_event": spread(400.0),
                    "fit_residual_max_instructions": spread(1.0),
                    "over_raw_user_instructions_per_event": spread(27.0),
                    "windlass_instructions_over_this_ratio": spread(1.0),
                },
            }],
            "skipped": [{"suite": "s", "case": "c", "impl": "i", "reason": "failed: it crashed"}],
        });
        let measured = Measured::of(&report);
        let expected = row("registered=400 tool=singlestep");
        assert_eq!(measured.rows, [(expected, 58.0)].into());
        assert_eq!(measured.failures(), ["s/c i: failed: it crashed"]);
    }

    #[test]
    fn two_runs_show_which_rows_are_steady() {
        let one = measured(&[("a=1", 100.0), ("a=2", 100.0)]);
        let other = measured(&[("a=1", 101.0), ("a=2", 102.0)]);
        let rows = record(&one, &other);
        assert_eq!(rows[&row("a=1")], Count::Steady(101.0));
        assert_eq!(rows[&row("a=2")], Count::Varying(100.0, 102.0));
    }

    #[test]
    fn a_row_that_varies_much_condemns_its_family() {
        let mut one = measured(&[("a=1", 0.013), ("a=2", 1.0), ("a=3", 1.0)]);
        let other = Row { backend: "uring".to_owned(), ..row("a=1") };
        one.rows.insert(other.clone(), 5.0);
        let beside = Row { implementation: "beside".to_owned(), ..row("a=1") };
        one.rows.insert(beside.clone(), 5.0);
        let mut second = measured(&[("a=1", 0.079), ("a=2", 1.0)]);
        second.rows.insert(other.clone(), 5.0);
        second.rows.insert(beside.clone(), 5.0);
        let rows = record(&one, &second);
        assert_eq!(rows[&row("a=2")], Count::Varying(1.0, 1.0));
        assert_eq!(rows[&row("a=3")], Count::Varying(1.0, 0.0), "it is missing in one run");
        assert_eq!(rows[&other], Count::Steady(5.0));
        assert_eq!(rows[&beside], Count::Steady(5.0));
    }

    #[test]
    fn a_count_that_is_over_is_measured_again_and_the_smaller_one_counts() {
        let recorded = list(&[("a=1", 100.0), ("a=2", 100.0)]);
        let mut first = measured(&[("a=1", 110.0), ("a=2", 100.0)]);
        assert_eq!(over(&recorded, &first), ["dispatch".to_owned()].into());
        first.take_smaller(measured(&[("a=1", 101.0), ("a=2", 109.0)]));
        assert_eq!(first.rows[&row("a=1")], 101.0);
        assert_eq!(first.rows[&row("a=2")], 100.0);
        assert!(over(&recorded, &first).is_empty());
    }
}
