//! Models of the latch: no wake is lost, and only a wake that finds the owner asleep writes to the
//! descriptor.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread::{self, JoinHandle},
};
use windlass_flow::Latch;

use crate::bounded;

/// Data that the owner must see after a wake. All accesses are relaxed, because the latch orders
/// them (protocol 4).
struct Scene {
    latch: Latch,
    done: [AtomicU32; 2],
}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            latch: Latch::new().unwrap(),
            done: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    /// A thread that changes the data and wakes the owner, several times.
    fn waker(self: &Arc<Self>, index: usize, times: u32) -> JoinHandle<()> {
        let scene = self.clone();
        thread::spawn(move || {
            for time in 1..=times {
                scene.done[index].store(time, Relaxed);
                scene.latch.wake();
            }
        })
    }

    fn done(&self) -> u32 {
        self.done.iter().map(|done| done.load(Relaxed)).sum()
    }
}

#[test]
fn data_written_before_a_wake_is_seen_after_it() {
    loom::model(|| {
        let scene = Scene::new();
        let waker = scene.waker(0, 1);
        while !scene.latch.wait(None) {}
        assert_eq!(scene.done(), 1);
        waker.join().unwrap();
    });
}

#[test]
fn a_waiting_owner_sees_both_wakers() {
    bounded(|| {
        let scene = Scene::new();
        let wakers = [scene.waker(0, 1), scene.waker(1, 1)];
        while scene.done() < 2 {
            scene.latch.wait(None);
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

#[test]
fn a_waiting_owner_sees_the_second_wake_of_a_waker() {
    loom::model(|| {
        let scene = Scene::new();
        let waker = scene.waker(0, 2);
        while scene.done() < 2 {
            scene.latch.wait(None);
        }
        waker.join().unwrap();
    });
}

/// One handler among others. It is called for each edge and rearms at its end, so a wake during the
/// call causes another call.
#[test]
fn an_owner_that_its_descriptor_calls_sees_all() {
    bounded(|| {
        let scene = Scene::new();
        scene.latch.rearm();
        let wakers = [scene.waker(0, 1), scene.waker(1, 1)];
        let (mut seen, mut edges) = (0, 0);
        while seen < 2 {
            edges = scene.latch.model_edge(edges);
            scene.latch.awake();
            seen = scene.done();
            scene.latch.rearm();
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

/// Edge-triggered and never read, as in a loop.
fn wait_for_edges(scene: &Scene, goal: u32) -> u64 {
    let (mut sleeps, mut seen) = (0, 0);
    while scene.done() < goal {
        if scene.latch.sleep() {
            sleeps += 1;
            seen = scene.latch.model_edge(seen);
        }
        scene.latch.awake();
    }
    sleeps
}

#[test]
fn an_edge_triggered_owner_sees_both_wakers_and_at_most_one_write_per_sleep() {
    bounded(|| {
        let scene = Scene::new();
        let wakers = [scene.waker(0, 1), scene.waker(1, 1)];
        let sleeps = wait_for_edges(&scene, 2);
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert!(scene.latch.model_rings() <= sleeps);
    });
}

#[test]
fn an_edge_triggered_owner_sees_the_second_wake_of_a_waker() {
    loom::model(|| {
        let scene = Scene::new();
        let waker = scene.waker(0, 2);
        let sleeps = wait_for_edges(&scene, 2);
        waker.join().unwrap();
        assert!(scene.latch.model_rings() <= sleeps);
    });
}

#[test]
fn of_two_wakes_one_rings_and_only_a_sleeper() {
    loom::model(|| {
        let scene = Scene::new();
        let wakers = [scene.waker(0, 1), scene.waker(1, 1)];
        let is_asleep = scene.latch.sleep();
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert_eq!(scene.latch.model_rings(), u64::from(is_asleep));
        assert!(scene.latch.awake());
        assert!(!scene.latch.awake(), "both wakes are taken");
        assert_eq!(scene.done(), 2);
    });
}

/// Another event ends the owner's wait. So a write to the descriptor may come late, for example in
/// the owner's next sleep.
#[test]
fn a_ring_that_comes_late_takes_no_wake_away() {
    bounded(|| {
        let scene = Scene::new();
        let waker = scene.waker(0, 2);
        let mut is_early = true;
        while scene.done() < 2 {
            if scene.latch.sleep() && !std::mem::take(&mut is_early) {
                scene.latch.wait(None);
            } else {
                scene.latch.awake();
            }
        }
        waker.join().unwrap();
    });
}

/// `wait` clears the descriptor. The write that it removes may belong to a wake that the owner has
/// not taken yet.
#[test]
fn a_wait_that_was_over_early_takes_no_wake_away() {
    bounded(|| {
        let scene = Scene::new();
        let wakers = [scene.waker(0, 1), scene.waker(1, 1)];
        // As `wait` does if its timeout is zero.
        if scene.latch.sleep() {
            scene.latch.clear();
        }
        scene.latch.awake();
        while scene.done() < 2 {
            scene.latch.wait(None);
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

#[test]
fn a_spinning_owner_sees_the_data_of_a_wake() {
    loom::model(|| {
        let scene = Scene::new();
        let waker = scene.waker(0, 1);
        if scene.latch.is_woken() {
            assert_eq!(scene.done(), 1);
        }
        // An owner that must not sleep looks at once, before it calls `awake`.
        if !scene.latch.sleep() {
            assert_eq!(scene.done(), 1);
        }
        if scene.latch.awake() {
            assert_eq!(scene.done(), 1);
        }
        waker.join().unwrap();
    });
}
