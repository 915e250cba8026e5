//! Errors that return a value go wherever `?` takes them.

use std::{
    cell::Cell,
    future::Future,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{
    AddReason, BuildError, CallError, DeferReason, EmbedReason, Errno, GroupReason,
    GroupStateError, HookError, ModifyError, NotFound, PostError, Remote, RemoteAddError,
    RingError, TakeError, TimerReason, UnknownBackend,
    stream::{InheritedError, ListenError, StreamWriteError},
};

use crate::{
    Build,
    bed::{NOW, readable},
};

// `anyhow` needs errors that are `Sync`. What they return here is not.
fn every_refusal_of_a_remote_goes_into_an_error_of_any_kind(build: Build) {
    struct Descriptor {
        fd: OwnedFd,
        #[expect(dead_code, reason = "it makes the descriptor `!Sync`")]
        cell: Cell<u8>,
    }
    impl AsFd for Descriptor {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }
    type Refuse = fn(&Remote, Cell<u8>) -> anyhow::Result<()>;
    const REFUSALS: [Refuse; 6] = [
        |remote, cell| Ok(remote.post(move |_| cell.set(2))?),
        |remote, cell| Ok(remote.try_post(move |_| cell.set(2))?),
        |remote, cell| Ok(remote.call(move |_| cell.set(2))?),
        |remote, cell| Ok(remote.call_timeout(NOW, move |_| cell.set(2))?),
        |remote, cell| {
            let mut future = remote.call_async(move |_| cell.set(2));
            match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => Ok(answer?),
                Poll::Pending => Ok(()),
            }
        },
        |remote, cell| {
            let fd = Descriptor { fd: eventfd(0, EventfdFlags::CLOEXEC)?, cell };
            readable()
                .with_fd(fd)
                .with_handler(|_: &mut Descriptor| {})
                .register_remotely(remote)?;
            Ok(())
        },
    ];
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    drop(reactor);
    let refused = std::thread::spawn(move || {
        REFUSALS.map(|refuse| refuse(&remote, Cell::new(1)).unwrap_err().to_string())
    });
    assert_eq!(refused.join().unwrap(), ["the reactor is gone"; 6]);
}

/// Every error that `?` meets in a program, whatever it returns. Checked by the compiler.
const _: fn() = || {
    /// `Send` and not `Sync`, as a closure of a `Remote` may be.
    type Moved = Cell<u8>;
    fn is_for_any_program<E: std::error::Error + Send + Sync + 'static>()
    where
        std::io::Error: From<E>,
    {
    }
    is_for_any_program::<AddReason>();
    is_for_any_program::<BuildError>();
    is_for_any_program::<CallError<Moved>>();
    is_for_any_program::<DeferReason>();
    is_for_any_program::<EmbedReason>();
    is_for_any_program::<Errno>();
    is_for_any_program::<GroupReason>();
    is_for_any_program::<GroupStateError>();
    is_for_any_program::<HookError>();
    is_for_any_program::<InheritedError>();
    is_for_any_program::<ListenError>();
    is_for_any_program::<ModifyError>();
    is_for_any_program::<NotFound>();
    is_for_any_program::<PostError<Moved>>();
    is_for_any_program::<RemoteAddError<Moved>>();
    is_for_any_program::<RingError>();
    is_for_any_program::<StreamWriteError>();
    is_for_any_program::<TakeError>();
    is_for_any_program::<TimerReason>();
    is_for_any_program::<UnknownBackend>();
};

scenarios! {
    every_refusal_of_a_remote_goes_into_an_error_of_any_kind,
}
