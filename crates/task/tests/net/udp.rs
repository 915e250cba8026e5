//! UDP.

use std::{io::ErrorKind, net::Ipv4Addr, rc::Rc};

use windlass_task::{net::UdpSocket, spawn};

use crate::{
    scenarios::Build,
    tools::{poll_now, run, turns},
};

async fn bound() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

fn datagrams_are_exchanged_connected_and_not(build: Build) {
    run(build, async {
        let (server, client) = (bound().await, bound().await);
        let to = server.local_addr().unwrap();
        assert_eq!(client.send_to(b"hello", to).await.unwrap(), 5);
        let mut buffer = [0; 4];
        assert_eq!(server.peek(&mut buffer).await.unwrap(), 4);
        let (count, from) = server.peek_from(&mut buffer).await.unwrap();
        assert_eq!((count, from), (4, client.local_addr().unwrap()));
        assert_eq!(server.recv_from(&mut buffer).await.unwrap(), (4, from));
        assert!(poll_now(&mut Box::pin(server.recv(&mut buffer))).is_pending());
        client.connect(to).await.unwrap();
        assert_eq!(client.peer_addr().unwrap(), to);
        client.send(b"").await.unwrap();
        assert_eq!(server.recv(&mut buffer).await.unwrap(), 0, "an empty datagram is one");
        client.send(b"abc").await.unwrap();
        client.send(b"de").await.unwrap();
        assert_eq!(server.recv(&mut buffer).await.unwrap(), 3);
        assert_eq!(server.recv(&mut buffer).await.unwrap(), 2, "a short datagram clears nothing");
    });
}

fn a_socket_is_shared_by_tasks(build: Build) {
    run(build, async {
        let (server, client) = (Rc::new(bound().await), bound().await);
        client.connect(server.local_addr().unwrap()).await.unwrap();
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let server = Rc::clone(&server);
                spawn(async move {
                    let mut buffer = [0; 8];
                    server.recv(&mut buffer).await.unwrap()
                })
            })
            .collect();
        turns().await;
        for length in 1..=4 {
            client.send(&vec![0; length]).await.unwrap();
        }
        let mut lengths = Vec::new();
        for receiver in receivers {
            lengths.push(receiver.await.unwrap());
        }
        lengths.sort_unstable();
        assert_eq!(lengths, [1, 2, 3, 4]);
    });
}

fn a_refused_datagram_is_an_error_once(build: Build) {
    run(build, async {
        let client = bound().await;
        let address = bound().await.local_addr().unwrap();
        client.connect(address).await.unwrap();
        client.send(b"x").await.unwrap();
        let error = client.recv(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // The error condition does not keep the socket ready.
        let client = Rc::new(client);
        let receiver = Rc::clone(&client);
        let waiting = spawn(async move { receiver.recv(&mut [0; 1]).await });
        for _ in 0..20 {
            turns().await;
        }
        assert!(!waiting.is_finished());
        assert!(client.would_block_count() < 4, "the receiver spins");
    });
}

fn multicast_groups_are_joined(build: Build) {
    run(build, async {
        let group = Ipv4Addr::new(239, 7, 7, 7);
        let receiver = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        receiver.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
        let sender = bound().await;
        rustix::net::sockopt::set_ip_multicast_if(&sender, &Ipv4Addr::LOCALHOST).unwrap();
        sender.set_multicast_loop_v4(true).unwrap();
        sender.set_multicast_ttl_v4(2).unwrap();
        assert_eq!(sender.multicast_ttl_v4().unwrap(), 2);
        assert!(sender.multicast_loop_v4().unwrap());
        let port = receiver.local_addr().unwrap().port();
        sender.send_to(b"to all", (group, port)).await.unwrap();
        let mut buffer = [0; 16];
        let (count, from) = receiver.recv_from(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..count], from), (&b"to all"[..], sender.local_addr().unwrap()));
        receiver.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
        sender.set_broadcast(true).unwrap();
        assert!(sender.broadcast().unwrap());
    });
}

scenarios! {
    datagrams_are_exchanged_connected_and_not,
    a_socket_is_shared_by_tasks,
    a_refused_datagram_is_an_error_once,
    multicast_groups_are_joined,
}
