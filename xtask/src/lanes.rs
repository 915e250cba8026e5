//! Stages beside each other.
//!
//! What tests is in front: it has the processors when it wants them, and shows its output as it
//! comes. It often waits, for sockets, clocks and other processes; and some of it is sensitive to
//! delays. What only compiles, interprets or reads is in *lanes* beside it, a thread for each, of
//! lower priorities: it takes what is left. A lane's stages run one after the other. What they say
//! is kept, and shown between two stages of those in front.
//!
//! Cargo locks the target directory in which it builds: a stage of a lane has one that no other
//! lane uses at the time, or waits.

use std::collections::BTreeMap;
use std::sync::mpsc;

use crate::output::Output;
use crate::stage::{Ended, Setting, Stage};

/// A lane beside the stages in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    /// How much less important it is than what is in front, for setpriority(2): at most 19, which
    /// gets a seventieth as much where both want a processor. With 5 it gets a third as much.
    pub(crate) nice: i32,
}

/// Runs all stages, and tells `take` of each, in this thread, when it has ended.
pub(crate) fn run(setting: &Setting, stages: Vec<Stage>, mut take: impl FnMut(Ended)) {
    let mut lanes: BTreeMap<Option<Lane>, Vec<Stage>> = BTreeMap::new();
    for stage in stages {
        lanes.entry(stage.lane).or_default().push(stage);
    }
    let front = lanes.remove(&None).unwrap_or_default();
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for (lane, stages) in lanes {
            let sender = sender.clone();
            let nice = lane.map_or(0, |lane| lane.nice);
            scope.spawn(move || beside(setting, nice, stages, &sender));
        }
        drop(sender);
        for stage in front {
            take(setting.perform(stage, &mut Output::Live));
            done.try_iter().for_each(|(ended, said)| show(&mut take, ended, &said));
        }
        done.iter().for_each(|(ended, said)| show(&mut take, ended, &said));
    });
}

fn show(take: &mut impl FnMut(Ended), ended: Ended, said: &str) {
    print!("{said}");
    take(ended);
}

fn beside(
    setting: &Setting,
    nice: i32,
    stages: Vec<Stage>,
    sender: &mpsc::Sender<(Ended, String)>,
) {
    // On Linux this is of the calling thread alone, and what it starts inherits it (sched(7)).
    // Where it is refused, lanes are as important as the rest.
    let _ = rustix::process::setpriority_process(None, nice);
    for stage in stages {
        let mut output = Output::kept();
        let ended = setting.perform(stage, &mut output);
        if sender.send((ended, output.into_kept())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cmd;
    use std::path::PathBuf;
    use std::sync::{Arc, Barrier, Mutex};

    const X: Lane = Lane { name: "x", nice: 19 };

    fn setting() -> Setting {
        Setting { root: PathBuf::from("."), ..Setting::default() }
    }

    fn ran(stages: Vec<Stage>) -> Vec<&'static str> {
        let mut names = Vec::new();
        run(&setting(), stages, |ended| names.push(ended.name));
        names
    }

    #[test]
    fn lanes_run_beside_the_front_and_all_is_told_of() {
        // Each waits until the two others have begun.
        let barrier = Arc::new(Barrier::new(3));
        let meets = |name: &'static str| {
            let barrier = Arc::clone(&barrier);
            Stage::inspect(name, move || {
                barrier.wait();
                Ok(Vec::new())
            })
        };
        let mut names = ran(vec![
            meets("a"),
            meets("b").in_lane(X),
            meets("c").in_lane(Lane { name: "y", nice: 5 }),
        ]);
        assert_eq!(names[0], "a", "what is in front is told of first");
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn the_stages_of_a_lane_keep_their_order() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let notes = |name: &'static str| {
            let order = Arc::clone(&order);
            let stage = Stage::inspect(name, move || {
                order.lock().expect("nobody panics").push(name);
                Ok(Vec::new())
            });
            stage.in_lane(X)
        };
        assert_eq!(ran(vec![notes("a"), notes("b"), notes("c")]), ["a", "b", "c"]);
        assert_eq!(*order.lock().expect("nobody panics"), ["a", "b", "c"]);
    }

    #[test]
    fn a_lane_is_of_lower_priority_and_the_front_is_not() {
        // The nice value is the nineteenth field of proc_pid_stat(5); `cat` has a name without
        // blanks.
        let nice = Cmd::new("sh").args(["-c", "set -- $(cat /proc/self/stat); test ${19} = 19"]);
        let stage = |name, nice| Stage::commands(name, vec![nice]);
        let mut failed = Vec::new();
        let stages = vec![stage("front", nice.clone()), stage("lane", nice).in_lane(X)];
        run(&setting(), stages, |ended| {
            failed.extend((!ended.failures.is_empty()).then_some(ended.name))
        });
        assert_eq!(failed, ["front"]);
    }

    #[test]
    fn a_failure_in_a_lane_stops_neither_the_lane_nor_the_front() {
        let stage = |name, program| Stage::commands(name, vec![Cmd::new(program)]);
        let stages =
            vec![stage("a", "true"), stage("b", "false").in_lane(X), stage("c", "true").in_lane(X)];
        let mut failed = Vec::new();
        run(&setting(), stages, |ended| failed.push((ended.name, ended.failures.len())));
        failed.sort_unstable();
        assert_eq!(failed, [("a", 0), ("b", 1), ("c", 0)]);
    }
}
