//! Runs stages in parallel.
//!
//! 1. Stages that run tests are *in front*. They run one after the other, and their output is shown
//!    at once. They often wait for sockets, clocks and processes, and some are sensitive to delays.
//! 2. Stages that only compile, interpret or read run in *lanes*. Each lane is a thread of lower
//!    priority. Its stages run one after the other. Their output is kept, and shown between two
//!    stages in front.
//! 3. Cargo locks its target directory while it builds. So each lane uses its own target directory,
//!    or waits.
//!

use std::collections::BTreeMap;
use std::sync::mpsc;

use crate::output::Output;
use crate::stage::{Ended, Setting, Stage};

/// A lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    /// The nice value for setpriority(2), at most 19. A thread with 19 gets about a seventieth of
    /// the processor time that a thread in front gets. With 5 it gets a third.
    pub(crate) nice: i32,
}

/// Runs all stages. Calls `take` in this thread for each stage that has ended.
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
    // On Linux this sets the value of the calling thread, and children inherit it (sched(7)). If it
    // fails, lanes have the same priority as the rest.
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
    fn lanes_run_in_parallel_to_the_front_and_all_are_reported() {
        // Each stage waits until the two others have begun.
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
        assert_eq!(names[0], "a", "the stage in front is reported first");
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn the_stages_of_a_lane_keep_their_order() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let notes = |name: &'static str| {
            let order = Arc::clone(&order);
            let stage = Stage::inspect(name, move || {
                order.lock().expect("no thread panics").push(name);
                Ok(Vec::new())
            });
            stage.in_lane(X)
        };
        assert_eq!(ran(vec![notes("a"), notes("b"), notes("c")]), ["a", "b", "c"]);
        assert_eq!(*order.lock().expect("no thread panics"), ["a", "b", "c"]);
    }

    #[test]
    fn a_lane_is_of_lower_priority_and_the_front_is_not() {
        // The nice value is field 19 of proc_pid_stat(5). The name `cat` has no blanks.
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
