//! tokio's tasks, sockets and sleeps, on both of its runtimes for one thread.
#![allow(unsafe_code, reason = "the workloads are not `Send`, and tokio's `spawn` asks for that")]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, LocalOptions, LocalRuntime};
use tokio::task::JoinHandle;
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{RemoteSpawn, Runtime, polls_per_turn};
use windlass_bench_driver::{Error, Unsupported};

fn builder(case: &Case) -> Builder {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    if let Some(count) = polls_per_turn(case) {
        builder.event_interval(count);
    }
    builder
}

/// Both runtimes differ only in how they are made, run and spawn.
macro_rules! runtime {
    ($name:ident, $runtime:ty, $build:expr, $spawn:expr) => {
        pub(crate) struct $name($runtime);

        impl Runtime for $name {
            windlass_bench_driver::runtime_sockets!(TcpListener, TcpStream, Connection);

            type Remote = Remote;

            fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
                let build: fn(&mut Builder) -> io::Result<$runtime> = $build;
                Ok(Self(build(&mut builder(case))?))
            }

            fn block_on<F: Future>(&mut self, future: F) -> F::Output {
                self.0.block_on(future)
            }

            fn remote(&self) -> Result<Remote, Unsupported> {
                Ok(Remote(self.0.handle().clone()))
            }

            fn spawn<F: Future<Output = ()> + 'static>(
                future: F,
            ) -> impl Future<Output = ()> + 'static {
                let task: JoinHandle<()> = $spawn(future);
                async { task.await.expect("no task panics") }
            }

            fn detach<F: Future<Output = ()> + 'static>(future: F) {
                let task: JoinHandle<()> = $spawn(future);
                drop(task);
            }

            fn sleep(span: Duration) -> impl Future<Output = ()> + 'static {
                tokio::time::sleep(span)
            }
        }
    };
}

runtime!(CurrentThread, tokio::runtime::Runtime, |builder| builder.build(), spawn_same_thread);
runtime!(
    Local,
    LocalRuntime,
    |builder| builder.build_local(LocalOptions::default()),
    tokio::task::spawn_local
);

/// Spawns on the runtime that runs on this thread.
fn spawn_same_thread<F: Future<Output = ()> + 'static>(future: F) -> JoinHandle<()> {
    // SAFETY: a current-thread runtime polls its tasks inside of `block_on`, and drops them there
    // or with itself. All of that is on the thread of the program's main loop, or of the loop that
    // made the runtime.
    tokio::spawn(unsafe { SameThread::new(future) })
}

/// A future that stays on its thread.
struct SameThread<F>(F);

impl<F> SameThread<F> {
    /// # Safety
    /// The future is polled and dropped on this thread.
    unsafe fn new(future: F) -> Self {
        Self(future)
    }
}

// SAFETY: the caller of `new` has promised that the future stays on its thread.
unsafe impl<F> Send for SameThread<F> {}

impl<F: Future> Future for SameThread<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the field is pinned with the whole, and is never moved out.
        unsafe { self.map_unchecked_mut(|this| &mut this.0) }.poll(context)
    }
}

windlass_bench_driver::borrowing_connection!(TcpStream, |_| None);

pub(crate) struct Remote(Handle);

impl RemoteSpawn for Remote {
    #[inline]
    fn spawn(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        drop(self.0.spawn(async move { job() }));
        Ok(())
    }
}
