//! The start of a service, and timers that have its hub.

use std::{cell::Cell, rc::Rc, time::Duration};

use windlass::TimerReason;
use windlass_server::http::{Accept, Reject, UpgradeRequest};
use windlass_server::{CloseCode, Connection, Handler, Hub, Message, Options, Server};

use crate::fixture::{ClientEvent, Fixture, TestHandler, text};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_handler_starts_timers_that_publish_pause_and_close() {
    let handler = TestHandler::echo()
        .on_start(|hub| {
            let mut seconds = 0;
            let tick = move |hub: &mut Hub<'_>| {
                seconds += 1;
                hub.publish("clock", format!("second {seconds}"));
            };
            hub.every(SECOND, tick).unwrap();
        })
        .on_open(|connection, _| {
            connection.subscribe("clock").unwrap();
            let id = connection.id();
            let mut hub = connection.hub();
            hub.after(2 * SECOND, move |hub| {
                assert!(hub.pause(id));
                hub.after(SECOND, move |hub| assert!(hub.resume(id))).unwrap();
            })
            .unwrap();
            let close = move |hub: &mut Hub<'_>| hub.close(id, CloseCode::NORMAL, "over").unwrap();
            hub.after(4 * SECOND, close).unwrap();
        });
    let mut fixture = Fixture::new(handler);
    let mut client = fixture.connect("/");
    assert_eq!(*fixture.events.borrow(), ["start", "open /"]);
    fixture.advance_time(2 * SECOND);
    assert_eq!(
        [fixture.next_event(&mut client), fixture.next_event(&mut client)],
        [text("second 1"), text("second 2")]
    );
    client.send("while paused");
    fixture.settle();
    assert_eq!(client.poll(), None);
    fixture.advance_time(SECOND);
    let events = [fixture.next_event(&mut client), fixture.next_event(&mut client)];
    assert!(events.contains(&text("second 3")) && events.contains(&text("while paused")));
    fixture.advance_time(SECOND);
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1000), "over".into()));
}

#[test]
fn a_timer_is_cancelled_from_outside_and_in_its_own_closure() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    let (first, own) = fixture.with_hub(move |hub| {
        let own = Rc::new(Cell::new(None));
        let key = Rc::clone(&own);
        let first = Rc::clone(&counted);
        let first = hub.every(SECOND, move |_| first.set(first.get() + 1)).unwrap();
        let itself = hub.every(SECOND, move |hub| {
            counted.set(counted.get() + 100);
            assert!(hub.cancel(key.get().unwrap()));
        });
        own.set(Some(itself.unwrap()));
        (first, itself.unwrap())
    });
    fixture.advance_time(2 * SECOND);
    assert_eq!(count.get(), 102);
    let left = fixture.with_hub(move |hub| (hub.cancel(first), hub.cancel(first), hub.cancel(own)));
    assert_eq!(left, (true, false, false));
    fixture.advance_time(2 * SECOND);
    assert_eq!(count.get(), 102);
    let rejected = fixture.with_hub(|hub| hub.every(Duration::ZERO, |_| ()));
    assert_eq!(rejected, Err(TimerReason::ZeroPeriod));
}

#[test]
fn each_worker_starts_once() {
    struct Starts(std::sync::mpsc::Sender<usize>, usize);

    impl Handler for Starts {
        type Data = ();

        fn on_start(&self, hub: &mut Hub<'_>) {
            assert_eq!(hub.connections(), 0);
            self.0.send(self.1).unwrap();
        }

        fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
            Ok(Accept::new(()))
        }

        fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    }

    let (sender, starts) = std::sync::mpsc::channel();
    let server = Server::new(Options::new(), move |worker| Starts(sender.clone(), worker.index));
    let running = server.workers(3).listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let mut workers: Vec<usize> = starts.iter().take(3).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1, 2]);
    running.stop();
    running.join().unwrap();
    assert_eq!(starts.iter().count(), 0);
}
