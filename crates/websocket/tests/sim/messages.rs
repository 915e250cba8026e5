//! Messages in both directions at once: none is lost, reordered or invented, and a clean end
//! follows all of them.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use windlass::sim::{Faults, Kernel, Sim};
use windlass_task::{cancel::Cancel, spawn};
use windlass_websocket::{
    CloseCode, Config, DeflateConfig, Reader, RecvError, SendError, Transport, WebSocket, Writer,
};

use crate::tools::{briefly, config, connect, message, run_client, start_server};

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// The messages of a session.
#[derive(Default)]
struct Plan {
    number: u8,
    /// How long those of each end are.
    lens: [Vec<usize>; 2],
    /// The client closes when it has sent its own. Otherwise it waits for those of the server.
    closes_early: bool,
    by_pieces: bool,
}

impl Plan {
    fn choose(kernel: &Kernel, number: u8, longest: u64) -> Self {
        let len = |_| usize::try_from(kernel.choose(longest)).unwrap();
        let lens = [(); 2].map(|()| (0..kernel.choose(20)).map(len).collect());
        let coin = || kernel.choose(2) == 1;
        Self { number, lens, closes_early: coin(), by_pieces: coin() }
    }
}

/// What one end knows of a session that has ended.
struct End {
    /// How many messages the socket has taken.
    taken: usize,
    sent: Result<(), SendError>,
    received: usize,
    end: Result<(), RecvError>,
}

/// Sends the messages of an end. Futures that are dropped have done nothing.
async fn send<S: Transport>(
    kernel: &Kernel,
    writer: &mut Writer<S>,
    (plan, end): (&Plan, usize),
    taken: &mut usize,
) -> Result<(), SendError> {
    for (place, len) in plan.lens[end].iter().enumerate() {
        let message = message((plan.number, end), place, *len);
        match kernel.choose(4) {
            0 => writer.send(&message).await?,
            1 => while briefly(kernel, writer.feed(&message)).await.transpose()?.is_none() {},
            2 => {
                writer.ping(b"ping").await?;
                writer.feed(&message).await?;
            }
            _ => writer.feed(&message).await?,
        }
        *taken += 1;
        if kernel.choose(4) == 0 {
            briefly(kernel, writer.flush()).await.transpose()?;
        }
    }
    writer.flush().await
}

/// Receives to the end, and compares. `all` is told when all are there, or no more come.
async fn receive<S: Transport>(
    kernel: &Kernel,
    reader: &mut Reader<S>,
    (plan, of): (&Plan, usize),
    all: &Cancel,
) -> (usize, Result<(), RecvError>) {
    let (mut received, mut payload) = (0, Vec::new());
    loop {
        if received == plan.lens[of].len() {
            all.cancel();
        }
        let is_brief = kernel.choose(3) == 0;
        let (is_text, is_last) = if plan.by_pieces {
            let receiving = reader.recv_piece();
            let found =
                if is_brief { briefly(kernel, receiving).await } else { Some(receiving.await) };
            match found {
                None => continue,
                Some(Ok(Some(piece))) => {
                    payload.extend_from_slice(piece.as_bytes());
                    (piece.is_text(), piece.is_last())
                }
                Some(end) => break (received, end.map(|_| ())),
            }
        } else {
            let receiving = reader.recv();
            let found =
                if is_brief { briefly(kernel, receiving).await } else { Some(receiving.await) };
            match found {
                None => continue,
                Some(Ok(Some(message))) => {
                    payload.extend_from_slice(message.as_bytes());
                    (message.is_text(), true)
                }
                Some(end) => break (received, end.map(|_| ())),
            }
        };
        if is_last {
            let len = plan.lens[of].get(received).expect("a message was invented");
            let message = message((plan.number, of), received, *len);
            assert_eq!(is_text, message.is_text(), "the kind of message {received}");
            assert!(payload == *message.as_bytes(), "message {received} is another one");
            payload.clear();
            received += 1;
        }
    }
}

