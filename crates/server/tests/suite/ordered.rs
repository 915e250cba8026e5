//! Ordered topics: all members see one order, whichever workers serve them and the publishers.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use tungstenite::Message as WsMessage;
use windlass_flow::Bounds;
use windlass_server::{
    Connection, Handler, Message, Options, RunningServer, SenderError, Server, ServerStats,
    bus::{Cluster, MemoryBus, MemoryNetwork},
};
use windlass_server::{
    OptionsError,
    http::{Accept, Reject, UpgradeRequest},
};

use crate::{
    backend::chosen,
    cluster_member::{Client, WAIT_MAX},
};

/// Takes commands of the form `command topic|payload`.
struct Commands(Arc<Mutex<(Sender<()>, Receiver<()>)>>);

impl Handler for Commands {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        let text = String::from_utf8_lossy(message.as_bytes()).into_owned();
        let (command, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let (topic, payload) = rest.split_once('|').unwrap_or((rest, ""));
        if command == "block" {
            // The others see the test's end of the channel when it fails.
            let gate = self.0.lock().unwrap();
            gate.0.send(()).unwrap();
            gate.1.recv().unwrap();
        }
        let answer = match command {
            "say" => {
                connection.publish(topic, payload);
                return;
            }
            "block" if topic.is_empty() => "released".to_owned(),
            "publish" | "block" => connection.publish(topic, payload).to_string(),
            "others" => connection.publish_to_others(topic, payload).to_string(),
            "subscribe" => connection.subscribe(topic).is_ok().to_string(),
            "watch" => connection.watch_status().to_string(),
            _ => connection.id().to_string(),
        };
        let _ = connection.send(answer);
    }

    /// The connection stays.
    fn on_drain(&self, connection: &mut Connection<'_>, (): &mut ()) {
        let _ = connection.send("draining");
    }
}

/// A server whose workers have an address each.
struct Site {
    /// To the worker that carries out `block`. It goes first, so that no worker waits for it.
    gate: (Receiver<()>, Sender<()>),
    addresses: Vec<SocketAddr>,
    running: RunningServer,
}

impl Site {
    fn new(workers: usize, configure: impl FnOnce(&mut Options)) -> Self {
        Self::start(workers, None, configure)
    }

    fn start(workers: usize, bus: Option<MemoryBus>, configure: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::new();
        configure(&mut options);
        let sockets: Vec<_> =
            (0..workers).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let ((blocked, is_blocked), (release, released)) = (mpsc::channel(), mpsc::channel());
        let gate = Arc::new(Mutex::new((blocked, released)));
        let mut server = Server::new(options, move |_| Commands(Arc::clone(&gate)))
            .workers(workers)
            .backend(chosen())
            .listen_on_each(sockets.into_iter().map(|one| vec![OwnedFd::from(one)]).collect());
        if let Some(bus) = bus {
            server = server.cluster(Cluster::new(bus));
        }
        Self { gate: (is_blocked, release), addresses, running: server.start().unwrap() }
    }

    fn client(&self, worker: usize) -> Client {
        let socket = TcpStream::connect(self.addresses[worker]).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let url = format!("ws://{}/", self.addresses[worker]);
        Client(tungstenite::client(url, socket).unwrap().0)
    }

    fn member(&self, worker: usize, topic: &str) -> Client {
        let mut client = self.client(worker);
        assert_eq!(client.command(&format!("subscribe {topic}")), "true");
        client
    }

    /// Returns a topic that this worker owns. The owner alone delivers in the turn of the call.
    fn topic_of(&self, owner: usize) -> String {
        let is_owned = |topic: &String| {
            let mut others: Vec<_> = (0..self.addresses.len())
                .filter(|worker| *worker != owner)
                .map(|worker| self.member(worker, topic))
                .collect();
            let mut client = self.member(owner, topic);
            let received = [client.command(&format!("publish {topic}|probe")), client.next()];
            // It has arrived everywhere, so nobody who subscribes later gets it.
            others.iter_mut().for_each(|other| assert_eq!(other.next(), "probe"));
            received == ["probe", "1"]
        };
        (0..100).map(|n| format!("t/{n}")).find(is_owned).expect("each worker owns topics")
    }

