//! Peers that have gone silent.

use std::{cell::Cell, rc::Rc, time::Duration};

use windlass::sim::Faults;
use windlass_task::{
    spawn,
    time::{now, sleep},
};
use windlass_websocket::{RecvError, TimeLimit};

use crate::tools::{ANSWER_TIMEOUT, PING_INTERVAL, config, connect, run_client, start_server};

/// How long faults may hold up a ping or its answer.
const LATE_MAX: Duration = Duration::from_secs(3);

/// A partition is told by both ends, at its limit of time and not before. Pings are often written
/// in parts, which is no sign of the peer.
#[test]
fn a_silent_peer_is_noticed_at_the_limit_of_time() {
    let limit = PING_INTERVAL + ANSWER_TIMEOUT;
    windlass::sim::check(|sim| {
        let (kernel, longest) = (sim.kernel().clone(), Duration::from_secs(60));
        let before = Duration::from_nanos(kernel.choose(longest.as_nanos() as u64));
        let hosts = [2, 3].map(|last| sim.host([10, 0, 0, last].into()).id());
        let end_of = move |end: Result<(), RecvError>, since: Duration| {
            assert!(matches!(end, Err(RecvError::TimedOut(TimeLimit::Answer))), "{end:?}");
            // The last ping was sent at most an interval before the partition, or its answer was on
            // the way.
            assert!(since + PING_INTERVAL + LATE_MAX >= limit, "{since:?}");
            assert!(since <= limit + LATE_MAX, "{since:?}");
        };
        let cut = Rc::new(Cell::new(None));
        let of_server = Rc::clone(&cut);
        let all = start_server(sim, config(), move |mut socket, _| {
            let cut = Rc::clone(&of_server);
            async move {
                let end = socket.recv().await.map(|found| assert!(found.is_none()));
                if let Some(cut) = cut.get() {
                    end_of(end, now() - cut);
                }
            }
        });
        run_client(sim, async move {
            let (mut socket, _) = connect(&kernel, "", &config()).await;
            let quiet = spawn(async move {
                let end = socket.recv().await.map(|found| assert!(found.is_none()));
                (end, now())
            });
            sleep(before).await;
            kernel.partition(hosts[0], hosts[1]);
            let begin = now();
            cut.set(Some(begin));
            let (end, at) = quiet.await.unwrap();
            end_of(end, at - begin);
        });
        all.check(sim);
    })
    .seeds(60)
    .faults(Faults { partition: 0, would_block: 200_000, short_write: 300_000, ..Faults::rough() })
    .run();
}
