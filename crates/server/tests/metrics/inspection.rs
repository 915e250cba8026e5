//! Lists of connections and rooms, and clients that the operator disconnects.

use std::{
    io::{ErrorKind, Write as _},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::Value;
use windlass_server::RunningAdmin;

use crate::{
    admin::{TOKEN, assert_status, exchange, get, start},
    clients::{Client, Site},
    exposition::Exposition,
    waiting::until,
};

const BEARER: &str = "Authorization: Bearer a-token-of-the-test\r\n";

fn json(admin: &RunningAdmin, path: &str) -> Value {
    let response = get(admin, path, BEARER);
    assert_status(&response, 200);
    serde_json::from_str(&response.1).unwrap()
}

fn post(admin: &RunningAdmin, path: &str, lines: &str) -> (String, String) {
    let address = admin.address().socket_addr().unwrap();
    exchange(address, &format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"))
}

fn address_of(client: &Client) -> String {
    client.socket.local_addr().unwrap().to_string()
}

fn addresses(list: &Value) -> Vec<&str> {
    let rows = list["connections"].as_array().unwrap().iter();
    rows.map(|row| row["address"].as_str().unwrap()).collect()
}

pub(crate) fn connections_come_by_their_order() {
    let site = Site::new(2, |_| {});
    let admin = start(&site, |admin| admin);
    let mut quiet = Client::open(site.address, "/echo");
    let mut busy = Client::open(site.address, "/echo");
    let mut slow = Client::open(site.address, "/echo");
    for (client, len) in [(&mut quiet, 1), (&mut busy, 50_000)] {
        client.send(1, &vec![b'x'; len]);
        assert_eq!(client.next().1.len(), len);
    }
    let list = json(&admin, "/connections");
    assert_eq!((&list["count"], &list["complete"]), (&Value::from(3), &Value::from(true)));
    let of = [&busy, &quiet, &slow].map(address_of);
    assert_eq!(addresses(&list), of);
    let first = &list["connections"][0];
    assert_eq!(first["bytes_in"], busy.written);
    let acked = first["bytes_out"].as_u64().unwrap();
    assert!(acked <= busy.read, "{acked}");
    for (field, expected) in [("state", "open"), ("transport", "tcp")] {
        assert_eq!(first[field], expected);
    }
    assert_eq!(
        (&first["buffered_bytes"], &first["rooms"]),
        (&Value::from(0), &Value::Array(vec![]))
    );
    // It sends until the server no longer reads, because so much waits for it.
    slow.socket.set_nonblocking(true).unwrap();
    let frame = [&[0x82, 0xfe, 0x80, 0, 0, 0, 0, 0][..], &vec![0; 0x8000]].concat();
    let mut at = 0;
    let full = loop {
        match slow.socket.write(&frame[at..]) {
            Ok(count) => at = (at + count) % frame.len(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let list = json(&admin, "/connections?sort=buffered&limit=1");
                if list["connections"][0]["buffered_bytes"].as_u64().unwrap() > 0 {
                    break list;
                }
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((addresses(&full), &full["count"]), (vec![&*of[2]], &Value::from(3)));
    site.end();
}

pub(crate) fn rooms_are_listed_and_select_connections() {
    let site = Site::new(2, |_| {});
    let admin = start(&site, |admin| admin);
    let mut members = [(); 2].map(|()| Client::open(site.address, "/room"));
    let mut other = Client::open(site.address, "/live");
    other.next();
    for client in &mut members {
        client.send(1, b"hello");
        while !client.next().1.is_empty() {}
    }
    let list = json(&admin, "/connections?room=room&sort=age");
    assert_eq!(list["count"], 2);
    let mut found = addresses(&list);
    let mut expected = members.each_ref().map(address_of);
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(list["connections"][0]["rooms"], Value::from(vec!["room"]));
    let list = json(&admin, "/connections?room=room&limit=1");
    assert_eq!((addresses(&list).len(), &list["count"]), (1, &Value::from(2)));
    assert_eq!(json(&admin, "/connections?room=none")["count"], 0);
    assert_eq!(json(&admin, "/connections?room=%24windlass%2Fstatus")["count"], 0, "reserved");

    let rooms = json(&admin, "/rooms");
    let row = &rooms["rooms"][0];
    assert_eq!((&row["name"], &row["subscribers"]), (&Value::from("room"), &Value::from(2)));
    assert_eq!(rooms["rooms"].as_array().unwrap().len(), 1, "{rooms}");
    assert_eq!(rooms["complete"], true);
    site.end();
}

pub(crate) fn clients_are_disconnected_by_what_names_them() {
    let site = Site::new(2, |_| {});
    let (reported, reports) = mpsc::channel();
    let admin = start(&site, |admin| {
        let admin = admin.token(TOKEN).unwrap();
        admin.on_disconnected(move |report| {
            let _ = reported.send((report.by, report.target.to_owned(), report.done.count));
            // Without the hook, which would print it.
            std::panic::resume_unwind(Box::new("as asked"));
        })
    });
    let [mut one, mut member, mut rest] =
        ["/echo", "/room", "/echo"].map(|path| Client::open(site.address, path));
    // A connection in its handshake goes too.
    let mut silent = Client::connect(site.address);
    let list = || json(&admin, "/connections");
    let list = until(|| Some(list()).filter(|list| list["count"] == 4), || list().to_string());
    let rows = list["connections"].as_array().unwrap();
    let row = rows.iter().find(|row| row["address"] == address_of(&one)).unwrap();
    let id = row["id"].as_str().unwrap();
    let gone = |by: &'static str, value: &str, count: u64| {
        let done = post(&admin, &format!("/disconnect?{by}={value}"), BEARER);
        assert_status(&done, 200);
        assert_eq!(done.1, format!("{{\"disconnected\":{count},\"complete\":true}}\n"));
        assert_eq!(reports.recv().unwrap(), (by, value.to_owned(), count));
    };
    let closed = |client: &mut Client| {
        let reason = [&1008_u16.to_be_bytes()[..], b"disconnected by the operator"].concat();
        assert_eq!(client.next(), (8, reason));
    };
    gone("id", id, 1);
    closed(&mut one);
    gone("id", "0.9999.0", 0);
    gone("room", "room", 1);
    closed(&mut member);
    gone("address", "127.0.0.2", 0);
    // The first two answer no Close frame: they are closing still, and do not count.
    gone("address", "127.0.0.0/8", 2);
    closed(&mut rest);
    silent.read_to_end();
    let metrics = Exposition::parse(&get(&admin, "/metrics", BEARER).1);
    assert_eq!(metrics.get("admin_disconnections_total"), 4);

    assert_status(&post(&admin, "/disconnect?room=room", ""), 401);
    let read = get(&admin, "/disconnect?room=room", BEARER);
    assert_status(&read, 405);
    assert!(read.0.contains("\r\nAllow: POST\r\n"), "{read:?}");
    // Without a token any page could send the request, by a browser on this machine.
    let open = start(&site, |admin| admin);
    assert_status(&post(&open, "/disconnect?room=room", ""), 403);
    for path in ["/connections", "/rooms"] {
        for (lines, status) in [
            ("Origin: https://evil.example\r\n", 403),
            ("Sec-Fetch-Site: cross-site\r\n", 403),
            ("Sec-Fetch-Site: same-site\r\n", 403),
            ("Sec-Fetch-Site: same-origin\r\n", 200),
            ("Sec-Fetch-Site: none\r\n", 200),
        ] {
            assert_status(&get(&open, path, lines), status);
            assert_status(&get(&admin, path, &format!("{BEARER}{lines}")), 200);
        }
    }
    site.end();
}

pub(crate) fn a_bad_parameter_is_named() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin.token(TOKEN).unwrap());
    let bad = [
        get(&admin, "/connections?sort=size", BEARER),
        get(&admin, "/rooms?limit=1001", BEARER),
        post(&admin, "/disconnect", BEARER),
    ];
    let words = ["sort is \"size\": allowed is bytes, age or buffered", "from 1 to 1000", "id, ad"];
    for (response, words) in bad.iter().zip(words) {
        assert_status(response, 400);
        assert!(response.1.contains(words), "{response:?}");
    }
    let metrics = Exposition::parse(&get(&admin, "/metrics", BEARER).1);
    assert_eq!(metrics.get("admin_refusals_total{reason=\"bad_parameter\"}"), 3);
    site.end();
}

/// The answer comes without it, and what it has not done it never does.
pub(crate) fn a_busy_worker_is_left_out() {
    let (open_gate, gate) = mpsc::channel();
    let site = Site::with_gate(1, Some(gate), |_| {});
    // If the test fails, the gate opens before the server is joined.
    let open_gate = open_gate;
    let admin = start(&site, |admin| admin.token(TOKEN).unwrap());
    let mut busy = Client::open(site.address, "/echo");
    busy.send(1, b"wait");
    // Until it waits, it may answer.
    let list = || json(&admin, "/connections");
    until(|| (list()["complete"] == false).then_some(()), || list().to_string());
    let gone = post(&admin, "/disconnect?address=127.0.0.1", BEARER);
    assert_eq!(gone.1, "{\"disconnected\":0,\"complete\":false}\n");
    open_gate.send(()).unwrap();
    assert_eq!(busy.next().1, b"wait");
    assert_eq!(json(&admin, "/connections")["count"], 1);
    busy.send(1, b"still here");
    assert_eq!(busy.next().1, b"still here");
    site.end();
}

pub(crate) fn probes_need_no_token_if_health_is_open() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin.token(TOKEN).unwrap().open_health(true));
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/status", 401), ("/rooms", 401)] {
        assert_status(&get(&admin, path, ""), status);
    }
    site.end();
}

