//! Progress on standard error: a bar on a terminal, otherwise a line every few seconds.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use super::{
    plan::{LoadPlan, nanos},
    run_state::RunState,
};

/// Time between two updates of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time between two lines.
const BETWEEN_LINES: Duration = Duration::from_secs(3);

/// Shows a bar or writes lines until it is dropped.
pub(crate) struct Progress {
    is_over: Arc<AtomicBool>,
    drawer: Option<JoinHandle<()>>,
}

/// Starts to show progress, unless the plan asks for quiet.
pub(crate) fn show(plan: &Arc<LoadPlan>, run_state: &Arc<RunState>) -> Option<Progress> {
    if plan.args.quiet {
        return None;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let (plan, run_state, over) = (Arc::clone(plan), Arc::clone(run_state), Arc::clone(&is_over));
    let show = move || match stderr().is_terminal() {
        true => draw(&plan, &run_state, &over),
        false => write_lines(&plan, &run_state, &over),
    };
    // If the thread cannot be started, nothing is shown, which does no harm.
    let drawer = thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
    Some(Progress { is_over, drawer })
}

fn draw(plan: &LoadPlan, run_state: &RunState, is_over: &AtomicBool) {
    let bar = ProgressBar::new(length(plan));
    bar.set_style(style());
    while !is_over.load(Relaxed) {
        update(&bar, plan, run_state);
        thread::park_timeout(INTERVAL);
    }
    bar.finish_and_clear();
}

fn write_lines(plan: &LoadPlan, run_state: &RunState, is_over: &AtomicBool) {
    let begun = Instant::now();
    let mut next = BETWEEN_LINES;
    while !is_over.load(Relaxed) {
        let elapsed = begun.elapsed();
        if elapsed < next {
            thread::park_timeout(next - elapsed);
            continue;
        }
        next = elapsed + BETWEEN_LINES;
        let text = state(plan, run_state);
        // Standard error may be closed.
        let _ = writeln!(stderr(), "windlass: {} s: {text}", elapsed.as_secs());
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}")
        .expect("the template is one");
    style.progress_chars("━╸─")
}

/// Length of the whole bar, in messages or milliseconds.
fn length(plan: &LoadPlan) -> u64 {
    let time = || {
        plan.args.duration().map_or(0, |duration| (duration + plan.args.warm_up).as_millis() as u64)
    };
    plan.args.messages.unwrap_or_else(time)
}

fn update(bar: &ProgressBar, plan: &LoadPlan, run_state: &RunState) {
    if let Some(origin) = run_state.origin() {
        let elapsed = run_state.clock.now().saturating_sub(origin);
        let answered = run_state.answered.load(Relaxed);
        bar.set_position(if plan.args.messages.is_some() { answered } else { elapsed / 1_000_000 });
    }
    bar.set_message(state(plan, run_state));
}

/// Describes the current state in words.
fn state(plan: &LoadPlan, run_state: &RunState) -> String {
    let Some(origin) = run_state.origin() else {
        let opened = HumanCount(run_state.opened.load(Relaxed));
        return format!("connecting: {opened} of {}", HumanCount(plan.args.connections.into()));
    };
    let elapsed = run_state.clock.now().saturating_sub(origin);
    let warm_up = nanos(plan.args.warm_up);
    if elapsed <= warm_up {
        return "warming up".to_owned();
    }
    let answered = run_state.answered.load(Relaxed);
    let per_second = answered as f64 / ((elapsed - warm_up) as f64 / 1e9);
    format!("{} messages, {} per second", HumanCount(answered), HumanCount(per_second as u64))
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(drawer) = self.drawer.take() {
            drawer.thread().unpark();
            // A failure of this thread does not matter.
            let _ = drawer.join();
        }
    }
}
