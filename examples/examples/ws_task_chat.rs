//! A chat with tokio-tungstenite: a task for each member.
//!
//! `cargo run --example ws_task_chat -- 127.0.0.1:9013`. Each text goes to all members.
//!
//! It shows:
//! - tokio-tungstenite runs as it is: streams have tokio's traits.
//! - A member has a bounded queue. One that does not read in time is disconnected, and the others
//!   go on.
//! - The list of members is an `Rc`, because all of it is on one thread. With thousands of members
//!   `windlass-server` needs less memory: its connections are no tasks.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Poll, Waker},
};

use futures_util::{Sink as _, Stream as _};
use tokio_tungstenite::{
    WebSocketStream, accept_async,
    tungstenite::{Error, Message, Utf8Bytes},
};
use windlass_task::{
    Executor,
    net::{TcpListener, TcpStream},
    spawn,
};

/// The number of messages that wait for a member at most.
const QUEUE_MAX: usize = 64;

/// The texts that wait for one member.
#[derive(Default)]
struct Queue {
    texts: RefCell<VecDeque<Utf8Bytes>>,
    is_overrun: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Room {
    members: RefCell<HashMap<u64, Rc<Queue>>>,
    last: Cell<u64>,
}

impl Room {
    fn publish(&self, text: &Utf8Bytes) {
        for member in self.members.borrow().values() {
            if member.texts.borrow().len() < QUEUE_MAX {
                member.texts.borrow_mut().push_back(text.clone());
            } else {
                member.is_overrun.set(true);
            }
            if let Some(waker) = member.waker.take() {
                waker.wake();
            }
        }
    }
}

/// Reads and writes in one task, whichever is possible.
async fn member(stream: TcpStream, room: Rc<Room>) -> Result<(), Error> {
    let mut socket = accept_async(stream).await?;
    let queue = Rc::new(Queue::default());
    let number = room.last.get() + 1;
    room.last.set(number);
    room.members.borrow_mut().insert(number, Rc::clone(&queue));
    let outcome = poll_fn(|context| poll_member(&mut socket, &queue, &room, context)).await;
    room.members.borrow_mut().remove(&number);
    outcome
}

fn poll_member(
    socket: &mut WebSocketStream<TcpStream>,
    queue: &Queue,
    room: &Room,
    context: &mut std::task::Context<'_>,
) -> Poll<Result<(), Error>> {
    queue.waker.set(Some(context.waker().clone()));
    let mut socket = Pin::new(socket);
    while let Poll::Ready(message) = socket.as_mut().poll_next(context) {
        match message {
            Some(Ok(Message::Text(text))) => room.publish(&text),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => return Poll::Ready(Ok(())),
        }
    }
    if queue.is_overrun.get() {
        // It is dropped, which closes the connection.
        return Poll::Ready(Ok(()));
    }
    while !queue.texts.borrow().is_empty() {
        match socket.as_mut().poll_ready(context) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Poll::Pending,
        }
        let text = queue.texts.borrow_mut().pop_front();
        if let Some(text) = text {
            socket.as_mut().start_send(Message::Text(text))?;
        }
    }
    match socket.poll_flush(context) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        _ => Poll::Pending,
    }
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    let room = Rc::new(Room::default());
    loop {
        let (stream, peer) = listener.accept().await?;
        let room = Rc::clone(&room);
        spawn(async move {
            if let Err(error) = member(stream, room).await {
                eprintln!("{peer}: {error}");
            }
        })
        .detach();
    }
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9013".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on ws://{}/", listener.local_addr()?);
        serve(listener).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{SinkExt as _, StreamExt as _};
    use std::net::SocketAddr;
    use tokio_tungstenite::client_async;

    async fn connect(address: SocketAddr) -> WebSocketStream<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut socket = client_async("ws://here/", stream).await.unwrap().0;
        // A member is there when its own text has come back.
        socket.send(Message::text("here")).await.unwrap();
        assert_eq!(next(&mut socket).await, "here");
        socket
    }

    async fn next(socket: &mut WebSocketStream<TcpStream>) -> String {
        socket.next().await.unwrap().unwrap().into_text().unwrap().to_string()
    }

    fn run(clients: impl AsyncFnOnce(SocketAddr)) {
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            spawn(serve(listener)).detach();
            clients(address).await;
        });
    }

    #[test]
    fn texts_go_to_all_members() {
        run(async |address| {
            let mut ann = connect(address).await;
            let mut bob = connect(address).await;
            assert_eq!(next(&mut ann).await, "here");
            for text in ["one", "two"] {
                ann.send(Message::text(text)).await.unwrap();
                assert_eq!(
                    (next(&mut ann).await, next(&mut bob).await),
                    (text.into(), text.into())
                );
            }
            bob.close(None).await.unwrap();
            ann.send(Message::text("alone")).await.unwrap();
            assert_eq!(next(&mut ann).await, "alone");
        });
    }

    #[test]
    fn a_member_that_does_not_read_is_disconnected_and_the_others_go_on() {
        run(async |address| {
            let mut slow = connect(address).await;
            let mut fast = connect(address).await;
            let text = "t".repeat(1 << 20);
            // The slow one has room for 64 of them, and for what its socket takes.
            for _ in 0..120 {
                fast.send(Message::text(text.clone())).await.unwrap();
                assert_eq!(next(&mut fast).await.len(), text.len());
            }
            let mut received = 0;
            while let Some(Ok(_)) = slow.next().await {
                received += 1;
            }
            assert!(received < 120, "{received}");
        });
    }
}
