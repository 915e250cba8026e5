//! Streams of async-io, which smol and async-std use.

use std::net::{TcpListener, TcpStream};

use ::async_io::{Async, block_on};
use windlass_websocket::{AsyncIoTimer, FuturesIo, Timed};

use crate::{ask, serve};

#[test]
fn an_echo_on_async_io() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let listener = Async::new(listener).expect("it becomes non-blocking");
    let server = std::thread::spawn(move || {
        block_on(async {
            let (stream, _) = listener.accept().await.expect("it is accepted");
            serve(Timed::new(FuturesIo::new(stream), AsyncIoTimer::new())).await;
        });
    });
    block_on(async {
        let stream = Async::<TcpStream>::connect(address).await.expect("it is connected");
        ask(FuturesIo::new(stream)).await;
    });
    server.join().expect("the server is good");
}
