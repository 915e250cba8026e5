//! Any bytes of a peer at a socket. However they are cut, whichever futures are dropped, and in
//! which form they are received, the messages, the end and the output are the same.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use futures_core::Stream as _;
use futures_sink::Sink as _;
use windlass_websocket::{Agreement, Message, RecvError, Role, WebSocket};

use super::{
    input::Input,
    stream::{Pipe, SharedPipe, Stream, poll_times},
};

/// Small, so that a fuzzer reaches the limits.
const MESSAGE_MAX: usize = 4096;

/// More polls than any session takes.
const POLLS_MAX: usize = 1 << 20;

/// The clean end, as [`until_end`] says it.
const CLEAN: &str = "Ok(false)";

/// What a session was.
#[derive(Debug, PartialEq)]
struct Seen {
    messages: Vec<Message>,
    end: String,
    output: Vec<u8>,
}

/// How a session is run.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Messages are lent, and some are replied to.
    Lent,
    /// Messages are owned, and the same are sent back.
    Owned,
    /// Messages are lent by the reader of two halves, and some are replied to.
    Halves,
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let role = if flags & 1 == 0 { Role::Server } else { Role::Client };
    let config = input.config().message_max(MESSAGE_MAX).frame_max(MESSAGE_MAX).fragments_max(64);
    let agreement = (input.byte() & 1 != 0).then_some(Agreement::DEFAULT);
    let script_len = usize::from(input.byte() % 16);
    let script = input.bytes(script_len).to_vec();
    let ahead_len = usize::from(input.byte() % 32);
    let bytes = input.rest();
    let session = |form, script: &[u8], polls, ahead_len: usize| {
        let (incoming, outgoing) = (SharedPipe::default(), SharedPipe::default());
        let (ahead, rest) = bytes.split_at(ahead_len.min(bytes.len()));
        *incoming.borrow_mut() = Pipe { bytes: rest.iter().copied().collect(), is_closed: true };
        let stream = Stream::new(&incoming, &outgoing, script);
        let mut socket = WebSocket::from_upgraded(stream, ahead, role, &config);
        if let Some(agreement) = agreement {
            socket = socket.with_agreement(agreement);
        }
        let (messages, end) = receive(socket, form, polls);
        let output = Rc::into_inner(outgoing).expect("the stream is gone").into_inner().bytes;
        Seen { messages, end, output: output.into() }
    };
    let whole = session(Form::Lent, &[], POLLS_MAX, 0);
    for form in [Form::Lent, Form::Owned, Form::Halves] {
        let cut = session(form, &script, 1 + usize::from(flags >> 6), ahead_len);
        assert_eq!((&cut.messages, &cut.end), (&whole.messages, &whole.end), "{form:?}");
        if whole.end == CLEAN {
            assert_eq!(cut.output, whole.output, "{form:?}");
        } else {
            // What has not been written yet is discarded.
            let len = cut.output.len().min(whole.output.len());
            assert_eq!(cut.output[..len], whole.output[..len], "{form:?}");
        }
    }
}

/// Receives everything, with futures that are dropped after so many polls.
fn receive(mut socket: WebSocket<Stream>, form: Form, polls: usize) -> (Vec<Message>, String) {
    let mut messages = Vec::new();
    let is_replied = |message: &Message| message.as_bytes().len() % 2 == 0;
    let end = match form {
        Form::Lent => until_end(|| {
            let received = poll_times(polls, socket.recv())?;
            Some(received.map(|received| {
                received.map(|received| {
                    let message = received.to_message().expect("it is unchanged");
                    if is_replied(&message) {
                        // It fails after the Close frame.
                        let _ = received.reply();
                    }
                    messages.push(message);
                })
            }))
        }),
        Form::Owned => until_end(|| {
            let mut context = Context::from_waker(Waker::noop());
            let received = match Pin::new(&mut socket).poll_next(&mut context) {
                Poll::Ready(received) => received,
                Poll::Pending => return None,
            };
            let message = match received.transpose() {
                Ok(message) => message,
                Err(error) => return Some(Err(error)),
            };
            Some(Ok(message.map(|message| {
                if is_replied(&message) {
                    let _ = Pin::new(&mut socket).start_send(message.clone());
                }
                messages.push(message);
            })))
        }),
        Form::Halves => {
            let (mut reader, writer) = socket.split();
            let end = until_end(|| {
                let received = poll_times(polls, reader.recv())?;
                Some(received.map(|received| {
                    received.map(|received| {
                        let message = received.to_message().expect("it is unchanged");
                        if is_replied(&message) {
                            let _ = received.reply();
                        }
                        messages.push(message);
                    })
                }))
            });
            socket = reader.reunite(writer).expect("they are halves of one socket");
            end
        }
    };
    if !matches!(form, Form::Owned) {
        let again = poll_times(POLLS_MAX, socket.recv()).expect("the end stays");
        assert_eq!(format!("{:?}", again.map(|found| found.is_some())), end, "later calls say so");
    }
    (messages, end)
}

/// Calls `next` until the end, and returns it in the words of `recv`.
fn until_end(mut next: impl FnMut() -> Option<Result<Option<()>, RecvError>>) -> String {
    for _ in 0..POLLS_MAX {
        match next() {
            None | Some(Ok(Some(()))) => {}
            Some(Ok(None)) => return CLEAN.to_owned(),
            Some(Err(error)) => return format!("Err({error:?})"),
        }
    }
    panic!("it makes no progress");
}