    /// Runs a closure while the worker of a connection is in a callback, which then publishes
    /// unless there is no topic.
    fn while_blocked(&self, client: &mut Client, publication: &str, run: impl FnOnce()) {
        client.0.send(WsMessage::text(format!("block {publication}"))).unwrap();
        self.gate.0.recv_timeout(WAIT_MAX).unwrap();
        run();
        self.gate.1.send(()).unwrap();
        client.next();
    }

    fn stats(&self) -> ServerStats {
        self.running.stats_handle().fresh_stats()
    }

    fn end(self) {
        self.running.stop();
        self.running.join().unwrap();
    }
}

fn ordered(options: &mut Options) {
    options.ordered_topics("t/");
}

/// Returns the next messages of each member.
fn next_of(members: &mut [Client], count: usize) -> Vec<Vec<String>> {
    members.iter_mut().map(|member| (0..count).map(|_| member.next()).collect()).collect()
}

/// Fails where two members saw different orders.
#[track_caller]
fn assert_same(seen: &[Vec<String>]) {
    for other in &seen[1..] {
        assert_eq!(seen[0].len(), other.len());
        if let Some(at) = (0..other.len()).find(|at| seen[0][*at] != other[*at]) {
            let end = other.len().min(at + 5);
            panic!("different orders at {at}: {:?}, {:?}", &seen[0][at..end], &other[at..end]);
        }
    }
}

/// Worker 0 publishes `a` while worker 1 is in a callback that then publishes `b`. Returns what a
/// member on each worker receives.
fn crossing(site: &Site, topic: &str) -> Vec<Vec<String>> {
    let mut members = [0, 1].map(|worker| site.member(worker, topic));
    let [mut a, mut b] = [0, 1].map(|worker| site.client(worker));
    site.while_blocked(&mut b, &format!("{topic}|b"), || {
        assert_eq!(a.command(&format!("publish {topic}|a")), "1");
    });
    next_of(&mut members, 2)
}

#[test]
fn publications_of_two_workers_cross_unless_the_topic_is_ordered() {
    let site = Site::new(2, ordered);
    assert_eq!(crossing(&site, "other"), [["a", "b"], ["b", "a"]], "each worker has its own order");
    for (owner, order) in [(0, ["a", "b"]), (1, ["b", "a"])] {
        assert_eq!(crossing(&site, &site.topic_of(owner)), [order; 2], "owned by {owner}");
    }
    assert_eq!(site.stats().lost_between_workers, 0);
    site.end();
}

#[test]
fn all_members_see_one_order_of_what_all_workers_and_a_thread_publish() {
    const EACH: usize = 200;
    for workers in [1, 2, 3] {
        let site = Site::new(workers, ordered);
        let mut members: Vec<_> =
            (0..2 * workers).map(|at| site.member(at % workers, "t/race")).collect();
        thread::scope(|scope| {
            for worker in 0..workers {
                let mut publisher = site.client(worker);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let text = format!("say t/race|{worker} {number}");
                        publisher.0.send(WsMessage::text(text)).unwrap();
                    }
                    // The answer shows that the server has read all.
                    publisher.command("id");
                });
            }
            let sender = site.running.sender();
            scope.spawn(move || {
                for number in 0..EACH {
                    sender.publish("t/race", format!("thread {number}")).unwrap();
                }
            });
        });
        let total = (workers + 1) * EACH;
        let seen = next_of(&mut members, total);
        assert_same(&seen);
        let publishers = (0..workers).map(|worker| worker.to_string());
        for publisher in publishers.chain(["thread".to_owned()]) {
            let own = seen[0].iter().filter_map(|text| text.strip_prefix(&publisher));
            let expected = (0..EACH).map(|number| format!(" {number}"));
            assert!(own.eq(expected), "the order of {publisher}");
        }
        let stats = site.stats();
        assert_eq!((stats.published, stats.lost_between_workers), (total as u64, 0));
        site.end();
    }
}

