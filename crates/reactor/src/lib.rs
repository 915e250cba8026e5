//! A Linux event reactor. Dispatching a ready descriptor costs one pointer load and one indirect
//! call.
//!
//! ```no_run
//! use std::net::TcpListener;
//! use windlass::{Reactor, Turn, interest};
//!
//! fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     listener.set_nonblocking(true)?;
//!     let mut reactor = Reactor::new()?;
//!     interest()
//!         .read()
//!         .with_fd(listener)
//!         .with_handler(|listener: &mut TcpListener, mut turn: Turn<'_, _>| {
//!             if let Ok((_stream, peer)) = listener.accept() {
//!                 println!("{peer} connected");
//!                 turn.stop();
//!             }
//!         })
//!         .register_into(&mut reactor)?;
//!     reactor.run()
//! }
//! ```
//!
//! - [`interest()`] begins a registration. [`Reactor::add`] takes a hand-written [`Subscriber`].
//! - [`Turn`] is the handle that a handler receives. With it, the handler registers, modifies and
//!   deletes (itself too), starts timers, defers closures, and stops the loop.
//! - [`Group`] is one state shared by several descriptors, timers and signals.
//! - [`Reactor::after_with`], [`every_with`](Reactor::every_with) and similar methods start timers.
//! - [`stream`]: TCP and Unix byte streams, with listeners and connectors.
//! - [`Remote`] runs closures on the loop's thread from any other thread, through a bounded queue.
//!   [`Stop`] stops the loop from any thread.
//! - [`SignalSet`] receives signals. [`Reactor::embed`] runs the reactor inside another event loop.
//! - Errors return the rejected value, and `?` converts them into an [`io::Error`](std::io::Error).
//!   For `anyhow`, use `.map_err(io::Error::from)?`; [`AddError`] explains why.
//! - Feature `mock`: `MockReactor` and `turn!`, to test handlers without a reactor.
//!
//! For the path of one event, and the safety argument, see [`technical`].

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("windlass is for Linux: it is made of epoll, eventfd, timerfd and signalfd");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("windlass is for 64-bit targets: an event carries a pointer in 64 bits");

mod arena;
mod backend;
mod batch;
mod builder;
mod cell;
mod clock;
mod config;
mod dispatch;
mod embed;
mod error;
mod event;
mod generations;
mod group;
mod groups;
mod handler_fn;
mod hook;
mod inflight;
mod inline_closure;
mod interest;
#[cfg(feature = "mock")]
mod mock;
mod reactor;
mod reclaim;
mod registration;
mod registry;
mod remote;
mod signal;
mod stats;
mod stop;
pub mod stream;
mod thread_bound;
mod timer;
mod turn;
mod unwind_safe_drop;
mod wheel;

#[doc = include_str!("../../../docs/technical.md")]
pub mod technical {}

#[doc(hidden)]
pub use backend::RingFeatures;
pub use backend::{Backend, RingError, RingFeature};
pub use builder::{Registrar, Registration, WithFd, WithHandler};
pub use cell::Subscription;
pub use clock::Clock;
pub use config::Builder;
pub use embed::{EmbedError, Embedded};
pub use error::{
    AddError, AddReason, BuildError, Capacity, DeferError, Errno, HookError, ModifyError, NotFound,
    TakeError, TimerError, TimerReason, UnknownBackend,
};
pub use event::Event;
pub use group::{ErasedGroup, Group, GroupError, GroupKey, GroupReason, GroupState, Registered};
pub use handler_fn::{HandlerFn, MemberFn, MemberTimerFn, TimerFn};
pub use hook::{HOOKS_MAX, HookKey};
pub use interest::{Interest, Ready, interest};
#[cfg(feature = "mock")]
pub use mock::{MockReactor, mock_turn};
pub use reactor::Reactor;
use reactor::pending_work;
pub use registry::Key;
pub use remote::{CallError, CallFuture, PostError, PostReason, Remote, RemoteAddError};
pub use signal::{Received, Signal, SignalSet};
pub use stats::Stats;
pub use stop::Stop;
pub use timer::{Deferred, Schedule, Tick, Timer};
pub use turn::{ReactorOps, Subscriber, Turn};
