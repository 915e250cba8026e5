//! [`race`]: the first of two futures.

use core::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Waits for the first of two futures. The other one is dropped.
///
/// The two are polled first alternately, so neither uses up the budget of each poll before the
/// other one is asked. If both are ready in the first poll, the first argument wins. So in a loop
/// that races anew each time, pass the end of the loop first.
///
/// To go on with the other one, pass a reference to it that is pinned: `race(a, &mut b)`, with `b`
/// from [`pin!`](core::pin::pin). Large futures should be passed so, too: the compiler gives a
/// future that is passed by value twice its room.
///
/// To race one future with a time or with a token, use [`timeout`](crate::time::timeout()) and
/// [`cancelled_by`](crate::cancel::CancelExt::cancelled_by). To wait for more futures, use a
/// [`JoinSet`](crate::JoinSet), or `select_all` and `FuturesUnordered` of the crate `futures-util`.
///
/// ```
/// use std::{io, time::Duration};
/// use windlass_task::{Either, block_on, net::UnixStream, race, time::sleep};
///
/// # fn main() -> io::Result<()> {
/// block_on(async {
///     let (mut here, _there) = UnixStream::pair()?;
///     let mut byte = [0];
///     match race(here.read(&mut byte), sleep(Duration::from_millis(1))).await {
///         Either::First(count) => unreachable!("{count:?} bytes from nobody"),
///         Either::Second(()) => println!("nothing came"),
///     }
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias = "select")]
pub async fn race<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut is_second = false;
    poll_fn(|context| {
        for _ in 0..2 {
            let poll = if is_second {
                second.as_mut().poll(context).map(Either::Second)
            } else {
                first.as_mut().poll(context).map(Either::First)
            };
            if poll.is_ready() {
                return poll;
            }
            is_second = !is_second;
        }
        // The other one is the first of the next poll.
        is_second = !is_second;
        Poll::Pending
    })
    .await
}

/// The output of one of two futures: [`race`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Either<A, B> {
    /// That of the first argument.
    First(A),
    /// That of the second argument.
    Second(B),
}

impl<T> Either<T, T> {
    /// The output, where both are of one type.
    ///
    /// ```
    /// use std::future::{pending, ready};
    /// use windlass_task::{block_on, race};
    ///
    /// assert_eq!(block_on(race(pending(), ready(5))).into_inner(), 5);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            Self::First(output) | Self::Second(output) => output,
        }
    }
}
