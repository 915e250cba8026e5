//! Random programs, checked against a naive model.
//!
//! A program adds, modifies and deletes subscribers (itself, others, stale ones). It starts and
//! cancels timers, defers closures, panics, and makes descriptors ready. It does so between turns
//! and inside handlers. The reactor runs the program and records what happened. The model knows
//! neither addresses nor batches. It replays the record and decides whether the rules allow it.

use windlass_testkit::rings;

mod model {
    mod machine;
    mod oracle;

    pub(crate) use machine::Machine;
    pub(crate) use oracle::Oracle;

    use proptest::prelude::*;

    /// The number of files. Each may be registered several times.
    pub(crate) const FILES: usize = 4;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Mode {
        Level,
        /// Not on poll(2), which reports states only.
        Edge,
        OneShot,
        Off,
    }

    /// An action between turns or inside a handler. Numbers name subscribers and timers in the
    /// order of creation, stale ones included.
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

    /// One entry of the record. The entries are in the order in which things happened.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Note {
        Turn,
        Fired(usize),
        Ticked(usize, u64),
        Deferred(usize),
        /// The outcome of an action that may fail.
        Did(bool),
        /// The handler of a subscriber or timer was dropped.
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

    /// Without edges the strategy has no such branch: one of weight zero is not drawn, but
    /// shrinking would try it.
    fn mode(edges: u32) -> BoxedStrategy<Mode> {
        let states =
            prop_oneof![3 => Just(Mode::Level), 2 => Just(Mode::OneShot), 1 => Just(Mode::Off)];
        match edges {
            0 => states.boxed(),
            edges => prop_oneof![6 => states, edges => Just(Mode::Edge)].boxed(),
        }
    }

    fn simple_act(edges: u32) -> impl Strategy<Value = Act> {
        prop_oneof![
            2 => (0..12usize, mode(edges)).prop_map(|(who, mode)| Act::Modify(who, mode)),
            3 => (0..12usize).prop_map(Act::Delete),
            3 => Just(Act::DeleteSelf),
            2 => (0..12usize).prop_map(Act::Cancel),
            2 => (0..12usize, 0..20u64).prop_map(|(who, delay)| Act::Reset(who, delay)),
            2 => (0..FILES).prop_map(Act::Drain),
            2 => (0..FILES).prop_map(Act::Fire),
            2 => Just(Act::Panic),
        ]
    }

    fn act(edges: u32) -> impl Strategy<Value = Act> {
        simple_act(edges).prop_recursive(3, 12, 4, move |inner| {
            let acts = prop::collection::vec(inner, 0..4);
            prop_oneof![
                4 => (0..FILES, mode(edges), acts.clone())
                    .prop_map(|(file, mode, acts)| Act::Add(file, mode, acts)),
                2 => (0..20u64, prop_oneof![2 => Just(0), 1 => 1..8u64], acts.clone())
                    .prop_map(|(delay, period, acts)| Act::Start(delay, period, acts)),
                1 => acts.prop_map(Act::Defer),
            ]
        })
    }

    /// Generates a program. `edges` is the weight of edge-triggered subscribers.
    pub(crate) fn program(edges: u32) -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => act(edges).prop_map(Step::Act),
            2 => (0..FILES).prop_map(|file| Step::Act(Act::Fire(file))),
            1 => (0..15u64).prop_map(Step::Advance),
            4 => Just(Step::Turn),
        ];
        prop::collection::vec(step, 1..40)
    }
}

use model::{Act, Machine, Note, Oracle, Step};
use proptest::prelude::*;
use windlass::Backend;

/// All backends that are available here. Where rings are forbidden, the test program `ring` reports
/// it.
fn all() -> &'static [Backend] {
    #[cfg(miri)]
    return &[Backend::Epoll];
    #[cfg(not(miri))]
    match rings::refusal() {
        None => &[Backend::Epoll, Backend::Poll, Backend::Uring],
        Some(_) => &[Backend::Epoll, Backend::Poll],
    }
}

