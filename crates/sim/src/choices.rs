//! All choices of a simulation, from a seed or from a recorded list.
//!
//! 1. A choice is a number below a bound, and zero is the simplest outcome: no fault, no delay.
//! 2. Each [`Track`] has a generator and a list of its own. To remove a fault from a list does not
//!    shift the choices of the scheduler.
//! 3. A replayed choice is the recorded number, cut to the bound; after the end of the list it is
//!    zero. So every list can be replayed, also one that was shortened.
//! 4. A choice without an alternative takes no number.
//! 5. Distinct numbers are those of a counter, hashed. Only its beginning is a choice, and
//!    shrinking does not touch it: what was different stays different.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The kinds of choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Track {
    /// The task that runs next.
    Schedule,
    /// Latencies, delays and sizes of buffers.
    Time,
    /// Whether a fault happens.
    Fault,
    /// The choices of the test.
    Workload,
    /// The beginning of the distinct numbers.
    Identity,
}

/// The number of tracks.
pub(crate) const TRACKS: usize = 5;

/// Their names in a [`Case`], in the order of [`Track`].
const NAMES: [&str; TRACKS] = ["schedule", "time", "fault", "workload", "identity"];

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter, hashed.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[derive(Debug)]
enum Source {
    Seed(SplitMix),
    List { values: Vec<u64>, next: usize },
}

#[derive(Debug)]
struct Generator {
    source: Source,
    /// The choices so far, if they are recorded.
    recorded: Option<Vec<u64>>,
}

impl Generator {
    #[inline]
    fn record(&mut self, value: u64) -> u64 {
        if let Some(recorded) = &mut self.recorded {
            recorded.push(value);
        }
        value
    }

    #[inline]
    fn below(&mut self, bound: u64) -> u64 {
        let value = match &mut self.source {
            // The high half of the product: no division, and no bias that matters here.
            Source::Seed(random) => ((u128::from(random.next()) * u128::from(bound)) >> 64) as u64,
            Source::List { values, next } => {
                *next += 1;
                values.get(*next - 1).map_or(0, |value| (*value).min(bound - 1))
            }
        };
        self.record(value)
    }

    #[inline]
    fn flag(&mut self, ppm: u32) -> bool {
        let value = match &mut self.source {
            Source::Seed(random) => {
                let random = ((random.next() >> 32) * 1_000_000) >> 32;
                u64::from(random < u64::from(ppm))
            }
            Source::List { values, next } => {
                *next += 1;
                values.get(*next - 1).map_or(0, |value| (*value).min(1))
            }
        };
        self.record(value) != 0
    }
}

/// The source of all choices.
#[derive(Debug)]
pub(crate) struct Choices {
    generators: [Generator; TRACKS],
    distinct: Option<SplitMix>,
}

impl Choices {
    /// Choices from a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let generator = |track: usize| Generator {
            source: Source::Seed(SplitMix(mix(seed) ^ mix(track as u64 + 1))),
            recorded: None,
        };
        Self { generators: std::array::from_fn(generator), distinct: None }
    }

    /// Choices from a recorded list.
    pub(crate) fn from_case(case: &Case) -> Self {
        let generator = |track: usize| Generator {
            source: Source::List { values: case.tracks[track].clone(), next: 0 },
            recorded: None,
        };
        Self { generators: std::array::from_fn(generator), distinct: None }
    }

    /// Records all choices from now on.
    pub(crate) fn record(&mut self) {
        for generator in &mut self.generators {
            generator.recorded = Some(Vec::new());
        }
    }

    /// The recorded choices of each track.
    pub(crate) fn recorded(&self) -> [Vec<u64>; TRACKS] {
        std::array::from_fn(|track| self.generators[track].recorded.clone().unwrap_or_default())
    }

    /// A number below `bound`; zero if there is no other.
    #[inline]
    pub(crate) fn below(&mut self, track: Track, bound: u64) -> u64 {
        if bound <= 1 { 0 } else { self.generators[track as usize].below(bound) }
    }

    /// A number that differs from all others of these choices.
    pub(crate) fn distinct(&mut self) -> u64 {
        if self.distinct.is_none() {
            self.distinct = Some(SplitMix(self.below(Track::Identity, u64::MAX)));
        }
        self.distinct.as_mut().map_or(0, SplitMix::next)
    }

    /// True with a probability in millionths.
    #[inline]
    pub(crate) fn flag(&mut self, track: Track, ppm: u32) -> bool {
        ppm != 0 && self.generators[track as usize].flag(ppm)
    }
}

/// A run as the list of its choices. Its text replays it.
///
/// The text has the choices other than zero only, so that of a shrunk run is short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    pub(crate) tracks: [Vec<u64>; TRACKS],
}

