//! Closures on threads beside the executor.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use windlass_task::{BlockingReason, spawn_blocking};

use crate::tools::{block_on, builder};

/// Closures wait here until the test lets them go.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let mut is_open = self.0.0.lock().unwrap();
        while !*is_open {
            is_open = self.0.1.wait(is_open).unwrap();
        }
    }
}

#[test]
fn closures_run_on_other_threads_and_their_results_come_back() {
    block_on(async {
        let own = thread::current().id();
        let handles: Vec<_> = (0..20)
            .map(|number| spawn_blocking(move || (number, thread::current().id())))
            .map(Result::unwrap)
            .collect();
        for (number, handle) in handles.into_iter().enumerate() {
            let (returned, thread) = handle.await.unwrap();
            assert_eq!(returned, number);
            assert_ne!(thread, own);
        }
    });
}

#[test]
fn a_panic_is_in_the_handle_and_the_thread_goes_on() {
    let mut executor = builder().blocking_threads_max(1).build().unwrap();
    executor.block_on(async {
        let bad = spawn_blocking(|| -> u32 { std::panic::resume_unwind(Box::new("blocking")) });
        let error = bad.unwrap().await.unwrap_err();
        assert_eq!(error.to_string(), "the task has panicked: blocking");
        assert_eq!(spawn_blocking(|| 1).unwrap().await.unwrap(), 1);
    });
}

#[test]
fn a_full_queue_gives_the_closure_back() {
    let mut executor = builder().blocking_threads_max(2).blocking_queue_len_max(1).build().unwrap();
    executor.block_on(async {
        let (gate, (started, is_started)) = (Gate::default(), mpsc::channel());
        let blocked = || {
            let (gate, started) = (gate.clone(), started.clone());
            spawn_blocking(move || {
                started.send(()).unwrap();
                gate.wait();
            })
        };
        let running = [blocked().unwrap(), blocked().unwrap()];
        is_started.recv().unwrap();
        is_started.recv().unwrap();
        let queued = spawn_blocking(|| 3).unwrap();
        let rejected = spawn_blocking(|| 4).unwrap_err();
        assert_eq!(rejected.reason, BlockingReason::Full);
        assert!(!running[0].abort(), "it runs");
        gate.open();
        for handle in running {
            handle.await.unwrap();
        }
        assert_eq!(queued.await.unwrap(), 3);
        assert_eq!(spawn_blocking(rejected.closure.into_inner()).unwrap().await.unwrap(), 4);
    });
}

#[test]
fn an_aborted_closure_does_not_start_and_is_dropped_at_once() {
    let mut executor = builder().blocking_threads_max(1).build().unwrap();
    executor.block_on(async {
        let gate = Gate::default();
        let at_gate = gate.clone();
        let running = spawn_blocking(move || at_gate.wait()).unwrap();
        let token = Arc::new(());
        let held = Arc::clone(&token);
        let aborted = spawn_blocking(move || drop(held)).unwrap();
        assert!(aborted.abort());
        assert_eq!(Arc::strong_count(&token), 1);
        assert!(aborted.is_finished() && !aborted.abort());
        assert!(aborted.await.unwrap_err().is_cancelled());
        gate.open();
        running.await.unwrap();
    });
}

#[test]
fn the_end_of_the_executor_drops_queued_closures_and_does_not_wait_for_running_ones() {
    let (gate, ended) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let token = Arc::new(());
    let mut executor = builder().blocking_threads_max(1).build().unwrap();
    let (started, is_started) = mpsc::channel();
    let (running, queued) = executor.block_on(async {
        let (gate, count) = (gate.clone(), Arc::clone(&ended));
        let running = spawn_blocking(move || {
            started.send(()).unwrap();
            gate.wait();
            count.fetch_add(1, SeqCst);
        });
        is_started.recv().unwrap();
        let held = Arc::clone(&token);
        (running.unwrap(), spawn_blocking(move || drop(held)).unwrap())
    });
    drop(executor);
    assert_eq!((ended.load(SeqCst), Arc::strong_count(&token)), (0, 1));
    assert!(block_on(queued).unwrap_err().is_cancelled());
    gate.open();
    // A handle works on another executor, on another thread.
    thread::spawn(|| block_on(running).unwrap()).join().unwrap();
    assert_eq!(ended.load(SeqCst), 1);
}

#[test]
fn a_result_without_a_handle_is_dropped() {
    let token = Arc::new(());
    let held = Arc::clone(&token);
    let (sender, receiver) = mpsc::channel();
    block_on(async {
        struct TellsEnd(#[expect(dead_code, reason = "dropped")] Arc<()>, mpsc::Sender<()>);
        impl Drop for TellsEnd {
            fn drop(&mut self) {
                self.1.send(()).unwrap();
                std::panic::resume_unwind(Box::new("the thread survives this"));
            }
        }
        let gate = Gate::default();
        let at_gate = gate.clone();
        drop(spawn_blocking(move || {
            at_gate.wait();
            TellsEnd(held, sender)
        }));
        gate.open();
        receiver.recv().unwrap();
        assert_eq!(spawn_blocking(|| 1).unwrap().await.unwrap(), 1);
    });
}
