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

mod api;
mod backend;
mod cell;
mod error;
mod registry;
mod remote;
mod runtime;
mod signal;
pub mod stream;
mod time;
mod util;

#[doc = include_str!("../docs/technical.md")]
pub mod technical {}

#[cfg(feature = "mock")]
pub use api::mock::{MockReactor, mock_turn};
pub use api::{
    backend::Backend,
    event::Event,
    group::{ErasedGroup, Group, GroupError, GroupKey, GroupReason, GroupState, Registered},
    handler_fn::{HandlerFn, MemberFn, MemberTimerFn, TimerFn},
    interest::{Interest, Ready, interest},
    key::Key,
    ops::{ReactorOps, Subscriber},
    registration::{Registrar, Registration, WithFd, WithHandler},
    stats::Stats,
    timer::{Deferred, Schedule, Tick, Timer},
    turn::Turn,
};
#[doc(hidden)]
pub use backend::RingFeatures;
pub use backend::{
    RingError, RingFeature,
    build_error::{BuildError, Capacity},
};
pub use cell::Subscription;
pub use error::{
    AddError, AddReason, DeferError, Errno, HookError, ModifyError, NotFound, TakeError,
    TimerError, TimerReason, UnknownBackend,
};
pub use remote::{
    CallError, CallFuture, PostError, PostReason, Remote, RemoteAddError, stop::Stop,
};
pub use runtime::{
    builder::Builder,
    embed::{EmbedError, Embedded},
    hook::{HOOKS_MAX, HookKey},
    reactor::Reactor,
};
pub use signal::{Received, Signal, SignalSet};
pub use time::clock::Clock;
