//! A chat whose messages go through a broker, a thread that decides who receives what.
//!
//! Run `cargo run --example chat_broker -- 127.0.0.1:9004`, and connect to `ws://127.0.0.1:9004/`
//! with any WebSocket client. A message goes to all others; `/nick NAME` sets the sender's name,
//! `/who` lists the members, `/kick NAME` disconnects a member.
//!
//! The workers only transfer bytes. They send messages to the broker through a bounded mailbox, and
//! the broker answers through the server's [`Sender`]. A database's or a message bus's thread could
//! do the same. If the broker is overloaded, clients get an error, and no queue grows.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    error::Error,
    io,
    net::SocketAddr,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use windlass_flow::{Bounds, Latch, Mailbox, Sender as Inlet, weighed_mailbox};
use windlass_server::{
    CloseCode, Closed, Connection, ConnectionId, Handler, Hub, Message, Options, RunningServer,
    Sender, SenderError, Server,
    http::{Accept, Reject, UpgradeRequest},
};

/// The topic to which all members are subscribed.
const TOPIC: &str = "chat";

/// A message to the broker.
enum ChatEvent {
    Joined(ConnectionId),
    Message(ConnectionId, String),
    Left(ConnectionId),
}

/// The handler of the workers, which only forwards messages.
struct Forwarder {
    broker: Inlet<ChatEvent>,
    /// Members that have left while the mailbox was full. They are sent with the next message.
    gone: RefCell<Vec<ConnectionId>>,
}

impl Handler for Forwarder {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_open(&self, connection: &mut Connection<'_>, _: &mut ()) {
        // It fails only for names that are too long or reserved.
        let _ = connection.subscribe(TOPIC);
        if self.broker.try_push(ChatEvent::Joined(connection.id())).is_err() {
            let _ = connection.close(
                CloseCode::TRY_AGAIN_LATER,
                "too many connections at the same time; try again later",
            );
        }
    }

    fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
        let Some(text) = message.as_str() else {
            let _ = connection.close(CloseCode::UNSUPPORTED, "only text messages are supported");
            return;
        };
        if self.broker.try_push(ChatEvent::Message(connection.id(), text.to_owned())).is_err() {
            let _ = connection.send("* the chat is overloaded, try again");
        }
    }

    fn on_close(&self, _: &mut Hub<'_>, _: &mut (), closed: &Closed<'_>) {
        // A worker must not wait. There are at most as many entries as there were connections.
        let mut gone = self.gone.borrow_mut();
        gone.push(closed.id);
        gone.retain(|id| self.broker.try_push(ChatEvent::Left(*id)).is_err());
    }
}

/// The members and their names.
struct Broker {
    names: BTreeMap<ConnectionId, String>,
    sender: Sender,
    joined: u64,
}

impl Broker {
    fn handle(&mut self, event: ChatEvent) -> Result<(), SenderError> {
        match event {
            ChatEvent::Joined(id) => {
                self.joined += 1;
                let name = format!("guest {}", self.joined);
                self.sender.publish(TOPIC, format!("* {name} has joined").as_str())?;
                self.names.insert(id, name);
                Ok(())
            }
            ChatEvent::Message(id, text) => self.answer(id, &text),
            ChatEvent::Left(id) => match self.names.remove(&id) {
                Some(name) => self.sender.publish(TOPIC, format!("* {name} has left").as_str()),
                None => Ok(()),
            },
        }
    }

    fn answer(&mut self, id: ConnectionId, text: &str) -> Result<(), SenderError> {
        let Some(name) = self.names.get(&id).cloned() else { return Ok(()) };
        match text.split_once(' ').unwrap_or((text, "")) {
            ("/who", _) => {
                let mut names: Vec<&str> = self.names.values().map(String::as_str).collect();
                names.sort_unstable();
                self.sender.send(id, format!("* here: {}", names.join(", ")).as_str())
            }
            ("/nick", wanted)
                if self.names.values().any(|taken| taken == wanted) || wanted.is_empty() =>
            {
                self.sender.send(id, "* this name is taken or not allowed")
            }
            ("/nick", wanted) => {
                self.names.insert(id, wanted.to_owned());
                self.sender.publish(TOPIC, format!("* {name} is {wanted}").as_str())
            }
            ("/kick", whom) => match self.names.iter().find(|(_, name)| *name == whom) {
                Some((&whom, _)) => self.sender.close(
                    whom,
                    CloseCode::POLICY_VIOLATION,
                    "another member has disconnected you",
                ),
                None => self.sender.send(id, "* there is no member with this name"),
            },
            _ => self.sender.publish(TOPIC, format!("{name}: {text}").as_str()),
        }
    }
}

