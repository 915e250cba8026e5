//! Streams of windlass-task, with the traits of futures-io and of tokio.

use ::windlass_task::{
    block_on,
    net::{TcpListener, TcpStream},
    spawn,
    time::{now, sleep},
};
use windlass_websocket::{FuturesIo, SleepTimer, Timed};

use crate::{ask, serve};

async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let client = spawn(async move { TcpStream::connect(address).await });
    let (server, _) = listener.accept().await.expect("it is accepted");
    (server, client.await.expect("it runs").expect("it is connected"))
}

#[test]
fn an_echo_on_windlass_task() {
    block_on(async {
        let (ours, theirs) = streams().await;
        let client = spawn(ask(FuturesIo::new(theirs)));
        let start = now();
        let timer =
            SleepTimer::new(move || now().duration_since(start), |time| Box::pin(sleep(time)));
        serve(Timed::new(FuturesIo::new(ours), timer)).await;
        client.await.expect("the client is good");
    });
}
