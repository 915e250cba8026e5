//! The cases of the suite, by name.

use std::{fmt, str::FromStr};

/// The name of a case, such as `2.1` or `12.5.18`. Names are ordered by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CaseId(Vec<u16>);

impl CaseId {
    /// The first number, the group of the case.
    pub(super) fn group(&self) -> u16 {
        self.0[0]
    }

    /// Returns whether the suite accepts any behaviour. It reports such cases as INFORMATIONAL.
    pub(super) fn is_informational(&self) -> bool {
        INFORMATIONAL.contains(&self.0.as_slice())
    }

    /// Returns an estimate of the duration, from the volume of data, to distribute the cases.
    pub(super) fn weight(&self) -> u64 {
        match *self.0.as_slice() {
            [12 | 13, _, number] => {
                10 + COMPRESSED_SIZES_KIB.get(usize::from(number) - 1).map_or(0, |size| size * 20)
            }
            [9, 1..=6, _] => 60,
            [9, _, _] => 20,
            _ => 4,
        }
    }
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if index == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

impl FromStr for CaseId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let numbers: Result<Vec<u16>, _> = text.split('.').map(str::parse).collect();
        match numbers {
            Ok(numbers) if (2..=3).contains(&numbers.len()) => Ok(Self(numbers)),
            _ => anyhow::bail!("`{text}` is no name of a case"),
        }
    }
}

/// Message size of the cases 12.*.N and 13.*.N, each of which sends a thousand messages.
const COMPRESSED_SIZES_KIB: [u64; 18] =
    [0, 0, 0, 1, 4, 8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 128, 128, 128];

const INFORMATIONAL: [&[u16]; 3] = [&[7, 1, 6], &[7, 13, 1], &[7, 13, 2]];

/// The groups, with the number of cases of each in release 25.10.1.
const GROUPS: &[(&[u16], u16)] = &[
    // Echoes of each length; pings and pongs; reserved bits and opcodes.
    (&[1, 1], 8),
    (&[1, 2], 8),
    (&[2], 11),
    (&[3], 7),
    (&[4, 1], 5),
    (&[4, 2], 5),
    // Fragments.
    (&[5], 20),
    // UTF-8.
    (&[6, 1], 3),
    (&[6, 2], 4),
    (&[6, 3], 2),
    (&[6, 4], 4),
    (&[6, 5], 5),
    (&[6, 6], 11),
    (&[6, 7], 4),
    (&[6, 8], 2),
    (&[6, 9], 4),
    (&[6, 10], 3),
    (&[6, 11], 5),
    (&[6, 12], 8),
    (&[6, 13], 5),
    (&[6, 14], 10),
    (&[6, 15], 1),
    (&[6, 16], 3),
    (&[6, 17], 5),
    (&[6, 18], 5),
    (&[6, 19], 5),
    (&[6, 20], 7),
    (&[6, 21], 8),
    (&[6, 22], 34),
    (&[6, 23], 7),
    // The close handshake.
    (&[7, 1], 6),
    (&[7, 3], 6),
    (&[7, 5], 1),
    (&[7, 7], 13),
    (&[7, 9], 9),
    (&[7, 13], 2),
    // Volume: large messages, small fragments and small writes.
    (&[9, 1], 6),
    (&[9, 2], 6),
    (&[9, 3], 9),
    (&[9, 4], 9),
    (&[9, 5], 6),
    (&[9, 6], 6),
    (&[9, 7], 6),
    (&[9, 8], 6),
    // Automatic fragmentation.
    (&[10, 1], 1),
    // permessage-deflate: five kinds of data, then seven offers of parameters.
    (&[12, 1], 18),
    (&[12, 2], 18),
    (&[12, 3], 18),
    (&[12, 4], 18),
    (&[12, 5], 18),
    (&[13, 1], 18),
    (&[13, 2], 18),
    (&[13, 3], 18),
    (&[13, 4], 18),
    (&[13, 5], 18),
    (&[13, 6], 18),
    (&[13, 7], 18),
];

/// The cases of the long groups for `--quick`: of group 9 one of each subgroup, the largest
/// messages and the most fragments; of group 12 each kind of data, and of group 13 each set of
/// parameters, both in one frame and in fragments.
const SAMPLE: &[&[u16]] = &[
    &[9, 1, 3],
    &[9, 1, 6],
    &[9, 2, 3],
    &[9, 2, 6],
    &[9, 3, 1],
    &[9, 3, 5],
    &[9, 4, 1],
    &[9, 4, 5],
    &[9, 5, 4],
    &[9, 6, 4],
    &[9, 7, 4],
    &[9, 8, 4],
    &[12, 1, 1],
    &[12, 1, 11],
    &[12, 2, 5],
    &[12, 3, 4],
    &[12, 4, 6],
    &[12, 5, 12],
    &[13, 1, 3],
    &[13, 1, 11],
    &[13, 2, 4],
    &[13, 2, 11],
    &[13, 3, 5],
    &[13, 3, 11],
    &[13, 4, 4],
    &[13, 4, 11],
    &[13, 5, 5],
    &[13, 5, 11],
    &[13, 6, 4],
    &[13, 6, 11],
    &[13, 7, 5],
    &[13, 7, 11],
];

/// Returns all cases.
pub(super) fn all() -> Vec<CaseId> {
    let cases_of = |(group, count): &(&[u16], u16)| {
        let group = group.to_vec();
        (1..=*count).map(move |number| CaseId([group.as_slice(), &[number]].concat()))
    };
    GROUPS.iter().flat_map(cases_of).collect()
}

/// Returns the cases of a short run.
pub(super) fn quick() -> Vec<CaseId> {
    let is_short =
        |case: &CaseId| !matches!(case.group(), 9 | 12 | 13) || SAMPLE.contains(&case.0.as_slice());
    all().into_iter().filter(is_short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn id(text: &str) -> CaseId {
        text.parse().expect("a name")
    }

    #[test]
    fn there_are_517_and_none_is_twice() {
        let cases = all();
        assert_eq!(cases.len(), 517);
        assert_eq!(cases.iter().collect::<BTreeSet<_>>().len(), 517);
        let in_groups =
            |groups: &[u16]| cases.iter().filter(|case| groups.contains(&case.group())).count();
        assert_eq!(in_groups(&[1, 2, 3, 4, 5, 6, 7, 10]), 247);
        assert_eq!(in_groups(&[9]), 54);
        assert_eq!(in_groups(&[12, 13]), 216);
    }

    #[test]
    fn a_short_run_has_all_that_is_short_and_the_whole_sample() {
        let cases = quick();
        assert_eq!(cases.len(), 247 + SAMPLE.len());
        for number in 1..=5 {
            assert!(cases.iter().any(|case| case.0.starts_with(&[12, number])));
        }
        for number in 1..=7 {
            assert!(cases.iter().any(|case| case.0.starts_with(&[13, number])));
        }
    }

    #[test]
    fn names_are_ordered_by_number_and_read_as_they_are_written() {
        assert!(id("9.1.6") < id("10.1.1"));
        assert!(id("12.1.2") < id("12.1.10"));
        for case in all() {
            assert_eq!(id(&case.to_string()), case);
        }
        for wrong in ["", "1", "1.2.3.4", "1.x", "1..2", "a"] {
            assert!(wrong.parse::<CaseId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_three_are_informational() {
        let informational = all().into_iter().filter(CaseId::is_informational).count();
        assert_eq!(informational, 3);
    }

    #[test]
    fn every_case_weighs_something() {
        assert!(all().iter().all(|case| case.weight() > 0));
        assert!(id("12.1.10").weight() > id("12.1.1").weight());
    }
}
