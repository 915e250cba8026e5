//! Random programs of sends, publications, subscriptions and closes, compared with a naive model.
//! Each connection gets exactly the model's messages, in the order of the calls.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

use proptest::prelude::*;
use windlass_server::{CloseCode, Connection, ConnectionId, Hub, OutMessage, Prepared};
use windlass_ws::deflate::DeflateConfig;

use crate::fixture::{Client, ClientEvent, Fixture, TestHandler};

const CLIENTS: usize = 4;
const TOPICS: [&str; 3] = ["a", "b", "c"];

/// One call. Indices of connections and topics are taken modulo their number.
#[derive(Clone, Copy, Debug)]
enum Call {
    Send,
    Reply,
    SendTo(usize),
    PrepareTo(usize),
    Publish(usize),
    PublishToAll(usize),
    HubPublish(usize),
    Subscribe(usize),
    Unsubscribe(usize),
    SubscribeOther(usize, usize),
    Long,
    Close,
    CloseOther(usize),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        3 => Just(Call::Send),
        2 => Just(Call::Reply),
        3 => (0..CLIENTS).prop_map(Call::SendTo),
        1 => (0..CLIENTS).prop_map(Call::PrepareTo),
        6 => (0..3usize).prop_map(Call::Publish),
        4 => (0..3usize).prop_map(Call::PublishToAll),
        3 => (0..3usize).prop_map(Call::HubPublish),
        4 => (0..3usize).prop_map(Call::Subscribe),
        2 => (0..3usize).prop_map(Call::Unsubscribe),
        2 => ((0..CLIENTS), (0..3usize))
            .prop_map(|(client, topic)| Call::SubscribeOther(client, topic)),
        1 => Just(Call::Long),
        1 => Just(Call::Close),
        1 => (0..CLIENTS).prop_map(Call::CloseOther),
    ]
}

/// The messages that connections should get.
#[derive(Default)]
struct Model {
    ids: Vec<ConnectionId>,
    subscriptions: BTreeMap<usize, BTreeSet<usize>>,
    closed: BTreeSet<usize>,
    expected: BTreeMap<usize, VecDeque<String>>,
    /// The programs of the messages in flight.
    programs: Vec<Vec<Call>>,
    next: u32,
}

impl Model {
    /// Returns a message that differs from all others. Some are long enough to be compressed.
    fn message(&mut self, is_long: bool) -> String {
        self.next += 1;
        if is_long {
            format!("{} {}", self.next, "long ".repeat(9000))
        } else {
            format!("m{}", self.next)
        }
    }

    fn give(&mut self, to: usize, message: &str) {
        if !self.closed.contains(&to) {
            self.expected.entry(to).or_default().push_back(message.to_owned());
        }
    }

    fn publish(&mut self, topic: usize, but: Option<usize>, message: &str) {
        for to in 0..CLIENTS {
            let listens = self.subscriptions.get(&to).is_some_and(|topics| topics.contains(&topic));
            if listens && Some(to) != but {
                self.give(to, message);
            }
        }
    }
}

/// Makes a call on the connection and in the model.
fn run(call: Call, me: usize, connection: &mut Connection<'_>, model: &mut Model, reply: &str) {
    let is_closed = model.closed.contains(&me);
    match call {
        Call::Send | Call::Long => {
            let message = model.message(matches!(call, Call::Long));
            assert_eq!(connection.send(&*message).is_ok(), !connection.is_closing());
            if !connection.is_closing() && !is_closed {
                model.give(me, &message);
            }
        }
        // A received message can be replied to once, so this test sends replies as messages of
        // their own.
        Call::Reply => {
            if connection.send(reply).is_ok() {
                model.give(me, reply);
            }
        }
        Call::Publish(topic) => {
            let message = model.message(false);
            connection.publish_to_others(TOPICS[topic], &*message);
            model.publish(topic, Some(me), &message);
        }
        Call::PublishToAll(topic) => {
            let message = model.message(false);
            connection.publish(TOPICS[topic], message.as_bytes());
            model.publish(topic, None, &message);
        }
        Call::Subscribe(topic) => {
            if connection.subscribe(TOPICS[topic]) == Ok(true) {
                model.subscriptions.entry(me).or_default().insert(topic);
            }
        }
        Call::Unsubscribe(topic) => {
            let there = connection.unsubscribe(TOPICS[topic]);
            assert_eq!(there, model.subscriptions.entry(me).or_default().remove(&topic));
        }
        Call::Close => {
            if connection.close(CloseCode::NORMAL, "").is_ok() {
                model.closed.insert(me);
            }
        }
        other => run_hub(other, &mut connection.hub(), model),
    }
}