/// Runs on the broker's thread, until all senders of the mailbox are gone.
fn run_broker(mut inbox: Mailbox<ChatEvent>, sender: Sender) -> Result<(), SenderError> {
    let mut broker = Broker { names: BTreeMap::new(), sender, joined: 0 };
    while !(inbox.is_closed() && inbox.is_empty()) {
        for event in inbox.drain(256) {
            match broker.handle(event) {
                // The server has ended.
                Err(SenderError::Closed) => return Ok(()),
                other => other?,
            }
        }
        if inbox.latch().sleep() && inbox.is_empty() {
            inbox.latch().wait(None);
        }
        inbox.latch().awake();
    }
    Ok(())
}

type BrokerThread = JoinHandle<Result<(), SenderError>>;

fn start(address: SocketAddr, workers: usize) -> io::Result<(RunningServer, BrokerThread)> {
    // The weight of a message is its length.
    let weigh =
        |event: &ChatEvent| if let ChatEvent::Message(_, text) = event { text.len() } else { 0 };
    let (inlet, inbox) =
        weighed_mailbox(Bounds::items(4096).bytes(16 << 20), Arc::new(Latch::new()?), weigh);
    let make = move |_| Forwarder { broker: inlet.clone(), gone: RefCell::default() };
    let server = Server::new(Options::new(), make)
        .backend(windlass_examples::backend()?)
        .workers(workers)
        .listen(address)
        .start()?;
    let sender = server.sender();
    Ok((server, thread::spawn(move || run_broker(inbox, sender))))
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9004".to_owned());
    let (server, broker) = start(address.parse()?, 2)?;
    println!("listening on ws://{}/; enter ends it", server.addresses()[0]);
    io::stdin().read_line(&mut String::new())?;
    server.drain(Duration::from_secs(5));
    server.join()?;
    broker.join().map_err(|_| "the broker has panicked")??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tungstenite::{Message as Frame, WebSocket, client, protocol::CloseFrame};

    type Client = WebSocket<std::net::TcpStream>;

    fn connect(server: &RunningServer) -> Client {
        let address = server.addresses()[0].socket_addr().unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client(format!("ws://{address}/"), stream).unwrap().0
    }

    fn send(client: &mut Client, text: &str) {
        client.send(Frame::text(text)).unwrap();
    }

    /// Returns the next message.
    fn next_message(client: &mut Client) -> String {
        loop {
            match client.read().unwrap() {
                Frame::Text(text) => return text.to_string(),
                Frame::Close(Some(CloseFrame { code, reason })) => {
                    return format!("closed {}: {reason}", u16::from(code));
                }
                _ => {}
            }
        }
    }

    /// The number of workers does not matter. There are three, and the two clients are on any of
    /// them.
    #[test]
    fn what_one_says_all_hear_in_the_same_order() {
        let (server, broker) = start("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let mut ada = connect(&server);
        assert_eq!(next_message(&mut ada), "* guest 1 has joined");
        let mut bob = connect(&server);
        assert_eq!(next_message(&mut ada), "* guest 2 has joined");
        // Members are those who are subscribed when a publication arrives at their worker. Bob's
        // may get the first one after he has joined.
        let mut heard = next_message(&mut bob);
        if heard == "* guest 1 has joined" {
            heard = next_message(&mut bob);
        }
        assert_eq!(heard, "* guest 2 has joined");
        send(&mut ada, "/nick Ada");
        send(&mut ada, "hello");
        for client in [&mut ada, &mut bob] {
            assert_eq!(next_message(client), "* guest 1 is Ada");
            assert_eq!(next_message(client), "Ada: hello");
        }
        send(&mut bob, "/who");
        assert_eq!(next_message(&mut bob), "* here: Ada, guest 2");
        send(&mut bob, "/nick Ada");
        assert_eq!(next_message(&mut bob), "* this name is taken or not allowed");
        send(&mut ada, "/kick guest 2");
        assert_eq!(next_message(&mut bob), "closed 1008: another member has disconnected you");
        assert!(bob.read().is_err(), "and then it is over");
        assert_eq!(next_message(&mut ada), "* guest 2 has left");
        server.drain(Duration::from_secs(30));
        assert_eq!(next_message(&mut ada), "closed 1001: ");
        assert!(ada.read().is_err());
        server.join().unwrap();
        broker.join().unwrap().unwrap();
    }

    #[test]
    fn bytes_are_not_talk() {
        let (server, broker) = start("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let mut client = connect(&server);
        assert_eq!(next_message(&mut client), "* guest 1 has joined");
        client.send(Frame::binary(vec![1, 2, 3])).unwrap();
        assert_eq!(next_message(&mut client), "closed 1003: only text messages are supported");
        drop(client);
        server.stop();
        server.join().unwrap();
        broker.join().unwrap().unwrap();
    }
}
