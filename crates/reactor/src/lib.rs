//! A Linux event reactor: one thread waits for descriptors, timers and signals, and calls a handler
//! for each event.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use std::net::TcpListener;
//! use windlass::{Reactor, Turn, interest};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! listener.set_nonblocking(true)?;
//! # let address = listener.local_addr()?;
//! # let client = std::thread::spawn(move || std::net::TcpStream::connect(address));
//! let mut reactor = Reactor::new()?;
//! interest()
//!     .read()
//!     .with_fd(listener)
//!     .with_handler(|listener: &mut TcpListener, mut turn: Turn<'_, _>| {
//!         if let Ok((_stream, peer)) = listener.accept() {
//!             println!("{peer} connected");
//!             turn.stop();
//!         }
//!     })
//!     .register_into(&mut reactor)?;
//! reactor.run()
//! # }
//! ```
//!
//! The guide in `docs/guide` of the repository leads from a first program to larger ones, page by
//! page.
//!
//! # The parts
//!
//! ```text
//!            your handlers, one at a time, on the loop's thread
//!               |                                ^
//!               | Turn: register, modify,        | Event, Tick, bytes
//!               | delete, timers, defer, stop    |
//!               v                                |
//!    +------------------------ Reactor -------------------------+
//!    |  registrations   timers   groups   signals   streams     |     other threads
//!    |  (Key)           (Key)    (state)  (mask)    listeners   |<--- Remote: call, post
//!    +-----------------------------+----------------------------+<--- Stop: stop
//!                                  | Backend
//!                                  v
//!                      epoll, io_uring or poll
//! ```
//!
//! A *turn* is one wait and the dispatch of all events that it returned. [`Reactor::run`] runs
//! turns until a stop. [`Reactor::run_once`] runs one. A reactor and its handlers stay on one
//! thread.
//!
//! # Where to find what
//!
//! | to | use |
//! |---|---|
//! | build a reactor, choose limits and the backend | [`Reactor::builder`], [`Builder`], [`Backend`] |
//! | wait for a descriptor | [`interest()`], [`Interest`], [`Registration`]; by hand: [`Subscriber`] |
//! | see what happened | [`Event`], [`Ready`], [`Tick`] |
//! | act in a handler | [`Turn`]; for code that a mock can test: [`ReactorOps`] |
//! | start timers | [`Reactor::after_with`], [`every_with`](Reactor::every_with), [`at`](Reactor::at) |
//! | share one state between descriptors, timers, streams and listeners | [`Group`], [`GroupKey`], [`Turn::with_group`] |
//! | call a handler although nothing is ready | [`Turn::kick`], [`Reactor::kick`] |
//! | keep the handlers of a group from running | [`Turn::pause_group`], [`Turn::resume_group`] |
//! | end whatever a key names | [`Turn::remove`], [`Reactor::remove`] |
//! | handle signals | [`SignalSet`], [`Signal`] |
//! | use byte streams over TCP and Unix sockets | the module [`stream`] |
//! | use sockets between a virtual machine and its host | the module [`vsock`] |
//! | pass descriptors over Unix sockets | the module [`fd_passing`] |
//! | call the loop from another thread | [`Remote`]; to end it: [`Stop`] |
//! | run the loop inside another one | [`Reactor::embed`], [`Embedded`]; in tokio: feature `tokio`, `drive` |
//! | run code around each wait | [`Reactor::before_wait`], [`after_turn`](Reactor::after_turn) |
//! | drive a queue or an executor from the loop | [`Reactor::run_with`], [`TurnDriver`] |
//! | leave the ring out of the program | feature `uring`, on by default: `default-features = false` |
//! | measure | [`Stats`] |
//! | name registrations, and list them | [`Turn::set_name`], [`Reactor::registrations`] |
//! | find handlers that keep the loop busy and do nothing | [`Builder::progress_watch`] |
//! | return freed memory to the kernel after a load | [`MemoryTrimmer`] |
//! | test handlers without a kernel | feature `mock`: `MockReactor`, `turn!` |
//! | read how it works | [`technical`] |
//!
//! # Rules for all of it
//!
//! - *Times.* Durations have nanosecond resolution. Timers use the monotonic clock, or a [`Clock`].
//! - *Keys.* A [`Key`] is never reused. A stale one gives [`NotFound`].
//! - *Errors.* Each operation has its own error type, which `?` converts into an
//!   [`io::Error`](std::io::Error), `anyhow::Error` or `Box<dyn Error + Send + Sync>`. A rejected
//!   value is dropped. The form whose name begins with `try_` returns it; see [`AddError`].
//! - *Panics.* A panic of a handler propagates out of [`Reactor::run_once`]. The reactor stays
//!   usable, and the next turn continues with the other events.
//! - *Bounds.* Every queue has a maximum, which [`Builder`] sets.

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    any(miri, not(feature = "uring")),
    allow(dead_code, reason = "what the crate tells the ring and the ring tells the crate")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("windlass is for Linux: it is made of epoll, eventfd, timerfd and signalfd");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("windlass is for 64-bit targets: an event carries a pointer in 64 bits");

mod api;
mod backend;
mod cell;
mod error;
pub mod fd_passing;
mod kernel;
mod registry;
mod remote;
mod runtime;
mod signal;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stream;
mod time;
mod util;
pub mod vsock;
#[cfg(feature = "sim")]
mod world;

#[doc = include_str!("../docs/technical.md")]
pub mod technical {}

#[cfg(feature = "mock")]
pub use api::mock::{MockReactor, mock_turn};
pub use api::{
    backend::Backend,
    driver::{NextTurn, TurnDriver},
    event::Event,
    group::{
        ErasedGroup, Group, GroupError, GroupKey, GroupReason, GroupState, GroupStateError,
        Registered,
    },
    handler_fn::{HandlerFn, MemberFn, MemberTimerFn, TimerFn},
    interest::{Interest, Ready, interest},
    key::Key,
    listing::{NAME_LEN_MAX, RegistrationInfo, RegistrationKind},
    ops::{ReactorOps, Subscriber},
    progress::{NoProgress, ProgressWatch},
    registrar::Registrar,
    stats::Stats,
    timer::{Deferred, Schedule, Tick, Timer, TimerRegistration},
    turn::Turn,
};
#[doc(hidden)]
pub use backend::ring_settings::RingFeatures;
pub use backend::{
    build_error::{BuildError, Capacity},
    napi::{NapiError, NapiPoll},
};
pub use cell::{
    Subscription,
    registration::{Registration, WithFd, WithHandler},
};
pub use error::{
    AddError, AddReason, DeferError, DeferReason, Errno, HookError, KickError, ModifyError,
    NotFound, RingError, RingFeature, TakeError, TimerError, TimerReason, UnknownBackend,
};
pub use remote::{
    CallError, CallFuture, PostError, PostReason, Remote, RemoteAddError, latch, stop::Stop,
};
#[cfg(feature = "tokio")]
pub use runtime::embed_tokio::{drive, drive_with};
#[doc(hidden)]
pub use runtime::random::random;
pub use runtime::{
    builder::Builder,
    embed::{EmbedError, EmbedReason, Embedded},
    hook::{HOOKS_MAX, HookKey},
    reactor::Reactor,
};
pub use signal::{ReceivedSignals, Signal, SignalSet};
pub use time::clock::Clock;
#[doc(hidden)]
pub use time::clock::now;
pub use util::memory_trimmer::MemoryTrimmer;
pub use windlass_flow::Returned;