/// The available backends that support edge-triggered interest.
fn with_edges() -> &'static [Backend] {
    if all().contains(&Backend::Uring) {
        &[Backend::Epoll, Backend::Uring]
    } else {
        &[Backend::Epoll]
    }
}

/// Changes the program so that this backend must produce exactly the events of the model. A ring
/// reports a condition that held when its poll completed, even if it no longer holds in the turn.
/// Such events are allowed, but the model does not know them. So the program drains nothing on a
/// ring.
fn fit(backend: Backend, program: &[Step]) -> Vec<Step> {
    fn undrained(acts: &[Act]) -> Vec<Act> {
        acts.iter().filter(|act| !matches!(act, Act::Drain(_))).map(kept).collect()
    }
    fn kept(act: &Act) -> Act {
        match act {
            Act::Add(file, mode, acts) => Act::Add(*file, *mode, undrained(acts)),
            Act::Start(delay, period, acts) => Act::Start(*delay, *period, undrained(acts)),
            Act::Defer(acts) => Act::Defer(undrained(acts)),
            other => other.clone(),
        }
    }
    let is_drain = |step: &&Step| matches!(step, Step::Act(Act::Drain(_)));
    match backend {
        Backend::Uring => {
            let steps = program.iter().filter(|step| !is_drain(step));
            steps
                .map(
                    |step| {
                        if let Step::Act(act) = step { Step::Act(kept(act)) } else { step.clone() }
                    },
                )
                .collect()
        }
        _ => program.to_vec(),
    }
}

fn run(backend: Backend, program: &[Step]) -> Vec<Note> {
    let mut machine = Machine::new(backend);
    for step in program {
        machine.run(step);
    }
    machine.finish()
}

fn judge(backends: &[Backend], program: &[Step]) -> Result<(), TestCaseError> {
    for backend in backends {
        let program = fit(*backend, program);
        let notes = run(*backend, &program);
        let verdict = Oracle::judge(&program, &notes);
        prop_assert!(verdict.is_ok(), "{backend}: {}\nnotes: {notes:#?}", verdict.unwrap_err());
    }
    Ok(())
}

/// Replaces all handlers by empty ones. Then the backends can differ only in the order of the
/// events within a turn.
fn with_idle_handlers(program: Vec<Step>) -> Vec<Step> {
    let tame = |act: Act| match act {
        Act::Add(file, mode, _) => Act::Add(file, mode, Vec::new()),
        Act::Start(delay, period, _) => Act::Start(delay, period, Vec::new()),
        Act::Defer(_) => Act::Defer(Vec::new()),
        other => other,
    };
    let steps = program.into_iter().map(|step| match step {
        Step::Act(act) => Step::Act(tame(act)),
        other => other,
    });
    steps.collect()
}

/// The record, with the events of each turn sorted by name.
fn in_order(mut notes: Vec<Note>) -> Vec<Note> {
    for run in notes.chunk_by_mut(|a, b| matches!((a, b), (Note::Fired(_), Note::Fired(_)))) {
        run.sort_by_key(|note| if let Note::Fired(who) = note { Some(*who) } else { None });
    }
    notes
}

fn agree(backends: &[Backend], program: Vec<Step>) -> Result<(), TestCaseError> {
    let program = with_idle_handlers(program);
    for backend in backends {
        let program = fit(*backend, &program);
        prop_assert_eq!(
            in_order(run(Backend::Epoll, &program)),
            in_order(run(*backend, &program)),
            "{}",
            backend
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 6 } else { windlass_testkit::random::cases(500) },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_random_program_does_what_the_model_allows(program in model::program(2)) {
        judge(with_edges(), &program)?;
    }

    #[test]
    fn a_random_program_without_edges_does_what_the_model_allows(program in model::program(0)) {
        judge(all(), &program)?;
    }

    #[test]
    fn backends_agree_on_what_comes_in_a_turn(program in model::program(0)) {
        agree(all(), program)?;
    }

    #[test]
    fn backends_agree_on_edges(program in model::program(2)) {
        agree(with_edges(), program)?;
    }
}
