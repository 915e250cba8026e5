//! Connections: listeners of workers, backlogs, and handing a connection over.

use std::{
    future::{Future as _, poll_fn},
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream as Client},
    pin::pin,
    sync::mpsc,
    task::Poll,
    thread,
    time::Duration,
};

use windlass_task::{Executor, JoinSet, WorkerContext, Workers, net::TcpStream, spawn, yield_now};

use crate::{acknowledged::until_acknowledged, builder, reactor};

/// Answers each byte with the worker's index, until the client ends.
async fn answer(mut stream: TcpStream, index: usize) {
    let mut byte = [0];
    while stream.read(&mut byte).await.unwrap() == 1 {
        stream.write_all(&[u8::try_from(index).unwrap()]).await.unwrap();
    }
}

fn ask(client: &mut Client) -> u8 {
    client.write_all(b"?").unwrap();
    answer_to(client)
}

fn answer_to(client: &mut Client) -> u8 {
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    answer[0]
}

#[test]
fn the_kernel_distributes_connections_over_the_listeners_of_all_workers() {
    let workers = builder(2)
        .listen("127.0.0.1:0".parse().unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .start(|worker: WorkerContext| async move {
            let first = worker.take_listener().unwrap();
            let second = worker.take_listener().unwrap();
            let error = worker.take_listener().unwrap_err();
            assert!(error.to_string().contains("has no listener left"), "{error}");
            assert_ne!(first.local_addr().unwrap(), second.local_addr().unwrap());
            let index = worker.index();
            for listener in [first, second] {
                spawn(async move {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        spawn(answer(stream, index)).detach();
                    }
                })
                .detach();
            }
            worker.stopped().await;
        })
        .unwrap();
    assert_eq!(workers.addresses().len(), 2);
    for address in workers.addresses() {
        let mut seen = [false; 2];
        // The kernel chooses by a hash of the addresses, so each try may find either.
        while seen != [true; 2] {
            let mut client = Client::connect(address).unwrap();
            let index = ask(&mut client);
            assert_eq!(ask(&mut client), index, "a connection stays with its worker");
            seen[usize::from(index)] = true;
        }
    }
    workers.stop();
    assert!(workers.join().iter().all(Result::is_ok));
}

#[test]
fn connections_in_the_backlog_are_served_after_a_stop() {
    const CLIENTS: usize = 20;
    let workers = builder(2)
        .listen("127.0.0.1:0".parse().unwrap())
        .start(|worker: WorkerContext| async move {
            let listener = worker.take_listener().unwrap();
            worker.stopped().await;
            let mut connections = JoinSet::new();
            for accepted in listener.into_backlog() {
                connections.spawn(answer(accepted.unwrap().0, worker.index()));
            }
            connections.join_all().await.len()
        })
        .unwrap();
    let address: SocketAddr = workers.addresses()[0];
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client::connect(address).unwrap()).collect();
    for client in &mut clients {
        client.write_all(b"?").unwrap();
        // It is established at both ends, although nobody accepts.
        until_acknowledged(client);
    }
    workers.stop();
    for mut client in clients {
        answer_to(&mut client);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
    let served: usize = workers.join().into_iter().map(Result::unwrap).sum();
    assert_eq!(served, CLIENTS);
}

/// A connection on its way to another worker.
struct HandOver {
    stream: std::net::TcpStream,
    /// Bytes that were read already.
    read_buf: Vec<u8>,
}

#[test]
fn a_connection_is_handed_over_with_the_bytes_that_were_read() {
    let workers = builder(2)
        .listen("127.0.0.1:0".parse().unwrap())
        .start(|worker: WorkerContext<HandOver>| async move {
            let mut inbox = worker.take_inbox().unwrap();
            let index = worker.index();
            let received = spawn(async move {
                let mut connections = JoinSet::new();
                while let Some(HandOver { stream, read_buf }) = inbox.recv().await {
                    // The bytes that were read come first.
                    let mut stream = TcpStream::from_std_with_read_buf(stream, read_buf).unwrap();
                    connections.spawn(async move {
                        let mut first = [0; 4];
                        stream.read_exact(&mut first).await.unwrap();
                        stream.write_all(&first).await.unwrap();
                        let index = u8::try_from(index).unwrap();
                        stream.write_all(&[b'0' + index]).await.unwrap();
                        answer(stream, usize::from(index)).await;
                    });
                }
                connections.join_all().await.len()
            });
            let listener = worker.take_listener().unwrap();
            let handing = worker.clone();
            spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let mut first = [0; 4];
                    stream.read_exact(&mut first).await.unwrap();
                    // More bytes may have been received meanwhile.
                    let (stream, rest) = stream.detach().await.unwrap();
                    let hand_over = HandOver { stream, read_buf: [&first[..], &rest].concat() };
                    handing.handle().send(1 - handing.index(), hand_over).await.unwrap();
                }
            })
            .detach();
            worker.stopped().await;
            received.await.unwrap()
        })
        .unwrap();
    let address = workers.addresses()[0];
    for _ in 0..10 {
        let mut client = Client::connect(address).unwrap();
        client.write_all(b"askd").unwrap();
        let mut back = [0; 5];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back[..4], b"askd");
        let index = back[4] - b'0';
        assert_eq!(ask(&mut client), index);
    }
    workers.stop();
    assert_eq!(workers.join().into_iter().map(Result::unwrap).sum::<usize>(), 10);
}

/// The peer begins to read when the future has ended. Its stream was dropped with it.
#[test]
fn the_end_of_a_worker_sends_what_was_written() {
    let (future, has_ended) = mpsc::channel::<()>();
    let workers = Workers::builder()
        .count(1)
        .executor(|| Executor::builder().reactor(reactor()).drain_timeout(Duration::from_secs(60)))
        .listen("127.0.0.1:0".parse().unwrap())
        .start(move |worker: WorkerContext| {
            let ends = future.clone();
            async move {
                let _ends = ends;
                let listener = worker.take_listener().unwrap();
                let mut stream = listener.accept().await.unwrap().0;
                let (bytes, mut sent, mut waits) = (vec![7; 1 << 16], 0, 0);
                while waits < 3 {
                    let mut write = pin!(stream.write(&bytes));
                    match poll_fn(|context| Poll::Ready(write.as_mut().poll(context))).await {
                        Poll::Ready(count) => (sent, waits) = (sent + count.unwrap(), 0),
                        Poll::Pending => waits += 1,
                    }
                    yield_now().await;
                }
                sent
            }
        })
        .unwrap();
    let mut client = Client::connect(workers.addresses()[0]).unwrap();
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        // The worker's future is gone, and so is that of `start`.
        has_ended.recv().unwrap_err();
        client.read_to_end(&mut received).map(|_| received.len())
    });
    let sent = workers.join().remove(0).unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), sent);
}
