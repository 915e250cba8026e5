//! Random programs of calls that are dropped, against an oracle of two queues.

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;
use windlass_testkit::random::cases;
use windlass_websocket::{CloseCode, Config, DeflateConfig, Message, Reader, WebSocket, Writer};

use crate::{
    bed::{Manner, Stream, connected},
    peer::{Receiving, Sending},
};

/// A call of one of the two ends. `polls` is after how many polls its future is dropped.
#[derive(Clone, Debug)]
enum Call {
    Send { len: usize, is_text: bool, polls: usize },
    Feed { len: usize, is_text: bool, polls: usize },
    Flush { polls: usize },
    Ping { polls: usize },
    Receive { polls: usize, replies: bool },
}

fn call() -> impl Strategy<Value = Call> {
    let len = prop_oneof![0..10_usize, 100..140_usize, 1000..1100_usize];
    let message = (len, any::<bool>(), 1..6_usize);
    prop_oneof![
        message.clone().prop_map(|(len, is_text, polls)| Call::Send { len, is_text, polls }),
        message.prop_map(|(len, is_text, polls)| Call::Feed { len, is_text, polls }),
        (1..6_usize).prop_map(|polls| Call::Flush { polls }),
        (1..6_usize).prop_map(|polls| Call::Ping { polls }),
        (1..20_usize, any::<bool>()).prop_map(|(polls, replies)| Call::Receive { polls, replies }),
    ]
}

fn manner() -> impl Strategy<Value = Manner> {
    (1..300_usize, prop_oneof![1..300_usize, Just(usize::MAX)], any::<[bool; 3]>()).prop_map(
        |(chunk, capacity, [stutters, is_vectored, holds])| Manner {
            chunk,
            capacity,
            stutters,
            is_vectored,
            holds,
        },
    )
}

fn poll_some<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
    }
    None
}

/// One end: a whole socket, or its halves.
#[allow(clippy::large_enum_variant, reason = "there are two of them")]
enum End {
    Whole(WebSocket<Stream>),
    Halves(Reader<Stream>, Writer<Stream>),
}

/// A message on its way. One that was sent by a dropped call may be missing.
type Sent = VecDeque<(Message, bool)>;

/// Runs `$use_it` with the sending or receiving part of an end.
macro_rules! with {
    ($end:expr, sending, |$part:ident| $use_it:expr) => {
        match $end {
            End::Whole($part) => $use_it,
            End::Halves(_, $part) => $use_it,
        }
    };
    ($end:expr, receiving, |$part:ident| $use_it:expr) => {
        match $end {
            End::Whole($part) => $use_it,
            End::Halves($part, _) => $use_it,
        }
    };
}

/// Takes the message from the queue, behind those that may be missing.
fn take(sent: &mut Sent, message: &Message) -> Result<(), TestCaseError> {
    while let Some((expected, may_miss)) = sent.pop_front() {
        if expected == *message {
            return Ok(());
        }
        prop_assert!(may_miss, "{expected:?} is missing before {message:?}");
    }
    Err(TestCaseError::fail(format!("{message:?} was not sent, or comes twice")))
}

fn step(
    end: &mut End,
    call: &Call,
    number: usize,
    out: &mut Sent,
    coming: &mut Sent,
) -> Result<(), TestCaseError> {
    let message = |len: usize, is_text: bool| {
        // Each is another, so that none can stand for another.
        let text = format!("{number} {}", "x".repeat(len));
        if is_text { Message::from(text) } else { Message::from(text.into_bytes()) }
    };
    match *call {
        Call::Send { len, is_text, polls } => {
            let message = message(len, is_text);
            let sent = with!(end, sending, |it| poll_some(
                Sending::send(it, message.clone().into()),
                polls
            ));
            let may_miss = sent.is_none();
            sent.unwrap_or(Ok(())).expect("it is open");
            out.push_back((message, may_miss));
        }
        Call::Feed { len, is_text, polls } => {
            let message = message(len, is_text);
            let fed =
                with!(end, sending, |it| poll_some(Sending::feed(it, (&message).into()), polls));
            if let Some(fed) = fed {
                fed.expect("it is open");
                out.push_back((message, false));
            }
        }
        Call::Flush { polls } => {
            let flushed = with!(end, sending, |it| poll_some(Sending::flush(it), polls));
            flushed.unwrap_or(Ok(())).expect("it is open");
        }
        Call::Ping { polls } => {
            let pinged = with!(end, sending, |it| poll_some(Sending::ping(it, b"ping"), polls));
            pinged.unwrap_or(Ok(())).expect("it is open");
        }
        Call::Receive { polls, replies } => {
            let next = with!(end, receiving, |it| poll_some(
                async { if replies { it.reply_to_next().await } else { it.next().await } },
                polls
            ));
            if let Some(next) = next {
                let message = next.expect("it is good").expect("it is open");
                take(coming, &message)?;
                if replies {
                    out.push_back((message, false));
                }
            }
        }
    }
    Ok(())
}

