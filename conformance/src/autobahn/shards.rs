//! Distributes the cases over several processes of the suite.

use super::cases::CaseId;

/// Splits `cases` into at most `count` parts of about the same weight, the heaviest part first.
/// Each case is in one part; no part is empty.
pub(super) fn split(cases: &[CaseId], count: usize) -> Vec<Vec<CaseId>> {
    let mut by_weight: Vec<&CaseId> = cases.iter().collect();
    by_weight.sort_by_key(|case| std::cmp::Reverse(case.weight()));
    let mut parts: Vec<(u64, Vec<CaseId>)> = vec![(0, Vec::new()); count.max(1)];
    for case in by_weight {
        let lightest =
            parts.iter_mut().min_by_key(|(weight, _)| *weight).expect("there is at least one part");
        lightest.0 += case.weight();
        lightest.1.push(case.clone());
    }
    parts.retain(|(_, cases)| !cases.is_empty());
    parts.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    let in_order = |(_, mut cases): (u64, Vec<CaseId>)| {
        cases.sort();
        cases
    };
    parts.into_iter().map(in_order).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn every_case_is_in_exactly_one_part() {
        let all = cases::all();
        for count in [1, 2, 7, 16, 600] {
            let parts = split(&all, count);
            assert_eq!(parts.len(), count.min(all.len()));
            let mut together: Vec<CaseId> = parts.concat();
            together.sort();
            assert_eq!(together, all);
        }
    }

    #[test]
    fn the_parts_weigh_about_the_same() {
        let parts = split(&cases::all(), 8);
        let weight = |part: &Vec<CaseId>| part.iter().map(CaseId::weight).sum::<u64>();
        let weights: Vec<u64> = parts.iter().map(weight).collect();
        assert!(weights.is_sorted_by(|a, b| a >= b), "{weights:?}");
        assert!(weights[0] * 9 < weights[7] * 10, "{weights:?}");
    }

    #[test]
    fn nothing_makes_no_part() {
        assert!(split(&[], 4).is_empty());
        assert_eq!(split(&cases::all()[..1], 0).len(), 1);
    }
}
