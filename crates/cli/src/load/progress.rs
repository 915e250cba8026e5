//! The progress bar: on standard error, and only where somebody sits before it.

use std::{
    io::{IsTerminal as _, stderr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use super::{
    control::Control,
    plan::{Plan, nanos},
};

/// How often it is drawn.
const INTERVAL: Duration = Duration::from_millis(100);

/// A bar that is drawn until it is dropped.
pub(crate) struct Progress {
    is_over: Arc<AtomicBool>,
    drawer: Option<JoinHandle<()>>,
}

/// Begins to draw, if anybody can see it.
pub(crate) fn show(plan: &Arc<Plan>, control: &Arc<Control>) -> Option<Progress> {
    if plan.args.quiet || !stderr().is_terminal() {
        return None;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let (plan, control, over) = (Arc::clone(plan), Arc::clone(control), Arc::clone(&is_over));
    let draw = move || {
        let bar = ProgressBar::new(length(&plan));
        bar.set_style(style());
        while !over.load(Relaxed) {
            update(&bar, &plan, &control);
            thread::park_timeout(INTERVAL);
        }
        bar.finish_and_clear();
    };
    // Without a thread for it there is no bar, which harms nothing.
    let drawer = thread::Builder::new().name("progress".to_owned()).spawn(draw).ok();
    Some(Progress { is_over, drawer })
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}").expect("the template is one");
    style.progress_chars("━╸─")
}

/// Of the whole bar: messages, or milliseconds.
fn length(plan: &Plan) -> u64 {
    let time = || plan.args.duration().map_or(0, |duration| (duration + plan.args.warm_up).as_millis() as u64);
    plan.args.messages.unwrap_or_else(time)
}

fn update(bar: &ProgressBar, plan: &Plan, control: &Control) {
    let Some(origin) = control.origin() else {
        let opened = HumanCount(control.opened.load(Relaxed));
        return bar.set_message(format!("connecting: {opened} of {}", HumanCount(plan.args.connections.into())));
    };
    let answered = control.answered.load(Relaxed);
    let elapsed = control.clock.now().saturating_sub(origin);
    bar.set_position(if plan.args.messages.is_some() { answered } else { elapsed / 1_000_000 });
    let warm_up = nanos(plan.args.warm_up);
    if elapsed <= warm_up {
        return bar.set_message("warming up");
    }
    let per_second = answered as f64 / ((elapsed - warm_up) as f64 / 1e9);
    bar.set_message(format!("{} messages, {} a second", HumanCount(answered), HumanCount(per_second as u64)));
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(drawer) = self.drawer.take() {
            drawer.thread().unpark();
            // It has nothing to fail in that matters.
            let _ = drawer.join();
        }
    }
}
