//! `handler_fn`: one function as a handler, on the chosen backend.

use std::{cell::Cell, time::Duration};

use windlass_server::{Connection, Message, Options, Server, handler_fn};

use crate::backend::chosen;

/// The function of a worker has state of its own. All that it does not decide is as for a handler
/// with the provided methods.
#[test]
fn one_function_is_a_whole_server() {
    let make = |_| {
        let count = Cell::new(0);
        handler_fn(move |connection: &mut Connection<'_>, message: Message<'_>| {
            count.set(count.get() + 1);
            match message.as_str() {
                Some("count") => connection.send(count.get().to_string()).unwrap(),
                _ => connection.reply_in_place(message).unwrap(),
            }
        })
    };
    let local = "127.0.0.1:0".parse().unwrap();
    let running = Server::new(Options::new(), make).backend(chosen()).listen(local).start();
    let running = running.unwrap();
    let address = running.addresses()[0].socket_addr().unwrap();
    let connect = |path: &str| {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        tungstenite::client(format!("ws://localhost{path}"), stream).unwrap().0
    };
    // Every path is accepted, and the state belongs to the worker.
    let mut clients = [connect("/"), connect("/another?with=query")];
    for client in &mut clients {
        for message in ["text".into(), tungstenite::Message::binary(vec![1, 2, 3])] {
            client.send(message.clone()).unwrap();
            assert_eq!(client.read().unwrap(), message);
        }
        client.send(tungstenite::Message::Ping(vec![4].into())).unwrap();
        assert_eq!(client.read().unwrap(), tungstenite::Message::Pong(vec![4].into()));
    }
    clients[0].send("count".into()).unwrap();
    assert_eq!(clients[0].read().unwrap(), "5".into());
    // The provided method closes each connection when the server drains.
    running.drain(Duration::from_secs(30));
    for client in &mut clients {
        let tungstenite::Message::Close(Some(close)) = client.read().unwrap() else {
            panic!("no Close frame")
        };
        assert_eq!(u16::from(close.code), 1001);
        while client.read().is_ok() {}
    }
    running.join().unwrap();
}
