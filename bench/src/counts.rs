//! Counts the user-space instructions per round: of the suites that run in memory, and of empty
//! turns.

use std::collections::BTreeMap;

use windlass_bench_driver::protocol::Case;

use crate::cases::{self, counted, is_counted_whole, is_counted_with_lto, size};
use crate::error::MeasureError;
use crate::limit::{Counting, time_is_over};
use crate::programs::{
    EVENT_MANAGER, RAW, TOKIO, TUNGSTENITE, TUNGSTENITE_UNTUNED, WINDLASS, WINDLASS_EVENT_MANAGER,
    WINDLASS_TASK, WINDLASS_TUNGSTENITE,
};
use crate::report::stats::Spread;
use crate::report::{Entry, Report};
use crate::timing::{Implementation, participating};
use crate::tools::instructions::{CountedCase, Tool};

/// The instructions of a round of each case, in the order of [`counted`].
struct SuiteCounts<'a> {
    implementation: &'a Implementation,
    version: String,
    /// `None` for a case that the implementation does not support.
    rounds: Vec<Option<f64>>,
}

/// Counts the instructions of these implementations, built with this profile, for a suite.
pub(crate) fn count(
    suite: &str,
    quick: bool,
    tool: Tool,
    build: &Build<'_>,
    counting: &mut Counting,
    report: &mut Report,
) {
    let mut cases = counted(suite, quick);
    cases.retain(|case| build.is_timed || is_counted_with_lto(case));
    if tool == Tool::Perf {
        // The set-up of such a round cannot be told from the round.
        cases.retain(|case| !is_counted_whole(case));
    }
    let all: Vec<CountedCase> = cases.iter().map(rounds).collect();
    let mut counts = Vec::new();
    // The rounds of a program that only copies are the workload's own cost, which is subtracted.
    let mut takes_part = participating(suite);
    for implementation in
        build.implementations.iter().filter(|c| takes_part(c) && c.program.name != "memcpy")
    {
        eprintln!(
            "{suite}/instructions {} ({}, {})",
            implementation.program.name,
            build.profile,
            tool.name()
        );
        let version = build.timed.iter().find(|c| c.program.name == implementation.program.name);
        let version = version.map(|c| c.version.clone()).unwrap_or_default();
        let counted =
            counting.next(|| tool.count(&implementation.path, implementation.backend, &all));
        let rounds = match counted {
            None => {
                report.skip(suite, "instructions", implementation.program.name, time_is_over());
                continue;
            }
            Some(Ok(rounds)) => rounds.into_iter().map(Some).collect(),
            Some(Err(MeasureError::Unsupported(_))) => {
                each_alone(tool, implementation, &all, counting, report)
            }
            Some(Err(error)) => {
                report.skip(suite, "instructions", implementation.program.name, error);
                continue;
            }
        };
        counts.push(SuiteCounts { implementation, version, rounds });
    }
    let windlass = counts.iter().find(|counts| counts.implementation.program.name == WINDLASS);
    let all = &counts;
    for (number, case) in cases.iter().enumerate() {
        let further =
            one_message(case).and_then(|one| cases.iter().position(|other| *other == one));
        for counts in &counts {
            let Some(round) = counts.rounds[number] else { continue };
            let mut metrics = metrics(case, round);
            if let Some(one) = further.and_then(|one| counts.rounds[one]) {
                let further = (round - one) / (size(case).0 - 1) as f64;
                metrics.push(("user_instructions_per_further_message".to_owned(), further));
            }
            let windlass = windlass.filter(|_| counts.implementation.program.name != WINDLASS);
            if let Some(windlass) = windlass.and_then(|windlass| windlass.rounds[number]) {
                let ratio = windlass / round;
                metrics.push(("windlass_instructions_over_this_ratio".to_owned(), ratio));
            }
            let of = |name: &str| {
                all.iter().find(|c| c.implementation.program.name == name)?.rounds[number]
            };
            let over =
                |name: &str| Some((format!("instructions_over_{name}_ratio"), round / of(name)?));
            match counts.implementation.program.name {
                name if matches!(case, Case::Kick { .. }) && name != RAW => {
                    let unit = cases::unit(case);
                    metrics.extend(of(RAW).map(|raw| {
                        (format!("over_raw_user_instructions_per_{unit}"), round - raw)
                    }));
                    let theirs = (name == WINDLASS_EVENT_MANAGER).then_some(EVENT_MANAGER);
                    metrics.extend(theirs.and_then(over));
                }
                WINDLASS_TASK => metrics.extend(over_raw_share(round, of(RAW), of(TOKIO))),
                WINDLASS_TUNGSTENITE => {
                    metrics.extend([TUNGSTENITE, TUNGSTENITE_UNTUNED].into_iter().filter_map(over));
                }
                _ => {}
            }
            report.results.push(entry(case, counts, build.profile, tool, metrics));
        }
    }
}