#[test]
fn the_sender_is_left_out_whoever_owns_the_topic() {
    let site = Site::new(2, ordered);
    for owner in [0, 1] {
        let topic = site.topic_of(owner);
        let mut members = [0, 1].map(|worker| site.member(worker, &topic));
        let mut sender = site.member(0, &topic);
        assert_eq!(sender.command(&format!("others {topic}|x")), "1");
        assert_eq!(next_of(&mut members, 1), [["x"], ["x"]]);
        let mut own = [sender.command(&format!("publish {topic}|last")), sender.next()];
        own.sort();
        assert_eq!(own, ["2", "last"], "it has not received its own");
        assert_eq!(next_of(&mut members, 1), [["last"], ["last"]]);
    }
    site.end();
}

#[test]
fn the_next_connection_in_the_slot_of_the_sender_is_another_one() {
    let site = Site::new(2, ordered);
    let topic = site.topic_of(1);
    let (mut blocker, mut sender) = (site.client(1), site.member(0, &topic));
    let slot = |id: &str| id.rsplit_once('.').unwrap().0.to_owned();
    let mut next = None;
    site.while_blocked(&mut blocker, &format!("{topic}|second"), || {
        let before = slot(&sender.command("id"));
        assert_eq!(sender.command(&format!("others {topic}|first")), "0");
        sender.0.close(None).unwrap();
        while sender.0.read().is_ok() {}
        let mut member = site.member(0, &topic);
        assert_eq!(slot(&member.command("id")), before);
        next = Some(member);
    });
    let mut received = next_of(&mut [next.unwrap()], 2).remove(0);
    received.sort();
    assert_eq!(received, ["first", "second"]);
    site.end();
}

#[test]
fn full_queues_lose_messages_and_count_them_and_never_reorder() {
    for owner in [0, 1] {
        let site = Site::new(2, |options| {
            ordered(options);
            options.sender_bounds = Bounds::items(4);
        });
        let topic = site.topic_of(owner);
        let mut members = [0, 1].map(|worker| site.member(worker, &topic));
        let [mut publisher, mut blocker] = [0, 1].map(|worker| site.client(worker));
        site.while_blocked(&mut blocker, "", || {
            for number in 0..10 {
                // Each in a turn of its own.
                assert_eq!(publisher.command(&format!("publish {topic}|{number}")), "1");
            }
            // The turn of the last one has ended.
            publisher.command("id");
            if owner == 1 {
                let sent = site.running.sender().try_publish(&topic, "by a thread");
                assert_eq!(sent, Err(SenderError::Full));
            }
        });
        // So that there is room again.
        assert_eq!(members[1].next(), "0");
        blocker.command("id");
        assert_eq!(publisher.command(&format!("publish {topic}|last")), "1");
        let until_last = |member: &mut Client, first: usize| {
            let numbers: Vec<_> = std::iter::from_fn(|| Some(member.next()))
                .take_while(|text| text != "last")
                .collect();
            let expected: Vec<_> = (first..first + numbers.len()).map(|n| n.to_string()).collect();
            assert_eq!(numbers, expected);
            first + numbers.len()
        };
        let received = [until_last(&mut members[0], 0), until_last(&mut members[1], 1)];
        let fit = received[1];
        assert!((4..10).contains(&fit), "{fit}");
        assert_eq!(received[0], if owner == 0 { 10 } else { fit });
        assert_eq!(site.stats().lost_between_workers, 10 - fit as u64);
        let line =
            format!("windlass_messages_dropped_total{{policy=\"worker_queue\"}} {}\n", 10 - fit);
        assert!(site.running.stats_handle().prometheus().contains(&line));
        site.end();
    }
}