#[allow(
    clippy::collapsible_match,
    reason = "a guard would do the call while it is looked for what to do"
)]
fn run_hub(call: Call, hub: &mut Hub<'_>, model: &mut Model) {
    match call {
        Call::SendTo(to) => {
            let message = model.message(false);
            assert_eq!(hub.send(model.ids[to], &*message).is_ok(), !model.closed.contains(&to));
            model.give(to, &message);
        }
        Call::PrepareTo(to) => {
            let message = model.message(true);
            let sent = hub.send_prepared(
                model.ids[to],
                &Prepared::new(OutMessage::binary(message.as_bytes())),
            );
            assert_eq!(sent.is_ok(), !model.closed.contains(&to));
            model.give(to, &message);
        }
        Call::HubPublish(topic) => {
            let message = model.message(false);
            hub.publish(TOPICS[topic], &*message);
            model.publish(topic, None, &message);
        }
        Call::SubscribeOther(client, topic) => {
            if hub.subscribe(model.ids[client], TOPICS[topic]) == Ok(true) {
                model.subscriptions.entry(client).or_default().insert(topic);
            }
        }
        Call::CloseOther(client) => {
            if hub.close(model.ids[client], CloseCode::NORMAL, "").is_ok() {
                model.closed.insert(client);
            }
        }
        _ => {}
    }
}

/// Returns the payload of an event, as the model stores it.
fn content(received: ClientEvent) -> Option<String> {
    match received {
        ClientEvent::Text(text) => Some(text),
        ClientEvent::Binary(bytes) => Some(String::from_utf8(bytes).unwrap()),
        ClientEvent::Close(..) | ClientEvent::End(_) => None,
        other => panic!("{other:?}"),
    }
}

fn check(programs: &[(usize, Vec<Call>)], is_packed: bool) {
    let config = DeflateConfig::DEFAULT;
    let model = Rc::new(RefCell::new(Model::default()));
    let inside = Rc::clone(&model);
    let handler = TestHandler::on_message(move |connection, _, message| {
        let model = &mut *inside.borrow_mut();
        let me = model.ids.iter().position(|id| *id == connection.id()).unwrap();
        let program = model.programs[message.as_str().unwrap().parse::<usize>().unwrap()].clone();
        let reply = format!("reply {}", message.as_str().unwrap());
        for call in program {
            // A connection that another one closes may still send until its Close frame is written.
            // The model does not know when that is.
            if model.closed.contains(&me) {
                break;
            }
            run(call, me, connection, model, &reply);
        }
    });
    let mut fixture =
        Fixture::with(handler, |options| options.deflate = is_packed.then_some(config));
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|index| fixture.connect_with("/", (is_packed && index % 2 == 0).then_some(&config)))
        .collect();
    model.borrow_mut().ids = fixture.ids();
    // All messages are sent before the server reads, so that many connections are called in one
    // turn.
    let mut sent = 0;
    for (number, (client, program)) in programs.iter().enumerate() {
        model.borrow_mut().programs.push(program.clone());
        let client = &mut clients[client % CLIENTS];
        let frame = client.frame(&*number.to_string());
        client.write(&frame);
        sent += frame.len();
    }
    fixture.until_received(sent);
    fixture.settle();
    let model = model.borrow();
    for (index, client) in clients.iter_mut().enumerate() {
        for expected in model.expected.get(&index).into_iter().flatten() {
            let received = content(fixture.next_event(client));
            assert_eq!(received.as_ref(), Some(expected), "client {index}");
        }
        if model.closed.contains(&index) {
            assert_eq!(content(fixture.next_event(client)), None, "client {index} is closed");
        } else {
            fixture.expect_nothing(client);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_receiver_gets_the_messages_in_call_order(
        programs in prop::collection::vec(
            (0..CLIENTS, prop::collection::vec(call(), 1..12)),
            1..12,
        ),
        is_packed: bool,
    ) {
        check(&programs, is_packed);
    }
}