/// The session of one end.
async fn talk<S: Transport + 'static>(
    kernel: Kernel,
    socket: WebSocket<S>,
    plan: Rc<Plan>,
    end: usize,
) -> End {
    let (mut reader, mut writer) = socket.split();
    let all = Cancel::new();
    let of_task = (kernel.clone(), Rc::clone(&plan), all.clone());
    let receiving = spawn(async move {
        let (kernel, plan, all) = of_task;
        let result = receive(&kernel, &mut reader, (&plan, 1 - end), &all).await;
        all.cancel();
        (reader, result)
    });
    let mut taken = 0;
    let mut sent = send(&kernel, &mut writer, (&plan, end), &mut taken).await;
    if end == CLIENT && sent.is_ok() {
        if !plan.closes_early {
            all.cancelled().await;
        }
        sent = writer.close(CloseCode::NORMAL, "done").await;
    }
    let (mut reader, (received, end)) = receiving.await.unwrap();
    // The end comes once: nothing follows it.
    let again = reader.recv().await;
    assert!(!matches!(again, Ok(Some(_))), "a message after the end");
    assert_eq!(again.is_ok(), end.is_ok(), "another end");
    if end.is_ok() {
        let code = reader.peer_close().and_then(|close| close.code);
        assert_eq!(code, Some(CloseCode::NORMAL));
        assert!(writer.send("more").await.is_err(), "a message after the Close frame");
    }
    End { taken, sent, received, end }
}

/// A clean end comes after all that the peer's socket has taken.
fn check_end(received: usize, peer: &End) {
    assert!(received >= peer.taken, "{received} messages and a clean end, {} sent", peer.taken);
    // A write that fails may have sent a message that it has not taken.
    if !matches!(peer.sent, Err(SendError::Io(_))) {
        assert_eq!(received, peer.taken);
    }
}

/// Sessions at the same time. Returns how many were whole.
fn sessions(sim: &Sim, clients: u8, longest: u64) -> usize {
    let kernel = sim.kernel().clone();
    let plans: Rc<Vec<_>> =
        Rc::new((0..clients).map(|it| Rc::new(Plan::choose(&kernel, it, longest))).collect());
    let mut config: Config = config().high_watermark(1 + longest as usize / 4);
    if kernel.choose(2) == 1 {
        config = config.deflate(DeflateConfig::default());
    }
    let served = Rc::new(RefCell::new(HashMap::new()));
    let of_server = (kernel.clone(), Rc::clone(&plans), Rc::clone(&served));
    let all = start_server(sim, config.clone(), move |socket, path| {
        let (kernel, plans, served) = of_server.clone();
        async move {
            let number: usize = path.split('/').nth(1).unwrap().parse().unwrap();
            let end = talk(kernel, socket, Rc::clone(&plans[number]), SERVER).await;
            served.borrow_mut().insert(path, end);
        }
    });
    let asked = Rc::new(RefCell::new(Vec::new()));
    let ends = Rc::clone(&asked);
    run_client(sim, async move {
        let clients = plans.iter().map(|plan| {
            let (kernel, plan, config) = (kernel.clone(), Rc::clone(plan), config.clone());
            spawn(async move {
                let (socket, path) = connect(&kernel, &format!("/{}", plan.number), &config).await;
                (path, talk(kernel, socket, Rc::clone(&plan), CLIENT).await, plan)
            })
        });
        for client in clients.collect::<Vec<_>>() {
            let end = client.await.unwrap();
            ends.borrow_mut().push(end);
        }
    });
    all.check(sim);
    let mut whole = 0;
    for (path, client, plan) in asked.take() {
        // The response has come, so the server has a session.
        let server = served.borrow_mut().remove(&path).expect("the server's session has ended");
        if server.end.is_ok() {
            check_end(server.received, &client);
        }
        if client.end.is_ok() {
            // The answer to the Close frame says that everything before it was received.
            check_end(server.received, &client);
            check_end(client.received, &server);
            whole += usize::from(plan.closes_early || server.taken == plan.lens[SERVER].len());
        }
    }
    whole
}

#[test]
fn sessions_are_whole_in_calm_weather() {
    windlass::sim::check(|sim| assert_eq!(sessions(sim, 6, 30_000), 6)).seeds(6).run();
}

#[test]
fn sessions_are_whole_in_rough_weather() {
    windlass::sim::check(|sim| assert_eq!(sessions(sim, 4, 10_000), 4))
        .seeds(20)
        .faults(Faults::rough())
        .twice()
        .run();
}

/// Each half writes what the other waits for, and the transport takes it late.
#[test]
fn halves_of_short_sessions_wake_each_other() {
    windlass::sim::check(|sim| assert_eq!(sessions(sim, 2, 500), 2))
        .seeds(100)
        .faults(Faults::rough())
        .run();
}

#[test]
fn a_clean_end_follows_all_messages_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        sessions(sim, 3, 3_000);
    })
    .seeds(80)
    .faults(Faults::hostile())
    .run();
}
