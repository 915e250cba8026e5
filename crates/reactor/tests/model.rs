//! Random programs against a naive model.
//!
//! A program adds, modifies and deletes subscribers (itself, others, stale ones), starts and cancels timers, defers,
//! panics and lets descriptors fire, between turns and from inside handlers. The reactor runs it and writes down what happened; the
//! model, which knows neither addresses nor batches, replays the record and says whether it may have happened so.

mod model {
    mod machine;
    mod oracle;

    pub(crate) use machine::Machine;
    pub(crate) use oracle::Oracle;

    use proptest::prelude::*;

    /// How many files there are; each may be registered several times.
    pub(crate) const FILES: usize = 4;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Mode {
        Level,
        Edge,
        OneShot,
        Off,
    }

    /// What is done between turns, or by a handler. Numbers name subscribers and timers in the order in which they were made, stale
    /// ones too.
    #[derive(Clone, Debug)]
    pub(crate) enum Act {
        Add(usize, Mode, Vec<Act>),
        Modify(usize, Mode),
        Delete(usize),
        DeleteSelf,
        Start(u64, u64, Vec<Act>),
        Cancel(usize),
        Reset(usize, u64),
        Defer(Vec<Act>),
        Drain(usize),
        Fire(usize),
        Panic,
    }

    #[derive(Clone, Debug)]
    pub(crate) enum Step {
        Act(Act),
        Advance(u64),
        Turn,
    }

    /// What happened, in the order in which it did.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Note {
        Turn,
        Fired(usize),
        Ticked(usize, u64),
        Deferred(usize),
        /// The outcome of an act that may fail.
        Did(bool),
        /// A subscriber's or a timer's handler was destroyed.
        Dropped(Thing),
        TurnEnded {
            events: Option<usize>,
        },
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Thing {
        Subscriber(usize),
        Timer(usize),
    }

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![3 => Just(Mode::Level), 2 => Just(Mode::Edge), 2 => Just(Mode::OneShot), 1 => Just(Mode::Off)]
    }

    fn simple_act() -> impl Strategy<Value = Act> {
        prop_oneof![
            2 => (0..12usize, mode()).prop_map(|(who, mode)| Act::Modify(who, mode)),
            3 => (0..12usize).prop_map(Act::Delete),
            3 => Just(Act::DeleteSelf),
            2 => (0..12usize).prop_map(Act::Cancel),
            2 => (0..12usize, 0..20u64).prop_map(|(who, delay)| Act::Reset(who, delay)),
            2 => (0..FILES).prop_map(Act::Drain),
            2 => (0..FILES).prop_map(Act::Fire),
            2 => Just(Act::Panic),
        ]
    }

    fn act() -> impl Strategy<Value = Act> {
        simple_act().prop_recursive(3, 12, 4, |inner| {
            let acts = prop::collection::vec(inner, 0..4);
            prop_oneof![
                4 => (0..FILES, mode(), acts.clone()).prop_map(|(file, mode, acts)| Act::Add(file, mode, acts)),
                2 => (0..20u64, prop_oneof![2 => Just(0), 1 => 1..8u64], acts.clone())
                    .prop_map(|(delay, period, acts)| Act::Start(delay, period, acts)),
                1 => acts.prop_map(Act::Defer),
            ]
        })
    }

    pub(crate) fn program() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => act().prop_map(Step::Act),
            2 => (0..FILES).prop_map(|file| Step::Act(Act::Fire(file))),
            1 => (0..15u64).prop_map(Step::Advance),
            4 => Just(Step::Turn),
        ];
        prop::collection::vec(step, 1..40)
    }
}

use model::{Machine, Oracle};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 6 } else { 1500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_random_program_does_what_the_model_allows(program in model::program()) {
        let mut machine = Machine::new();
        for step in &program {
            machine.run(step);
        }
        let notes = machine.finish();
        let verdict = Oracle::judge(&program, &notes);
        prop_assert!(verdict.is_ok(), "{}\nnotes: {notes:#?}", verdict.unwrap_err());
    }
}