impl Case {
    /// The number of choices that are not the simplest one.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.tracks.iter().flatten().filter(|value| **value != 0).count()
    }

    /// The same for faults alone.
    #[must_use]
    pub fn faults(&self) -> usize {
        self.tracks[Track::Fault as usize].iter().filter(|value| **value != 0).count()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tracks = "";
        for (name, values) in NAMES.iter().zip(&self.tracks) {
            let used = || values.iter().enumerate().filter(|(_, value)| **value != 0);
            if used().next().is_none() {
                continue;
            }
            write!(f, "{tracks}{name}=")?;
            tracks = ";";
            let mut comma = "";
            for (index, value) in used() {
                write!(f, "{comma}{index}:{value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

/// A text that is no [`Case`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaseError {
    /// A part is not `TRACK=INDEX:VALUE,…` with a known track.
    Form,
    /// A number cannot be read.
    Number(ParseIntError),
    /// An index is beyond 2²⁸, more than any run records.
    Index,
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("a part is not `TRACK=INDEX:VALUE,…` with a known track"),
            Self::Number(error) => error.fmt(f),
            Self::Index => f.write_str("an index is beyond 2^28"),
        }
    }
}

impl std::error::Error for CaseError {}

impl From<ParseIntError> for CaseError {
    fn from(error: ParseIntError) -> Self {
        Self::Number(error)
    }
}

impl FromStr for Case {
    type Err = CaseError;

    fn from_str(text: &str) -> Result<Self, CaseError> {
        let mut case = Self::default();
        for part in text.trim().split(';').filter(|part| !part.is_empty()) {
            let (name, list) = part.split_once('=').ok_or(CaseError::Form)?;
            let track = NAMES.iter().position(|known| *known == name).ok_or(CaseError::Form)?;
            for pair in list.split(',') {
                let (index, value) = pair.split_once(':').ok_or(CaseError::Form)?;
                let index: usize = index.parse()?;
                if index >= 1 << 28 {
                    return Err(CaseError::Index);
                }
                let values = &mut case.tracks[track];
                values.resize(values.len().max(index + 1), 0);
                values[index] = value.parse()?;
            }
        }
        Ok(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(choices: &mut Choices) -> Vec<u64> {
        let below = |choices: &mut Choices, index: u64| {
            choices.below(Track::Schedule, index % 7) + 10 * choices.below(Track::Time, 1 << 40)
        };
        (0..200)
            .map(|index| below(choices, index) ^ u64::from(choices.flag(Track::Fault, 300_000)))
            .collect()
    }

    #[test]
    fn a_seed_makes_the_same_choices_on_every_machine() {
        let mut choices = Choices::from_seed(1);
        let drawn: Vec<u64> = (0..4).map(|_| choices.below(Track::Workload, 1000)).collect();
        assert_eq!(drawn, [769, 53, 99, 315]);
        assert_ne!(draw(&mut Choices::from_seed(1)), draw(&mut Choices::from_seed(2)));
    }

    #[test]
    fn a_recorded_run_is_replayed_exactly_also_from_its_text() {
        let mut first = Choices::from_seed(7);
        first.record();
        let drawn = draw(&mut first);
        let case = Case { tracks: first.recorded() };
        assert_eq!(draw(&mut Choices::from_case(&case)), drawn);
        let read: Case = case.to_string().parse().expect("a case");
        assert_eq!(draw(&mut Choices::from_case(&read)), drawn);
        assert!(case.faults() > 20 && case.weight() > 200);
    }

    #[test]
    fn an_empty_list_makes_the_simplest_choices() {
        let mut choices = Choices::from_case(&Case::default());
        assert!(draw(&mut choices).iter().all(|value| *value == 0));
    }

    #[test]
    fn distinct_numbers_are_those_of_the_seed_and_differ_without_one() {
        let draw = |choices: &mut Choices| [(); 3].map(|()| choices.distinct());
        let mut first = Choices::from_seed(3);
        first.record();
        let drawn = draw(&mut first);
        assert_ne!(drawn, draw(&mut Choices::from_seed(4)));
        let case = Case { tracks: first.recorded() };
        let read: Case = case.to_string().parse().expect("a case");
        assert_eq!(draw(&mut Choices::from_case(&read)), drawn);
        let [one, two, three] = draw(&mut Choices::from_case(&Case::default()));
        assert!(one != two && two != three && three != one);
    }

    #[test]
    fn a_number_beyond_the_bound_is_cut() {
        let case: Case = "workload=0:9".parse().expect("a case");
        assert_eq!(Choices::from_case(&case).below(Track::Workload, 4), 3);
    }

    #[test]
    fn tracks_do_not_shift_each_other() {
        let (mut one, mut two) = (Choices::from_seed(3), Choices::from_seed(3));
        two.below(Track::Fault, 100);
        assert_eq!(one.below(Track::Time, 1 << 50), two.below(Track::Time, 1 << 50));
    }

    #[test]
    fn the_probability_of_a_flag_is_kept() {
        let mut choices = Choices::from_seed(5);
        let count = (0..100_000).filter(|_| choices.flag(Track::Fault, 250_000)).count();
        assert!((24_000..26_000).contains(&count), "{count}");
        assert!(!choices.flag(Track::Fault, 0));
    }

    #[test]
    fn a_text_that_is_no_case_is_an_error() {
        assert_eq!("x=1:1".parse::<Case>(), Err(CaseError::Form));
        assert_eq!("fault=1".parse::<Case>(), Err(CaseError::Form));
        assert_eq!("fault=999999999:1".parse::<Case>(), Err(CaseError::Index));
        assert!(matches!("fault=1:x".parse::<Case>(), Err(CaseError::Number(_))));
    }
}
