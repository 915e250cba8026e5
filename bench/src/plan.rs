//! The suites and their cases.

use std::collections::BTreeMap;

use clap::builder::PossibleValuesParser;
use serde_json::Value;
use windlass_bench_driver::protocol::{Case, Trigger};

/// All suites, in the order in which they run.
pub(crate) const SUITES: &[&str] = &["dispatch", "timers"];

pub(crate) fn suite_names() -> PossibleValuesParser {
    PossibleValuesParser::new(SUITES)
}

/// The timed cases of a suite.
pub(crate) fn cases(suite: &str, quick: bool) -> Vec<Case> {
    match suite {
        "dispatch" => dispatch(quick),
        _ => timers(quick),
    }
}

fn dispatch(quick: bool) -> Vec<Case> {
    let one: &[usize] = if quick { &[1, 1_000, 10_000] } else { &[1, 10, 100, 1_000, 10_000] };
    let all: &[usize] = if quick { &[16, 1_024] } else { &[16, 64, 256, 1_024] };
    let devices: &[usize] = if quick { &[100] } else { &[100, 1_000] };
    let mut cases = Vec::new();
    for trigger in [Trigger::Edge, Trigger::Level] {
        cases.extend(one.iter().map(|&registered| Case::OneReady { registered, trigger }));
        cases.extend(all.iter().map(|&registered| Case::AllReady { registered, trigger }));
        cases.extend(devices.iter().map(|&subscribers| Case::FourFds { subscribers, trigger }));
    }
    cases.push(Case::EightTypes { registered: 256, ready: 64 });
    cases.push(Case::RegisterDelete { registered: 1_000 });
    cases.push(Case::RegistrationMemory { registered: 10_000 });
    cases
}

fn timers(quick: bool) -> Vec<Case> {
    let many = if quick { 100_000 } else { 1_000_000 };
    vec![
        Case::InsertCancel { alive: 1_000 },
        Case::InsertCancel { alive: 1_000_000 },
        Case::Reset { alive: 1_000_000 },
        Case::Insert { count: many },
        Case::Fire { count: many },
        Case::Every { period_ns: 1 },
    ]
}

/// Name and parameters of a case, as the report has them.
pub(crate) fn describe(case: &Case) -> (String, BTreeMap<String, Value>) {
    let Ok(Value::Object(fields)) = serde_json::to_value(case) else {
        unreachable!("a case is an object in JSON");
    };
    let mut params: BTreeMap<String, Value> = fields.into_iter().collect();
    let name = params.remove("case").and_then(|name| name.as_str().map(str::to_owned));
    (name.unwrap_or_default(), params)
}

/// What one unit of a case is, as the last word of its metrics' names.
pub(crate) fn unit(case: &Case) -> &'static str {
    match case {
        Case::OneReady { .. } | Case::AllReady { .. } | Case::FourFds { .. } | Case::EightTypes { .. } => "event",
        Case::RegisterDelete { .. } | Case::InsertCancel { .. } => "pair",
        Case::RegistrationMemory { .. } => "registration",
        Case::Insert { .. } => "timer",
        Case::Fire { .. } | Case::Every { .. } => "firing",
        Case::Reset { .. } => "reset",
    }
}

/// True if the time of the case means something; memory cases only count.
pub(crate) fn is_timed(case: &Case) -> bool {
    !matches!(case, Case::RegistrationMemory { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_measures_a_part_of_the_full_one() {
        for suite in SUITES {
            assert!(cases(suite, true).len() < cases(suite, false).len() || *suite == "timers");
            assert!(cases(suite, false).iter().all(|case| case.suite() == *suite));
        }
    }

    #[test]
    fn a_case_is_described_by_its_fields() {
        let (name, params) = describe(&Case::AllReady { registered: 16, trigger: Trigger::Edge });
        assert_eq!(name, "all_ready");
        assert_eq!(params["registered"], 16);
        assert_eq!(params["trigger"], "edge");
    }
}