/// Exchanges what is left, and closes.
fn finish(ends: &mut [End; 2], queues: &mut [Sent; 2]) -> Result<(), TestCaseError> {
    let mut pending = 0;
    while pending < 20_000 && queues.iter().any(|queue| !queue.is_empty()) {
        pending += 1;
        for at in 0..2 {
            with!(&mut ends[at], sending, |it| poll_some(Sending::flush(it), 1));
            let next = with!(&mut ends[at], receiving, |it| poll_some(it.next(), 1));
            if let Some(next) = next {
                let message = next.expect("it is good").expect("it is open");
                take(&mut queues[1 - at], &message)?;
                pending = 0;
            }
        }
    }
    for (message, may_miss) in queues.iter().flatten() {
        prop_assert!(may_miss, "{message:?} has not arrived");
    }
    let mut ended = [false; 2];
    for _ in 0..100_000 {
        for at in 0..2 {
            if at == 0 {
                match &mut ends[0] {
                    End::Whole(it) => {
                        it.start_close(CloseCode::NORMAL, "").expect("it is open");
                    }
                    End::Halves(_, it) => {
                        let _ = poll_some(it.close(CloseCode::NORMAL, ""), 1);
                    }
                }
            }
            if let Some(next) = with!(&mut ends[at], receiving, |it| poll_some(it.next(), 1)) {
                let next = next.expect("it is good");
                prop_assert_eq!(next, None);
                ended[at] = true;
            }
        }
        if ended == [true; 2] {
            return Ok(());
        }
    }
    Err(TestCaseError::fail("the closing handshake does not end"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(if cfg!(miri) { 2 } else { 200 })))]

    #[test]
    fn no_message_is_lost_doubled_or_reordered(
        manner in manner(),
        high_watermark in prop_oneof![0..300_usize, Just(64 << 10)],
        has_deflate in any::<bool>(),
        split in any::<[bool; 2]>(),
        calls in prop::collection::vec((0..2_usize, call()), 0..if cfg!(miri) { 10 } else { 80 }),
    ) {
        let mut config = Config::new().high_watermark(high_watermark);
        if has_deflate {
            config = config.deflate(DeflateConfig::DEFAULT);
        }
        let (server, client) = connected(manner, &config, &config);
        let mut ends = [server, client].map(End::Whole);
        for (end, is_split) in ends.iter_mut().zip(split) {
            if is_split {
                replace(end, |end| match end {
                    End::Whole(socket) => {
                        let (reader, writer) = socket.split();
                        End::Halves(reader, writer)
                    }
                    halves => halves,
                });
            }
        }
        let mut queues = [Sent::new(), Sent::new()];
        for (number, (at, call)) in calls.iter().enumerate() {
            let [first, second] = &mut queues;
            let (out, coming) = if *at == 0 { (first, second) } else { (second, first) };
            step(&mut ends[*at], call, number, out, coming)?;
        }
        finish(&mut ends, &mut queues)?;
    }
}

/// Replaces a value by what a function makes of it.
fn replace(end: &mut End, make: impl FnOnce(End) -> End) {
    let (spare, _) = crate::bed::sockets(Manner::SMOOTH, &Config::new());
    let old = std::mem::replace(end, End::Whole(spare));
    *end = make(old);
}