#[test]
fn the_owner_goes_on_while_others_drain() {
    let site = Site::new(2, ordered);
    let topic = site.topic_of(1);
    let (mut member, mut publisher) = (site.member(0, &topic), site.client(0));
    let mut idle = site.client(1);
    site.running.drain(WAIT_MAX);
    for client in [&mut member, &mut publisher, &mut idle] {
        assert_eq!(client.next(), "draining");
    }
    drop(idle);
    let begin = Instant::now();
    while site.stats().connections > 2 {
        assert!(begin.elapsed() < WAIT_MAX, "{:?}", site.stats());
        thread::yield_now();
    }
    // The owner has no connection any more.
    assert_eq!(publisher.command(&format!("publish {topic}|late")), "1");
    assert_eq!(member.next(), "late");
    drop((member, publisher));
    site.running.join().unwrap();
}

#[test]
fn the_empty_prefix_means_all_topics_but_those_that_are_reserved() {
    let site = Site::new(2, |options| {
        options.ordered_topics("");
        options.live_status = true;
    });
    for worker in [0, 1] {
        let mut client = site.client(worker);
        assert_eq!(client.command("watch"), "true");
        assert!(client.next().starts_with('{'), "the status");
    }
    let mut publisher = site.client(0);
    assert_eq!(publisher.command("publish $windlass/status|x"), "0");
    let topics = [0, 1].map(|owner| site.topic_of(owner));
    assert_ne!(topics[0], topics[1]);
    site.end();
}

#[test]
fn too_many_prefixes_are_rejected() {
    let mut options = Options::new();
    (0..64).for_each(|number| options.ordered_topics(&format!("{number}/")));
    assert_eq!(options.check(), Ok(()));
    options.ordered_topics("65/");
    let error = options.check().unwrap_err();
    assert_eq!(error, OptionsError::TooManyOrderedTopics { prefixes: 65 });
    let text = "65 prefixes of ordered topics are more than 64: use a common one";
    assert_eq!(error.to_string(), text);
}

#[test]
fn each_node_of_a_cluster_has_one_order() {
    const EACH: usize = 100;
    let network = MemoryNetwork::new(11);
    let sites = [(); 2].map(|()| Site::start(2, Some(network.bus()), ordered));
    let mut members: Vec<_> =
        (0..4).map(|at| sites[at / 2].member(at % 2, "t/everywhere")).collect();
    let is_done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            // It also ends when the test fails.
            while !is_done.load(Ordering::Relaxed) && begin.elapsed() < 2 * WAIT_MAX {
                network.wait_and_deliver(Duration::from_millis(1));
            }
        });
        for (node, site) in sites.iter().enumerate() {
            for worker in [0, 1] {
                let mut publisher = site.client(worker);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let text = format!("say t/everywhere|{node} {worker} {number}");
                        publisher.0.send(WsMessage::text(text)).unwrap();
                    }
                    publisher.command("id");
                });
            }
        }
        let seen = next_of(&mut members, 4 * EACH);
        is_done.store(true, Ordering::Relaxed);
        seen
    });
    assert_same(&seen[..2]);
    assert_same(&seen[2..]);
    // Both nodes see what one node publishes in the same order.
    for node in ["0 ", "1 "] {
        let of = |seen: &[String]| -> Vec<String> {
            seen.iter().filter(|text| text.starts_with(node)).cloned().collect()
        };
        assert_same(&[of(&seen[0]), of(&seen[2])]);
    }
    for site in sites {
        let stats = site.running.stats_handle().cluster_stats().unwrap();
        let (sent, received) = (stats.sent, stats.received);
        assert_eq!((sent, received, stats.missed), (2 * EACH as u64, 2 * EACH as u64, 0));
        site.end();
    }
}