/// Counts each case in a run of its own, because the implementation does not support all of them.
fn each_alone(
    tool: Tool,
    implementation: &Implementation,
    all: &[CountedCase],
    counting: &mut Counting,
    report: &mut Report,
) -> Vec<Option<f64>> {
    let mut rounds = Vec::new();
    for counted in all {
        let alone = std::slice::from_ref(counted);
        let count =
            counting.next(|| tool.count(&implementation.path, implementation.backend, alone));
        let count = count.unwrap_or_else(|| Err(time_is_over())).map_err(|error| {
            let (case, name) = (cases::describe(&counted.case).0, implementation.program.name);
            report.skip(counted.case.suite(), &case, name, error);
        });
        rounds.push(count.ok().and_then(|count| count.first().copied()));
    }
    rounds
}

/// Programs built with one profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build<'a> {
    pub(crate) profile: &'static str,
    pub(crate) implementations: &'a [Implementation],
    /// The implementations that were timed, whose versions are known.
    pub(crate) timed: &'a [Implementation],
    /// This is the build that was timed.
    pub(crate) is_timed: bool,
}

impl Build<'_> {
    /// Counts a suite, if there is a tool.
    pub(crate) fn count(
        &self,
        suite: &str,
        quick: bool,
        tool: &Result<Tool, String>,
        counting: &mut Counting,
        report: &mut Report,
    ) {
        match tool {
            Ok(tool) if cases::reads_clock(suite) => {
                count(suite, quick, tool.for_clock(), self, counting, report);
            }
            Ok(tool) => count(suite, quick, *tool, self, counting, report),
            Err(reason) => {
                report.skip(suite, "instructions", "*", MeasureError::Unsupported(reason.clone()))
            }
        }
    }
}

/// How many more rounds of 16 KiB or more are counted. tungstenite fills the rest of its read
/// buffer with zeros before each read, and uses the buffer up: 128 KiB by default. So each round
/// costs less than the one before it, until the buffer begins anew. Rounds of 16 KiB use up two
/// buffers, longer ones more.
const LONG_ROUNDS: u64 = 16;

/// Chooses the numbers of rounds: enough for events that occur once in some messages, such as a new
/// buffer.
fn rounds(case: &Case) -> CountedCase {
    if matches!(case, Case::EmptyTurn { .. } | Case::ReadyTurn { .. } | Case::TurnBeside { .. }) {
        return CountedCase { case: case.clone(), few: 10, many: 20 };
    }
    if is_counted_whole(case) {
        return CountedCase { case: case.clone(), few: 1, many: 1 };
    }
    if cases::tasks::has(case) || cases::http::has(case) {
        let (few, many) = cases::tasks::rounds(case);
        return CountedCase { case: case.clone(), few, many };
    }
    if matches!(case, Case::Kick { .. }) {
        // As the cases of `dispatch`. Lists of events get their memory in the first rounds.
        return CountedCase::new(case.clone(), 1);
    }
    if matches!(case, Case::StreamWrites { .. }) {
        return CountedCase { case: case.clone(), few: 1, many: 3 };
    }
    if matches!(case.suite(), "timers" | "flow") {
        return CountedCase { case: case.clone(), few: 64, many: 192 };
    }
    if !matches!(case, Case::Echo { .. }) {
        return CountedCase { case: case.clone(), few: 1, many: 2 };
    }
    let (messages, bytes) = size(case);
    let (messages, bytes) = (messages as u64, bytes.max(1) as u64);
    let few = (1024 / bytes).clamp(1, 16 / messages.min(16));
    let more = match bytes {
        16_384.. => LONG_ROUNDS,
        _ => (4 * 1024 / bytes).clamp(1, 64 / messages.min(16)),
    };
    let many = few + more;
    CountedCase { case: case.clone(), few, many }
}

