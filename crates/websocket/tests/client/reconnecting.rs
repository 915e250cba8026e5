//! A socket that connects again: what is sent, when it tries, and what ends it. The clock is
//! stopped, so delays pass at once.

use std::{
    collections::VecDeque,
    future::{Future as _, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex},
    time::timeout,
};
use windlass_websocket::{
    CloseCode, Config, Message, WebSocket,
    client::{
        Backoff, Client, ConnectionState, LostBy, MessageSender, Overflow, QueueError,
        ReconnectError, Reconnecting, StopReconnecting,
    },
};

use crate::fake::{Fake, paused};

const URL: &str = "ws://192.0.2.1/feed";
const LONG: Duration = Duration::from_secs(1000);

/// A server's end of a stream that breaks after some bytes in each direction.
struct Breaking {
    stream: DuplexStream,
    reads: usize,
    writes: usize,
}

fn broken<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

impl AsyncRead for Breaking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads == 0 {
            return broken();
        }
        let mut part = buffer.take(self.reads);
        let result = Pin::new(&mut self.stream).poll_read(context, &mut part);
        let count = part.filled().len();
        self.reads -= count;
        buffer.advance(count);
        result
    }
}

impl AsyncWrite for Breaking {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.writes == 0 {
            return broken();
        }
        let len = bytes.len().min(self.writes);
        let result = Pin::new(&mut self.stream).poll_write(context, &bytes[..len]);
        if let Poll::Ready(Ok(count)) = result {
            self.writes -= count;
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Connections that break after these bytes, and then good ones. All echo, and the messages that
/// arrived are written down.
fn breaking(limits: &[(usize, usize)]) -> (Fake, Arc<Mutex<Vec<String>>>) {
    let limits = Mutex::new(limits.iter().copied().collect::<VecDeque<_>>());
    let log = Arc::new(Mutex::new(Vec::new()));
    let arrived = log.clone();
    let fake = Fake::new(&[], move |_| {
        let next = limits.lock().expect("no test panicked").pop_front();
        let (reads, writes) = next.unwrap_or((usize::MAX, usize::MAX));
        // A stream of one byte: the client cannot write far beyond what the server reads.
        let (ours, stream) = duplex(1);
        let arrived = arrived.clone();
        tokio::spawn(async move {
            let stream = Breaking { stream, reads, writes };
            let Ok(mut socket) = WebSocket::accept(stream, &Config::new()).await else { return };
            while let Ok(Some(message)) = socket.recv().await {
                let text = message.as_str().expect("text").to_owned();
                arrived.lock().expect("no test panicked").push(text);
                message.reply().expect("it is open");
            }
        });
        Box::pin(async { Ok(ours) })
    });
    (fake, log)
}

/// Connections whose server answers the requests with these bytes, and then does not answer.
fn answering(answers: &[&str]) -> Fake {
    let answers = answers.iter().map(|answer| (*answer).to_owned());
    let answers = Mutex::new(answers.collect::<VecDeque<_>>());
    Fake::new(&[], move |_| {
        let answer = answers.lock().expect("no test panicked").pop_front();
        let (ours, mut stream) = duplex(1 << 16);
        tokio::spawn(async move {
            match answer {
                Some(answer) => stream.write_all(answer.as_bytes()).await.expect("it is open"),
                None => std::future::pending().await,
            }
        });
        Box::pin(async { Ok(ours) })
    })
}

/// A client whose jitter and masking keys are known.
fn client() -> Client {
    Client::new(URL).config(Config::new().entropy(|bytes| bytes.fill(0xff)))
}

#[test]
fn no_message_arrives_twice_wherever_connections_break() {
    const COUNT: usize = 8;
    let mut cut_ever = 0;
    // The request has some 170 bytes, the response 130, and each frame of a client 7.
    for at in (0..400).step_by(3) {
        for limits in [(at, usize::MAX), (usize::MAX, at)] {
            let failures = [limits, (limits.0 / 2, limits.1), limits];
            let (arrived, cut) = paused(async {
                let (fake, log) = breaking(&failures);
                let mut socket = client().reconnecting_on(fake);
                let mut cut = Vec::new();
                for number in 0..COUNT {
                    socket.send(number.to_string()).await.expect("there is room");
                }
                // It waits for a message that never comes.
                let receiving = async {
                    loop {
                        socket.recv().await.expect("it goes on").expect("it is not closed");
                        cut.extend(socket.take_cut());
                    }
                };
                timeout(LONG, receiving).await.expect_err("nothing ends it");
                cut.extend(socket.take_cut());
                assert_eq!(socket.queued(), 0);
                let log = log.lock().expect("no test panicked").clone();
                (log, cut)
            });
            let numbers: Vec<usize> =
                arrived.iter().map(|text| text.parse().expect("a number")).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{limits:?}: {numbers:?}");
            // One that was cut is not sent again.
            let is_sent = |cut: &Message| arrived.iter().any(|text| cut.as_bytes() == &**text);
            assert!(!cut.iter().any(is_sent), "{limits:?}: {numbers:?}, {cut:?} cut");
            cut_ever += cut.len();
            // One that was cut, and one of which the last byte was not read.
            let lost = COUNT - numbers.len();
            assert!(lost <= 2 * failures.len(), "{limits:?}: {numbers:?}, {cut:?} cut");
            assert!(lost == 0 || at > 120, "the handshake failed, {limits:?}: {numbers:?}");
        }
    }
    assert!(cut_ever > 20, "connections have broken within messages, and {cut_ever} were told");
}

#[test]
fn a_dropped_future_loses_nothing() {
    paused(async {
        let (fake, log) = breaking(&[(10, usize::MAX), (200, usize::MAX)]);
        let mut socket = client().reconnecting_on(fake);
        for number in 0..4 {
            socket.send(number.to_string()).await.expect("there is room");
        }
        let mut received = Vec::new();
        // Each future is polled once. The clock moves while the test waits.
        while received.len() < 3 {
            if let Some(Ok(message)) = socket.recv().now_or_never() {
                received.push(message.expect("it is open").as_str().expect("text").to_owned());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let log = log.lock().expect("no test panicked").clone();
        assert_eq!(received[received.len() - 3..], log[log.len() - 3..]);
    });
}

/// The states and the moments of them, in milliseconds, of a socket that is polled for a while.
async fn states<R, H, F>(mut socket: Reconnecting<R, H, F>) -> (Vec<String>, Option<ReconnectError>)
where
    R: windlass_websocket::client::Runtime,
    H: FnMut(Client, windlass_websocket::client::Attempt) -> F,
    F: Future<Output = Result<Client, StopReconnecting>>,
{
    let start = tokio::time::Instant::now();
    let (mut seen, mut states) = (Vec::new(), socket.states());
    let mut receiving = Box::pin(timeout(LONG, socket.recv()));
    let mut error = None;
    let mut is_over = false;
    poll_fn(|context| {
        if !is_over {
            if let Poll::Ready(end) = receiving.as_mut().poll(context) {
                error = end.ok().and_then(Result::err);
                is_over = true;
            }
        }
        while let Poll::Ready(Some(state)) = states.poll_next_unpin(context) {
            seen.push(format!("{} {state:?}", start.elapsed().as_millis()));
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (seen, error)
}

#[test]
fn delays_grow_and_each_state_is_told() {
    paused(async {
        let mut backoff = Backoff::DEFAULT;
        backoff.attempts_max = Some(3);
        let fake = answering(&["HTTP/1.1 500 A\r\n\r\n"; 3]);
        let (seen, error) = states(client().reconnecting_on(fake).backoff(backoff)).await;
        let kinds: Vec<&str> = seen.iter().map(|state| state.split_once(' ').unwrap().1).collect();
        assert_eq!(
            kinds,
            [
                "Connecting { attempt: 1 }",
                "Waiting { failures: 1, delay: 500ms }",
                "Connecting { attempt: 2 }",
                "Waiting { failures: 2, delay: 1s }",
                "Connecting { attempt: 3 }",
                "Ended"
            ]
        );
        let error = error.expect("it gives up").to_string();
        assert_eq!(
            error,
            "attempts_max reached; the last error: the server answered with status 500 instead of \
             101"
        );
        let last: u32 = seen[5].split_once(' ').unwrap().0.parse().unwrap();
        assert!((1500..1510).contains(&last), "{seen:?}");
    });
}

#[test]
fn the_server_decides_by_its_status() {
    for (status, is_end) in
        [(400, true), (401, true), (404, true), (408, false), (429, false), (503, false)]
    {
        paused(async {
            let answer = format!("HTTP/1.1 {status} X\r\nRetry-After: 7\r\n\r\n");
            let fake = answering(&[&answer]);
            let (seen, error) = states(client().reconnecting_on(fake)).await;
            match error {
                Some(ReconnectError::Permanent(error)) => {
                    assert_eq!(error.response().expect("it has one").status, status);
                    assert!(is_end);
                }
                None => assert!(!is_end && seen[1].ends_with("delay: 7s }"), "{seen:?}"),
                Some(error) => panic!("{error}"),
            }
        });
    }
}

#[test]
fn the_hook_changes_the_request_and_can_stop() {
    paused(async {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        let fake = answering(&["HTTP/1.1 500 A\r\n\r\n", "no HTTP\r\n\r\n"]);
        let socket = client().reconnecting_on(fake).before_attempt(move |client, attempt| {
            let told = told.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let why = attempt.lost_by.as_ref().map(ToString::to_string).unwrap_or_default();
                told.lock().unwrap().push(format!("{} {why}", attempt.number));
                let bad = attempt.number == 4;
                if bad { Err(StopReconnecting) } else { Ok(client.header("X-Attempt", "1")) }
            }
        });
        let (_, error) = states(socket).await;
        assert!(matches!(error, Some(ReconnectError::Stopped)), "{error:?}");
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0], "1 ");
        assert_eq!(seen[1], "2 the server answered with status 500 instead of 101");
        assert!(seen[2].starts_with("3 the WebSocket handshake failed: malformed"), "{seen:?}");
        assert!(seen[3].starts_with("4 the WebSocket handshake took too long"), "{seen:?}");
    });
}

#[test]
fn a_hook_resumes_at_a_position() {
    paused(async {
        let (fake, _) = breaking(&[(200, usize::MAX)]);
        let urls = Arc::new(Mutex::new(Vec::new()));
        let told = urls.clone();
        let mut socket = client().reconnecting_on(fake).before_attempt(move |client, attempt| {
            told.lock().unwrap().push((
                attempt.connections,
                attempt.lost_by.is_some_and(|by| matches!(by, LostBy::Recv(_) | LostBy::Send(_))),
            ));
            std::future::ready(Ok(client.url(&format!("{URL}?from={}", attempt.connections))))
        });
        for number in 0..20 {
            socket.send(number.to_string()).await.expect("there is room");
        }
        timeout(LONG, async { while socket.recv().await.expect("it goes on").is_some() {} })
            .await
            .expect_err("nothing ends it");
        assert_eq!(*urls.lock().unwrap(), [(0, false), (1, true)]);
    });
}

#[test]
fn a_full_queue_does_what_it_was_told() {
    paused(async {
        let silent = || client().reconnecting_on(answering(&[]));
        let mut waiting = silent().queue(2, 100, Overflow::Wait);
        waiting.send("a").await.expect("there is room");
        waiting.send("b").await.expect("there is room");
        timeout(Duration::from_secs(1), waiting.send("c")).await.expect_err("it is full");
        let full = waiting.sender().try_send("c");
        assert!(matches!(full, Err(QueueError::Full(message)) if message.as_str() == Some("c")));
        let refusing = silent().queue(9, 3, Overflow::Refuse);
        refusing.sender().send("long alone").await.expect("it is the only one");
        let full = refusing.sender().send("d").await.expect_err("it has too many bytes");
        let text = "the queue of unsent messages is full; raise its limits";
        assert_eq!(full.to_string(), text);
        let mut dropping = silent().queue(2, 100, Overflow::DropOldest);
        for text in ["a", "b", "c"] {
            dropping.send(text).await.expect("it makes room");
        }
        assert_eq!((dropping.dropped(), dropping.queued()), (1, 2));
        let left = dropping.take_queued().expect("two wait");
        assert_eq!(left.as_str(), Some("b"));
        let sender = dropping.sender();
        drop(dropping);
        assert!(matches!(sender.try_send("e"), Err(QueueError::Ended(_))));
    });
}

#[test]
fn a_task_that_waits_for_room_goes_on_when_the_server_is_there() {
    paused(async {
        let (fake, log) = breaking(&[(0, 0)]);
        let mut socket = client().reconnecting_on(fake).queue(1, 100, Overflow::Wait);
        let sender = socket.sender();
        let sending = tokio::spawn(async move {
            for number in 0..5 {
                sender.send(number.to_string()).await.expect("it does not end");
            }
        });
        for number in 0..5 {
            let message = socket.recv().await.expect("it goes on").expect("it is open");
            assert_eq!(message.as_str(), Some(&*number.to_string()));
        }
        sending.await.expect("it is good");
        assert_eq!(log.lock().unwrap().len(), 5);
    });
}

/// A waker that calls the queue, and counts.
struct Curious {
    sender: MessageSender,
    wakes: AtomicUsize,
}

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        assert!(self.sender.try_send("in a waker").is_err(), "the socket has ended");
        self.wakes.fetch_add(1, Relaxed);
    }
}

#[test]
fn wakers_may_use_the_queue_and_a_wait_that_is_dropped_leaves_none() {
    let socket = client().reconnecting_on(answering(&[])).queue(1, 100, Overflow::Wait);
    let sender = socket.sender();
    sender.try_send("one").expect("there is room");
    let curious = Arc::new(Curious { sender: sender.clone(), wakes: AtomicUsize::new(0) });
    let waker = Waker::from(Arc::clone(&curious));
    let context = &mut Context::from_waker(&waker);
    for _ in 0..100 {
        assert!(pin!(sender.send("two")).poll(context).is_pending());
    }
    assert_eq!(Arc::strong_count(&curious), 2, "this one, and that of `waker`");
    let mut waiting = pin!(sender.send("two"));
    assert!(waiting.as_mut().poll(context).is_pending());
    let mut states = socket.states();
    assert!(states.poll_next_unpin(context).is_ready());
    assert!(states.poll_next_unpin(context).is_pending());
    drop(socket);
    assert_eq!(curious.wakes.load(Relaxed), 2);
    assert!(matches!(waiting.poll(context), Poll::Ready(Err(QueueError::Ended(_)))));
}

#[test]
fn flush_connects_and_close_ends() {
    paused(async {
        let (fake, log) = breaking(&[(0, 0)]);
        let mut socket = client().reconnecting_on(fake);
        let mut states = socket.states();
        socket.send("a").await.expect("there is room");
        socket.flush().await.expect("it connects");
        assert_eq!(socket.state(), ConnectionState::Open { connection: 1 });
        socket.close(CloseCode::NORMAL, "").await.expect("it is answered");
        assert_eq!(*log.lock().unwrap(), ["a"]);
        assert!(socket.recv().await.expect("the end is clean").is_none());
        assert_eq!(states.next().await, Some(ConnectionState::Ended));
        assert_eq!(states.next().await, None);
        let refused = socket.send("b").await.expect_err("it has ended");
        assert_eq!(refused.to_string(), "the socket has ended and does not connect again");
    });
}