/// They wait for no worker, and take no place among the connections of the listener.
pub(crate) fn open_health_costs_little() {
    let (open_gate, gate) = mpsc::channel();
    let site = Site::with_gate(1, Some(gate), |_| {});
    // If the test fails, the gate opens before the server is joined.
    let open_gate = open_gate;
    let limit = Duration::from_secs(60);
    let admin =
        start(&site, |admin| admin.token(TOKEN).unwrap().open_health(true).stall_limit(limit));
    let mut busy = Client::open(site.address, "/echo");
    busy.send(1, b"wait");
    // Until it waits, it may answer.
    let list = || json(&admin, "/connections");
    until(|| (list()["complete"] == false).then_some(()), || list().to_string());
    let address = admin.address().socket_addr().unwrap();
    let begin = Instant::now();
    // Each wait for the worker would take a quarter of a second.
    for _ in 0..100 {
        let ready = exchange(address, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_status(&ready, 200);
        assert!(begin.elapsed() < Duration::from_secs(20), "it waits for the worker");
    }
    open_gate.send(()).unwrap();
    assert_eq!(busy.next().1, b"wait");
    site.end();
}

/// The program reads its configuration, and the listener shows how often that has failed.
pub(crate) fn reloads_of_the_program_are_counted() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin);
    [true, false, false].into_iter().for_each(|succeeded| admin.note_reload(succeeded));
    let metrics = Exposition::parse(&get(&admin, "/metrics", "").1);
    let count =
        |result| metrics.get(&format!("configuration_reloads_total{{result=\"{result}\"}}"));
    assert_eq!(["success", "failure"].map(count), [1, 2]);
    site.end();
}
