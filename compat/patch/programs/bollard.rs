//! A client of Docker that attaches to a container by a WebSocket on a Unix socket.

mod peer;

use std::os::unix::net::UnixListener;

use bollard::Docker;
use futures_util::StreamExt as _;
use tokio::io::AsyncWriteExt as _;

use peer::Peer;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let path = std::env::temp_dir().join(format!("windlass-bollard-{}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("the folder is writable");
    let peer = std::thread::spawn(move || {
        let accept = || Peer::server(listener.accept().expect("a client connects").0);
        let mut one = accept();
        one.upgrade();
        let echo = one.echo();
        let mut one = accept();
        one.upgrade();
        one.write(peer::CLOSE, &peer::close(1000, ""));
        while one.read().is_some() {}
        let mut one = accept();
        one.upgrade();
        one.write(peer::RESERVED, b"");
        while one.read().is_some() {}
        accept().refuse();
        echo
    });
    let place = path.to_str().expect("it is UTF-8");
    let docker = Docker::connect_with_unix(place, 60, bollard::API_DEFAULT_VERSION);
    let docker = docker.expect("the socket is there");

    let mut attached = docker.attach_container_websocket("c", None).await.expect("accepted");
    attached.input.write_all(b"a line\n").await.expect("it is open");
    attached.input.flush().await.expect("it is open");
    println!("{:?}", attached.output.next().await);
    attached.input.shutdown().await.expect("it is open");
    println!("{:?}", attached.output.next().await.is_none());
    drop(attached);

    for _ in ["a Close frame", "an error"] {
        let mut attached = docker.attach_container_websocket("c", None).await.expect("accepted");
        println!("{:?}", attached.output.next().await.map(|item| item.is_err()));
    }
    println!("{}", docker.attach_container_websocket("c", None).await.is_err());
    println!("the peer: {}", peer.join().expect("it does not panic"));
    std::fs::remove_file(path).expect("it is there");
}