/// Returns the same case with one message per round, if it has several.
fn one_message(case: &Case) -> Option<Case> {
    match *case {
        Case::Echo { content, bytes, messages, fragments, read_bytes } if messages > 1 => {
            Some(Case::Echo { content, bytes, messages: 1, fragments, read_bytes })
        }
        _ => None,
    }
}

/// Returns how much of tokio's instructions beyond those of the hand-written loop are also there.
fn over_raw_share(round: f64, raw: Option<f64>, tokio: Option<f64>) -> Option<(String, f64)> {
    let (raw, tokio) = raw.zip(tokio)?;
    let share = (round - raw) / (tokio - raw);
    Some(("user_instructions_over_raw_share_of_tokio".to_owned(), share))
}

fn metrics(case: &Case, round: f64) -> Vec<(String, f64)> {
    let (units, bytes) = size(case);
    let mut metrics =
        vec![(format!("user_instructions_per_{}", cases::unit(case)), round / units as f64)];
    if matches!(case, Case::Unmask { .. }) {
        metrics.push(("user_instructions_per_32_bytes".to_owned(), round * 32.0 / bytes as f64));
    }
    metrics
}

fn entry(
    case: &Case,
    counts: &SuiteCounts<'_>,
    profile: &str,
    tool: Tool,
    metrics: Vec<(String, f64)>,
) -> Entry {
    let (name, mut params) = cases::describe(case);
    params.insert("profile".to_owned(), profile.into());
    params.insert("tool".to_owned(), tool.name().into());
    let metrics: BTreeMap<_, _> =
        metrics.into_iter().map(|(name, value)| (name, Spread::exact(value))).collect();
    Entry {
        suite: case.suite().to_owned(),
        case: name,
        params,
        implementation: counts.implementation.program.name.to_owned(),
        backend: cases::backend(case.suite(), counts.implementation.backend),
        version: counts.version.clone(),
        metrics,
        samples: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_driver::protocol::Content;

    #[test]
    fn short_messages_run_often_and_long_ones_for_some_buffers() {
        let rounds_of = |bytes, messages| {
            let content = Content::Binary;
            let rounds =
                rounds(&Case::Echo { content, bytes, messages, fragments: 1, read_bytes: 65_536 });
            (rounds.few, rounds.many)
        };
        assert_eq!(rounds_of(20, 1), (16, 80));
        assert_eq!(rounds_of(20, 16), (1, 5));
        assert_eq!(rounds_of(1024, 1), (1, 5));
        assert_eq!(rounds_of(1024, 16), (1, 17));
        assert_eq!(rounds_of(71_680, 1), (1, 17));
    }

    #[test]
    fn a_share_is_of_what_tokio_has_beyond_the_hand_written_loop() {
        let share = over_raw_share(130.0, Some(100.0), Some(160.0)).unwrap();
        assert_eq!(share.1, 0.5);
        assert_eq!(over_raw_share(130.0, Some(100.0), None), None);
    }

    #[test]
    fn unmasking_is_counted_by_32_bytes() {
        let metrics = metrics(&Case::Unmask { bytes: 1024, offset: 8 }, 64.0);
        assert_eq!(metrics[0], ("user_instructions_per_call".to_owned(), 64.0));
        assert_eq!(metrics[1], ("user_instructions_per_32_bytes".to_owned(), 2.0));
    }
}
