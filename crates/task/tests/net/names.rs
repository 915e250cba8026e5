//! Names and addresses.

use std::{io::ErrorKind, net::SocketAddr};

use windlass_task::{
    block_on,
    net::{TcpListener, TcpStream, lookup_host},
};

use crate::{scenarios::Build, tools::run};

fn a_name_is_resolved_and_connected_to(build: Build) {
    run(build, async {
        let addresses = lookup_host("localhost:80").await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback()), "{addresses:?}");
        let listener = TcpListener::bind(("localhost", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect(("localhost", port)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().port(), port);
    });
}

#[test]
fn an_address_in_text_form_needs_no_lookup() {
    block_on(async {
        let expected: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(lookup_host("[::1]:80").await.unwrap(), [expected]);
        assert_eq!(lookup_host(("::1", 80)).await.unwrap(), [expected]);
        assert_eq!(lookup_host(String::from("[::1]:80")).await.unwrap(), [expected]);
        assert_eq!(lookup_host(("::1".to_owned(), 80)).await.unwrap(), [expected]);
        assert_eq!(lookup_host(&[expected]).await.unwrap(), [expected]);
    });
}

#[test]
fn a_name_without_a_port_is_an_error() {
    block_on(async {
        let error = lookup_host("localhost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

scenarios! {
    a_name_is_resolved_and_connected_to,
}
