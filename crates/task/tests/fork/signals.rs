//! Signals to a process with several executors, and in a child.

use std::{sync::mpsc, thread, time::Duration};

use nix::{
    sys::signal::{SIGUSR1, kill},
    unistd::getpid,
};
use windlass::Backend;
use windlass_task::signal::{Signal, Signals};

use crate::{children::executor, tools::in_child};

/// Longer than a process of this program lives.
const PATIENCE: Duration = Duration::from_secs(600);

const SIGNALS: usize = 15;

pub(crate) fn a_signal_to_the_process_is_told_to_each_executor(backend: Backend) {
    executor(backend).block_on(async {
        // First, so that the threads inherit the mask.
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        let others = [(); 2].map(|()| {
            let (sender, told) = mpsc::channel();
            thread::spawn(move || {
                executor(backend).block_on(async {
                    let mut signals = Signals::new([Signal::USR1]).unwrap();
                    sender.send(None).unwrap();
                    for _ in 0..SIGNALS {
                        sender.send(Some(signals.recv().await.unwrap())).unwrap();
                    }
                });
            });
            assert_eq!(told.recv_timeout(PATIENCE), Ok(None));
            told
        });
        for _ in 0..SIGNALS {
            kill(getpid(), SIGUSR1).unwrap();
            assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
            for told in &others {
                assert_eq!(told.recv_timeout(PATIENCE), Ok(Some(Signal::USR1)));
            }
        }
    });
}

/// The child drops its copy of a listener, and then has one of its own.
pub(crate) fn a_child_listens_for_itself(backend: Backend) {
    let mut parent = executor(backend);
    let mut signals = parent.block_on(async { Signals::new([Signal::USR1]).unwrap() });
    in_child(|| {
        executor(backend).block_on(async {
            let mut own = Signals::new([Signal::USR1]).unwrap();
            kill(getpid(), SIGUSR1).unwrap();
            assert_eq!(own.recv().await.unwrap(), Signal::USR1);
        });
    });
    parent.block_on(async {
        kill(getpid(), SIGUSR1).unwrap();
        assert_eq!(signals.recv().await.unwrap(), Signal::USR1);
    });
}
